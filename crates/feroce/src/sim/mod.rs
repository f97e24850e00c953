//! Programs in virtual time: hosts with a network between them, faults, and a seed that replays
//! every run.
//!
//! A [`World`] has hosts, each an asynchronous function with a device of its own. The program uses
//! the interface that it uses in production, [`Context`](crate::Context) and everything made from
//! it; below it are the same engine and the same connection manager, and a model of a network with
//! rates, delays, queues and losses. Time is virtual: it goes on when no host has anything to do.
//! Everything happens on one thread, in an order that follows from the seed.
//!
//! ```
//! use feroce::cm::{Connector, Listener};
//! use feroce::sim::{Fault, World};
//! use feroce::{Access, SendOp, SendWr, WcStatus};
//! use std::time::Duration;
//!
//! let mut world = World::new(7)?;
//! world.host("server", |host| async move {
//!     let listener = Listener::bind(&host.manager()?, (host.addr_of("server"), 4000).into())?;
//!     let mut peer = listener.accept_async().await?.accept_async().await?;
//!     let memory = peer.pd().alloc_mr(64, Access::LOCAL_WRITE)?;
//!     peer.post_recv([memory.recv(1, 0..64)])?;
//!     assert_eq!(peer.recv_cq().next().await.byte_len, 5);
//!     peer.wait_disconnected_async().await?;
//!     Ok::<_, Box<dyn std::error::Error>>(())
//! });
//! world.host("client", |host| async move {
//!     let to = (host.addr_of("server"), 4000).into();
//!     let mut peer = Connector::new(&host.manager()?).connect_async(to).await?;
//!     let memory = peer.pd().alloc_mr(64, Access::LOCAL_WRITE)?;
//!     memory.write_at(0, b"hello")?;
//!     host.sleep(Duration::from_millis(1)).await;
//!     peer.post_send([SendWr::new(1, SendOp::Send, memory.data(0..5))])?;
//!     assert_eq!(peer.send_cq().next().await.status, WcStatus::Success);
//!     peer.disconnect_async().await?;
//!     Ok::<_, Box<dyn std::error::Error>>(())
//! });
//! world.at(Duration::from_micros(900), Fault::Loss(0.2));
//! let report = world.run()?;
//! assert!(report.elapsed >= Duration::from_millis(1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What differs from a run on a real network: memory has the addresses that the allocator gives it,
//! which follow from no seed; a program that looks at them, at the real time or at random numbers
//! of its own is not replayed. Calls that block panic; each has an asynchronous sibling.

mod fault;
mod host;
mod outcome;
mod port;
mod run;
mod tasks;
mod world;

pub use fault::{Fault, HostId};
/// The model of the network.
pub use feroce_fabric as fabric;
#[doc(no_inline)]
pub use feroce_fabric::{Rate, Topology};
pub use host::{Host, Sleep};
pub use outcome::{Outcome, Report, WorldError};
pub use tasks::Spawned;
pub use world::World;
