//! Events of the RDMA connection manager, by their names in `rdma_cma.h`.

/// An event of an id.
#[doc(alias = "rdma_cm_event_type")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum EventKind {
    /// The address was resolved, and the id is bound to a device that reaches it.
    #[doc(alias = "RDMA_CM_EVENT_ADDR_RESOLVED")]
    AddrResolved = 0,
    /// It was not.
    #[doc(alias = "RDMA_CM_EVENT_ADDR_ERROR")]
    AddrError = 1,
    /// The route was found.
    #[doc(alias = "RDMA_CM_EVENT_ROUTE_RESOLVED")]
    RouteResolved = 2,
    /// It was not.
    #[doc(alias = "RDMA_CM_EVENT_ROUTE_ERROR")]
    RouteError = 3,
    /// A peer asks for a connection; the event brings a new id.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
    ConnectRequest = 4,
    /// The peer accepted, on an id without a queue pair: the consumer brings its queue pair up
    /// itself.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_RESPONSE")]
    ConnectResponse = 5,
    /// The connection could not be set up on our side.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_ERROR")]
    ConnectError = 6,
    /// The peer does not answer.
    #[doc(alias = "RDMA_CM_EVENT_UNREACHABLE")]
    Unreachable = 7,
    /// The peer rejected the connection; the status is the reason.
    #[doc(alias = "RDMA_CM_EVENT_REJECTED")]
    Rejected = 8,
    /// The connection is established, or the datagram service is resolved.
    #[doc(alias = "RDMA_CM_EVENT_ESTABLISHED")]
    Established = 9,
    /// The connection is over.
    #[doc(alias = "RDMA_CM_EVENT_DISCONNECTED")]
    Disconnected = 10,
    /// The device was removed, and everything on it.
    #[doc(alias = "RDMA_CM_EVENT_DEVICE_REMOVAL")]
    DeviceRemoval = 11,
    /// The multicast group was joined.
    #[doc(alias = "RDMA_CM_EVENT_MULTICAST_JOIN")]
    MulticastJoin = 12,
    /// It was not, or not any longer.
    #[doc(alias = "RDMA_CM_EVENT_MULTICAST_ERROR")]
    MulticastError = 13,
    /// The address of the device has changed.
    #[doc(alias = "RDMA_CM_EVENT_ADDR_CHANGE")]
    AddrChange = 14,
    /// The queue pair of a connection that is over may be used again.
    #[doc(alias = "RDMA_CM_EVENT_TIMEWAIT_EXIT")]
    TimewaitExit = 15,
    /// The lookup of a name has completed.
    #[doc(alias = "RDMA_CM_EVENT_ADDRINFO_RESOLVED")]
    AddrInfoResolved = 16,
    /// A consumer passed a value to the thread that takes its events.
    #[doc(alias = "RDMA_CM_EVENT_USER")]
    User = 18,
}

impl EventKind {
    /// The name in `rdma_cma.h`.
    #[doc(alias = "rdma_event_str")]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AddrResolved => "RDMA_CM_EVENT_ADDR_RESOLVED",
            Self::AddrError => "RDMA_CM_EVENT_ADDR_ERROR",
            Self::RouteResolved => "RDMA_CM_EVENT_ROUTE_RESOLVED",
            Self::RouteError => "RDMA_CM_EVENT_ROUTE_ERROR",
            Self::ConnectRequest => "RDMA_CM_EVENT_CONNECT_REQUEST",
            Self::ConnectResponse => "RDMA_CM_EVENT_CONNECT_RESPONSE",
            Self::ConnectError => "RDMA_CM_EVENT_CONNECT_ERROR",
            Self::Unreachable => "RDMA_CM_EVENT_UNREACHABLE",
            Self::Rejected => "RDMA_CM_EVENT_REJECTED",
            Self::Established => "RDMA_CM_EVENT_ESTABLISHED",
            Self::Disconnected => "RDMA_CM_EVENT_DISCONNECTED",
            Self::DeviceRemoval => "RDMA_CM_EVENT_DEVICE_REMOVAL",
            Self::MulticastJoin => "RDMA_CM_EVENT_MULTICAST_JOIN",
            Self::MulticastError => "RDMA_CM_EVENT_MULTICAST_ERROR",
            Self::AddrChange => "RDMA_CM_EVENT_ADDR_CHANGE",
            Self::TimewaitExit => "RDMA_CM_EVENT_TIMEWAIT_EXIT",
            Self::AddrInfoResolved => "RDMA_CM_EVENT_ADDRINFO_RESOLVED",
            Self::User => "RDMA_CM_EVENT_USER",
        }
    }
}
