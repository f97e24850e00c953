//! How far an id is.

/// How far an id is, in the numbers of Linux.
///
/// ```
/// use feroce::cm::{IdState, Manager, PortSpace};
///
/// let manager = Manager::with([feroce::Device::at(["127.0.0.52".parse()?]).open()?])?;
/// let id = manager.create_id(PortSpace::Tcp)?;
/// assert_eq!(id.state(), Some(IdState::Idle));
/// id.bind("127.0.0.52:0".parse()?)?;
/// assert_eq!(id.state(), Some(IdState::AddrBound));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "rdma_cm_state")]
#[non_exhaustive]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdState {
    /// It is new.
    Idle = 0,
    /// The device is known, and the neighbour on the route to the peer is asked.
    AddrQuery = 1,
    /// The peer's address is known, and the device.
    AddrResolved = 2,
    /// The subnet administration is asked for the route, on InfiniBand.
    RouteQuery = 3,
    /// The route is known.
    RouteResolved = 4,
    /// It is connecting or connected.
    Connect = 5,
    /// The connection has ended.
    Disconnect = 6,
    /// It has an address.
    AddrBound = 7,
    /// It listens.
    Listen = 8,
}
