//! Messages of several datagrams (IBTA vol1 13.6): the header behind that of the datagram.

use crate::layout::{codes, layout};

codes! {
    /// Kind of a datagram of such a message.
    RmppType(u8) {
        /// Not part of one.
        NONE = 0, "none";
        /// A segment.
        DATA = 1, "data";
        /// Acknowledges segments and opens the window.
        ACK = 2, "ack";
        /// Ends the transfer: the sender or the receiver has no resources.
        STOP = 3, "stop";
        /// Ends the transfer: an error.
        ABORT = 4, "abort";
    }
}

layout! {
    /// Header of a segment or its acknowledgement.
    Rmpp, RmppView, 12 {
        /// Version; 1.
        version: u8 = 0, 8;
        /// Kind.
        kind: RmppType = 8, 8;
        /// How long the receiver takes to answer; 31: unknown.
        resp_time: u8 = 16, 5;
        /// The last segment.
        is_last: bool = 21, 1;
        /// The first segment.
        is_first: bool = 22, 1;
        /// The datagram takes part in a transfer.
        is_active: bool = 23, 1;
        /// Why the transfer ends.
        status: u8 = 24, 8;
        /// Number of the segment, from 1; or of the last one that was received.
        segment: u32 = 32, 32;
        /// In the first segment the bytes of all, in the last one its own; in an acknowledgement
        /// the last segment of the window.
        length_or_window: u32 = 64, 32;
    }
}
