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

mod channel;
mod connection;
mod error;
mod event;
mod id;
mod kernel;
mod manager;
mod soft;

pub use channel::EventChannel;
pub use connection::{Connection, Connector, Listener, Request};
pub use error::CmError;
pub use event::{Event, UdParam};
#[doc(inline)]
pub use feroce_cm::rdma::{
    BindError, ConnParam, EventKind, IdOption, PortSpace, UDP_QKEY, port_space,
};
#[doc(inline)]
pub use feroce_wire::cm::RejReason;
pub use id::CmId;
pub(crate) use manager::Opener;
pub use manager::{Manager, Timing};
pub(crate) use soft::{Service, next_number};
