//! Errors of the connection manager.

use std::net::IpAddr;
use std::{error, fmt, io};

use feroce_cm::rdma::{BindError, TooLong};
use feroce_cm::{CallError, ListenError};
use feroce_wire::cm::RejReason;

/// Why a call of the connection manager failed.
///
/// ```
/// use feroce::cm::{CmError, Manager, PortSpace};
///
/// let id = Manager::new().create_id(PortSpace::Tcp)?;
/// // An id that connects must resolve the address and the route of its peer first.
/// let refused = id.connect(&Default::default());
/// assert!(matches!(refused, Err(feroce::Error::Cm(CmError::WrongState))));
/// # Ok::<(), feroce::Error>(())
/// ```
#[non_exhaustive]
#[derive(Debug)]
pub enum CmError {
    /// The state of the id does not permit the call.
    WrongState,
    /// The connection is established already.
    Connected,
    /// The port is in use, or no port is free.
    Port(BindError),
    /// More private data than the message has room for.
    PrivateData(TooLong),
    /// There is no route to the address, or none through a device that may be used.
    Route(io::Error),
    /// No device of the manager has the address.
    NoDevice(IpAddr),
    /// The address is not a multicast address.
    NotMulticast(IpAddr),
    /// The id has no queue pair, or not one of the service that the call needs.
    NoQp,
    /// The peer rejected the request.
    Rejected {
        /// The reason that the peer gives.
        reason: RejReason,
        /// Private data of the consumer of the peer.
        private_data: Vec<u8>,
    },
    /// The peer does not answer.
    Unreachable,
    /// The time that the caller gave is over.
    TimedOut,
    /// The port of the device has no subnet manager, which knows the paths of an InfiniBand subnet.
    NoSubnetManager,
    /// The port space of the id does not have the service.
    NoService,
    /// The device is gone.
    DeviceGone,
}

impl fmt::Display for CmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongState => f.write_str("the id is not in a state that allows this call"),
            Self::Connected => f.write_str("the connection is established already"),
            Self::Port(e) => e.fmt(f),
            Self::PrivateData(e) => e.fmt(f),
            Self::Route(e) => {
                write!(f, "no route to the address: {e}: `ip route get` shows what the kernel says")
            }
            Self::NoDevice(ip) => {
                write!(f, "no device has the address {ip}: `feroce devices` lists their addresses")
            }
            Self::NotMulticast(ip) => {
                write!(
                    f,
                    "{ip} is not a multicast address, as those in 224.0.0.0/4 and ff00::/8 are"
                )
            }
            Self::NoQp => f.write_str("the id has no queue pair that can do this"),
            Self::Rejected { reason, .. } => {
                write!(f, "the peer refused: {} ({})", reason.name(), reason.0)?;
                match *reason {
                    RejReason::INVALID_SERVICE_ID => f.write_str(": no program listens there"),
                    _ => Ok(()),
                }
            }
            Self::Unreachable => f.write_str("the peer does not answer"),
            Self::TimedOut => f.write_str(
                "the peer has not answered in the time that the program gives it: is the address \
                 right, is UDP port 4791 open in both directions?",
            ),
            Self::NoSubnetManager => f.write_str(
                "the port has no subnet manager to ask for a path: start one, such as `feroce \
                 fabric run -n HOST -- opensm`",
            ),
            Self::NoService => f.write_str(
                "the port space of the id does not have this service: ids of InfiniBand have those \
                 of every port space but that of IPoIB",
            ),
            Self::DeviceGone => f.write_str("the device is gone"),
        }
    }
}

impl error::Error for CmError {
    /// The error that a variant wraps.
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Port(e) => Some(e),
            Self::PrivateData(e) => Some(e),
            Self::Route(e) => Some(e),
            Self::WrongState
            | Self::Connected
            | Self::NoDevice(_)
            | Self::NotMulticast(_)
            | Self::NoQp
            | Self::Rejected { .. }
            | Self::Unreachable
            | Self::TimedOut
            | Self::NoSubnetManager
            | Self::NoService
            | Self::DeviceGone => None,
        }
    }
}

impl From<CallError> for CmError {
    fn from(e: CallError) -> Self {
        match e {
            CallError::Established => Self::Connected,
            // To the caller, a connection that is gone is in the wrong state as well.
            CallError::WrongState | CallError::Unknown => Self::WrongState,
        }
    }
}

impl From<BindError> for CmError {
    fn from(e: BindError) -> Self {
        Self::Port(e)
    }
}

impl From<ListenError> for CmError {
    fn from(_: ListenError) -> Self {
        Self::Port(BindError::InUse)
    }
}

impl From<TooLong> for CmError {
    fn from(e: TooLong) -> Self {
        Self::PrivateData(e)
    }
}
