//! Performance management (IBTA vol1 16.1): counters of ports.

use crate::layout::layout;
use crate::mad::MadHeader;

layout! {
    /// A whole datagram.
    PmMad, PmMadView, 256 {
        /// Header.
        header: MadHeader = 0, 192;
        /// The attribute.
        data: [u8; 192] = 512, 1536;
    }
}

layout! {
    /// Counters of a port, which stop at their largest value.
    PortCounters, PortCountersView, 44 {
        /// The port; 255: all ports of a switch.
        port_select: u8 = 8, 8;
        /// Which counters are set, a bit each in the order below, up to
        /// [`rcv_packets`](Self::rcv_packets); errors of QP1 have none.
        counter_select: u16 = 16, 16;
        /// Minor errors of the physical layer.
        symbol_errors: u16 = 32, 16;
        /// Times that the link recovered from errors.
        link_error_recovery: u8 = 48, 8;
        /// Times that the link failed to recover and went down.
        link_downed: u8 = 56, 8;
        /// Packets received with an error.
        rcv_errors: u16 = 64, 16;
        /// Packets received that were marked bad by their sender.
        rcv_remote_physical_errors: u16 = 80, 16;
        /// Packets received that the switch could not forward.
        rcv_switch_relay_errors: u16 = 96, 16;
        /// Packets dropped before they were sent.
        xmit_discards: u16 = 112, 16;
        /// Packets not sent because of their partition, or raw.
        xmit_constraint_errors: u8 = 128, 8;
        /// Packets received and dropped for the same reason.
        rcv_constraint_errors: u8 = 136, 8;
        /// Which of the later counters are set: bit 0 is [`xmit_wait`](Self::xmit_wait).
        counter_select_2: u8 = 144, 8;
        /// Times that errors of the physical layer exceeded their threshold.
        local_link_integrity_errors: u8 = 152, 4;
        /// Times that the buffer overran again and again.
        excessive_buffer_overruns: u8 = 156, 4;
        /// Datagrams for QP1 that were dropped.
        qp1_dropped: u16 = 160, 16;
        /// Subnet management packets that were dropped for want of room.
        vl15_dropped: u16 = 176, 16;
        /// Words of four bytes sent.
        xmit_data: u32 = 192, 32;
        /// Words of four bytes received.
        rcv_data: u32 = 224, 32;
        /// Packets sent.
        xmit_packets: u32 = 256, 32;
        /// Packets received.
        rcv_packets: u32 = 288, 32;
        /// Ticks during which there was something to send, and no credit for it.
        xmit_wait: u32 = 320, 32;
    }
}

layout! {
    /// Counters of a port that do not overrun.
    PortCountersExtended, PortCountersExtendedView, 72 {
        /// The port; 255: all ports of a switch.
        port_select: u8 = 8, 8;
        /// Which counters are set, a bit each in the order below.
        counter_select: u16 = 16, 16;
        /// Words of four bytes sent.
        xmit_data: u64 = 64, 64;
        /// Words of four bytes received.
        rcv_data: u64 = 128, 64;
        /// Packets sent.
        xmit_packets: u64 = 192, 64;
        /// Packets received.
        rcv_packets: u64 = 256, 64;
        /// Packets to one port sent.
        unicast_xmit_packets: u64 = 320, 64;
        /// Packets to one port received.
        unicast_rcv_packets: u64 = 384, 64;
        /// Packets to groups sent.
        multicast_xmit_packets: u64 = 448, 64;
        /// Packets to groups received.
        multicast_rcv_packets: u64 = 512, 64;
    }
}
