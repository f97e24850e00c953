//! Connections by address: the RDMA connection manager.
//!
//! [`Listener`] and [`Connector`] make [`Connection`]s:
//!
//! ```
//! use feroce::cm::{Connector, Listener, Manager};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let device = |ip: &str| feroce::Device::at([ip.parse().unwrap()]).open();
//! # let server = Manager::with([device("127.0.0.53")?])?;
//! # let client = Manager::with([device("127.0.0.54")?])?;
//! let listener = Listener::bind(&server, "127.0.0.53:0".parse()?)?;
//! let address = listener.local_addr();
//! let asking = std::thread::spawn(move || Connector::new(&client).connect(address));
//! let there = listener.accept()?.accept()?;
//! let here = asking.join().unwrap()?;
//! assert_eq!(here.id().peer_addr(), there.id().local_addr());
//! # Ok(())
//! # }
//! ```
//!
//! They are built on an interface that corresponds to `librdmacm` call by call: an [`EventChannel`]
//! of a [`Manager`] creates [`CmId`]s and delivers their [`Event`]s.

mod backend_event;
mod channel;
mod connection;
mod connector;
mod error;
mod event;
mod id;
mod kernel;
mod listener;
mod manager;
mod number;
mod plan;
mod soft;
mod state;
mod timing;
mod wait;

pub(crate) use backend_event::BackendEvent;
pub use backend_event::UdParam;
pub use channel::EventChannel;
pub use connection::{Activity, Connection};
pub use connector::{Connecting, Connector};
pub use error::CmError;
pub use event::Event;
#[doc(inline)]
pub use feroce_cm::rdma::{BindError, ConnParam, EventKind, IbAddr, IdOption, PortSpace, UDP_QKEY};
#[doc(inline)]
pub use feroce_wire::cm::RejReason;
pub use id::CmId;
pub use listener::{Accepting, Listener, Request};
pub use manager::Manager;
pub(crate) use number::next_number;
pub use state::IdState;
pub(crate) use timing::Opener;
pub use timing::Timing;
