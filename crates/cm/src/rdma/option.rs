//! Options of ids.

/// An option of an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdOption {
    /// Type of service: traffic class of every packet.
    #[doc(alias = "RDMA_OPTION_ID_TOS")]
    Tos(u8),
    /// Shares the port with other ids that have this option.
    #[doc(alias = "RDMA_OPTION_ID_REUSEADDR")]
    ReuseAddr(bool),
    /// The unspecified IPv6 address does not include IPv4.
    #[doc(alias = "RDMA_OPTION_ID_AFONLY")]
    AfOnly(bool),
    /// ACK timeout of the queue pair: 4.096 us * 2^code.
    #[doc(alias = "RDMA_OPTION_ID_ACK_TIMEOUT")]
    AckTimeout(u8),
}
