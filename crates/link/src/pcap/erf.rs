//! Packets of InfiniBand in a capture: records of the format of Endace's cards (ERF), because
//! Wireshark knows no other link type with a local route header.
//!
//! A record has a time, a type, flags, its own length, a loss counter and the length of the packet,
//! and the packet from the local route header to the VCRC, padded to eight bytes.

use feroce_train::RxMeta;
use feroce_wire::{Bth, Grh, IbFrame, Lrh, Qpn, TooLong};

/// Bytes in front of the packet.
const HEADER: usize = 16;
/// The type of records that hold packets of InfiniBand.
const INFINIBAND: u8 = 21;
/// Records have different lengths.
const VARYING_LENGTH: u8 = 0x04;
/// The lane of subnet management.
const MANAGEMENT_LANE: u8 = 15;

/// The packet as a link carries it. The lane is that of management for queue pair 0, and the first
/// for all others.
pub(super) fn frame<'a>(
    meta: &RxMeta,
    flow_label: u32,
    transport: &'a [u8],
    icrc: u32,
) -> Result<IbFrame<'a>, TooLong> {
    let is_management = Bth::parse(transport).is_ok_and(|(bth, _)| bth.dest_qp == Qpn::QP0);
    let vl = if is_management { MANAGEMENT_LANE } else { 0 };
    let lrh = Lrh { vl, sl: meta.sl, slid: meta.src.lid, dlid: meta.dst.lid, ..Lrh::default() };
    let gids = meta.has_grh().then_some((meta.src.gid, meta.dst.gid));
    let frame = IbFrame::new(lrh, gids, transport)?;
    let (traffic_class, hop_limit) = (meta.traffic_class, meta.hop_limit);
    let grh = frame.grh.map(|grh| Grh { traffic_class, flow_label, hop_limit, ..grh });
    let frame = IbFrame { grh, icrc, ..frame };
    Ok(IbFrame { vcrc: frame.expected_vcrc(), ..frame })
}

/// Appends a record with a packet that passed at a time in nanoseconds since 1970.
pub(super) fn record(out: &mut Vec<u8>, nanos: u64, frame: &IbFrame<'_>) {
    let start = out.len();
    // Lengths of packets have twelve bits and count words, so all of this fits.
    let packet = usize::from(frame.lrh.words) * 4 + 2;
    let len = (HEADER + packet).next_multiple_of(8);
    let (seconds, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    out.extend(((seconds << 32) | ((rest << 32) / 1_000_000_000)).to_le_bytes());
    out.extend([INFINIBAND, VARYING_LENGTH]);
    out.extend((len as u16).to_be_bytes());
    out.extend([0; 2]);
    out.extend((packet as u16).to_be_bytes());
    out.resize(start + len, 0);
    // There is room for the packet.
    let _ = frame.emit(&mut out[start + HEADER..]);
}

#[cfg(test)]
mod tests {
    use feroce_train::{Framing, PortAddr};
    use feroce_wire::{Gid, Lid, Opcode, Psn};

    use super::*;

    #[test]
    fn a_record_holds_the_packet_of_a_link() {
        let mut transport = [0; Bth::LEN + 4];
        let port = |lid| PortAddr { gid: Gid::ZERO, lid: Lid(lid) };
        let meta = RxMeta {
            src: port(4),
            dst: port(2),
            framing: Framing::InfiniBand,
            sl: 3,
            ..RxMeta::default()
        };
        let far = |lid: u16| PortAddr { gid: Gid([lid as u8; 16]), lid: Lid(lid) };
        let global = RxMeta { src: far(4), dst: far(2), ..meta };
        for (meta, qp, vl) in [(meta, Qpn::QP0, 15), (meta, Qpn::new(7), 0), (global, Qpn::QP1, 0)]
        {
            let bth = Bth::new(Opcode(0x64), qp, Psn::new(1));
            bth.emit(transport.first_chunk_mut().unwrap());
            let packet = frame(&meta, 0, &transport, 0x0102_0304).unwrap();
            let mut out = vec![9];
            record(&mut out, 2_500_000_000, &packet);
            let out = &out[1..];
            assert_eq!(&out[..8], &((2 << 32) | (1_u64 << 31)).to_le_bytes());
            assert_eq!((out[8], out[9]), (21, 4));
            assert_eq!(usize::from(u16::from_be_bytes([out[10], out[11]])), out.len());
            assert!(out.len().is_multiple_of(8));
            let len = usize::from(u16::from_be_bytes([out[14], out[15]]));
            let read = IbFrame::parse(&out[HEADER..HEADER + len]).unwrap();
            assert_eq!((read.lrh.vl, read.lrh.sl), (vl, 3));
            assert_eq!((read.lrh.slid, read.lrh.dlid), (Lid(4), Lid(2)));
            assert_eq!(read.grh.is_some(), meta.has_grh());
            assert_eq!((read.transport, read.icrc), (&transport[..], 0x0102_0304));
            assert_eq!(read.vcrc, read.expected_vcrc());
        }
    }
}
