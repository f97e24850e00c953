//! Subnet administration (IBTA vol1 15.2): questions about the subnet to its manager.

use crate::layout::layout;
use crate::mad::{MadHeader, Rmpp};

/// Bytes of records in one datagram.
pub const SA_DATA_LEN: usize = 200;

layout! {
    /// A whole datagram: a message, or a segment of one.
    SaMad, SaMadView, 256 {
        /// Header.
        header: MadHeader = 0, 192;
        /// The segment.
        rmpp: Rmpp = 192, 96;
        /// Key of trusted requesters.
        sm_key: u64 = 288, 64;
        /// Words of eight bytes from one record of a table to the next.
        attribute_offset: u16 = 352, 16;
        /// Which fields of the record matter, a bit each.
        component_mask: u64 = 384, 64;
        /// Records.
        data: [u8; 200] = 448, 1600;
    }
}
