//! An InfiniBand subnet: channel adapters, switches, and the agents that answer for them.
//!
//! The subnet is driven, without clocks and sockets: [`Subnet::send`] hands it a management
//! datagram that a program sends at a port, [`Subnet::poll_output`] returns those that reach a
//! program and what has changed at ports, [`Subnet::handle_timeout`] lets time pass. The same calls
//! give the same results.
//!
//! * [`Net`]: nodes and links, read from a file in the format of ibsim and ibnetdiscover.
//! * `directed`: the hops of a directed route (IBTA vol1 14.2.2), alone or between two routes by
//!   LIDs.
//! * `sma`: the subnet management agent of each node, with the checks of the M_Key.
//! * `pma`: the performance management agent, over the counters of [`Counters`].
//! * `notify`: notices to the subnet manager, repeated until it represses them.
//! * [`Switch`]: the forwarding tables, as the subnet manager wrote them.
//! * [`Traffic`]: packets of queue pairs, which follow the same tables on lanes with credits.
//! * `border`: links to nodes that another process runs; [`TrunkMessage`] is what those say.
//! * [`Programs`]: agents of programs behind ports, as the kernel's management layer has them.
//!
//! The subnet manager is a program behind a port, as are all other agents.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod border;
mod counters;
mod data;
mod deliver;
mod directed;
mod links;
mod net;
mod net_text;
mod node;
mod notify;
mod packet;
mod pma;
mod port;
mod programs;
mod signal;
mod sma;
mod subnet;
mod switch;
mod tap;
mod traffic;
mod trap;
mod travel;
mod trunk;

pub use counters::Counters;
pub use data::DataRun;
pub use net::{Net, NetError, NetErrorKind, NetLink, NetNode, NodeKind};
pub use node::Node;
pub use packet::{MadPacket, PortRef};
pub use port::{Change, Port};
pub use programs::{FileId, MadAddress, Programs, RegisterError, Registration, SendError, UserMad};
pub use signal::Signal;
pub use subnet::{Output, Subnet};
pub use switch::{Discard, Forward, Switch};
pub use tap::{Seen, Way};
pub use traffic::{Landing, Part, Receipt, Traffic, TrafficEvent};
pub use trunk::{Hello, MAX_FRAME, TooLong, TrunkMessage, take_frame};
