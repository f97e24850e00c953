//! Commands, completions and data structures of NVMe over Fabrics <-> bytes.
//!
//! Everything is little-endian. Parsing accepts any bytes: it never panics, allocates no more than
//! the input is long, and reads what a short input lacks as zeros. What a value means is judged by
//! the controller, which answers with a [`Status`]. The clauses are those of the NVMe Base
//! Specification 2.0, the NVM Command Set Specification 1.0 and the RDMA Transport Specification
//! 1.0.

mod bytes;
mod cm;
mod command;
mod completion;
mod connect;
mod discovery;
mod health;
mod identify;
mod nqn;
pub mod property;
mod sgl;
mod status;

pub use cm::{CmReject, CmReply, CmRequest, RejectStatus};
pub use command::{
    CAPSULE, Command, DataRange, LogPage, Rw, admin, cns, fabrics, feature, io, log,
};
pub use completion::{COMPLETION, Completion};
pub use connect::{ANY_CONTROLLER, CONNECT_DATA, ConnectData};
pub use discovery::{AddressFamily, DISCOVERY_ENTRY, DiscoveryEntry, DiscoveryLog};
pub use health::{HEALTH, Health};
pub use identify::{IDENTIFY, IdentifyController, IdentifyNamespace, descriptors, namespace_list};
pub use nqn::{DISCOVERY_NQN, Nqn, NqnError};
pub use sgl::{Sgl, SglKind};
pub use status::Status;
