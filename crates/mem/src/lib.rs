//! Registered memory: the only code that accesses memory which a peer can reach.
//!
//! * [`Region`] is a range of memory. It hands out no reference to its bytes, ever.
//! * [`MrTable`] knows for each key which part of which region it names, which protection domain
//!   and queue pair may use it, and for which operations: memory regions, fast-registered regions,
//!   and memory windows of types 1 and 2.
//! * [`Grant`] is a checked right to touch a range, as a value: no grant, no access. The engine
//!   asks the table for one ([`MrTable::grant_local`], [`MrTable::grant_remote`]) and copies
//!   through it. `Grant<Read>` cannot write and `Grant<Write>` cannot read.
//! * [`Loan`] is the same right for use at once, before the table can change.
//! * [`Source`] is memory of another owner, say another process, from which bytes are copied once.
//! * [`HostMemory`] lets processes of the same host access registered memory by themselves, and
//!   [`Revocation`] is the end of such a right.
//! * [`Dereg`] is a deregistration in progress: once it is quiet, no grant is left.
//!
//! All `unsafe` code is in `region`, behind a safe interface; the memory model it relies on is
//! described on [`Region`]. Nothing here blocks, allocates on the data path, or reads a clock.
//!
//! Rules follow IBTA vol1 10.6 (memory management) and 9.4 (checks made by a responder).
//!
//! ```
//! use feroce_mem::{Access, Iova, MrLimits, MrTable, PdId, Read, Region, Write};
//! use feroce_wire::{Qpn, Rkey};
//!
//! # fn main() -> Result<(), Box<dyn core::error::Error>> {
//! let mut table = MrTable::new(42, MrLimits::default());
//! let region = Region::alloc(4096)?;
//! let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
//! let lkey = table.reg(PdId(1), region.clone(), 0, 4096, Iova::Natural, access)?;
//!
//! // What a responder does with an RDMA WRITE of five bytes:
//! let rkey = Rkey(lkey.0);
//! let grant = table.grant_remote::<Write>(PdId(1), Qpn::new(7), rkey, region.addr(), 5)?;
//! grant.copy_in(0, b"hello")?;
//!
//! // It was not registered for RDMA READ:
//! assert!(table.grant_remote::<Read>(PdId(1), Qpn::new(7), rkey, region.addr(), 5).is_err());
//!
//! let dereg = table.dereg(lkey)?;
//! drop(grant);
//! assert!(dereg.is_quiet());
//! # Ok(())
//! # }
//! ```
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(any(test, feature = "std"))]
extern crate std;

mod access;
mod check;
mod error;
mod grant;
mod host_memory;
mod numbers;
mod region;
mod slots;
mod table;

pub use access::{Access, Atomic, Bytewise, PdId, Read, Right, Write};
pub use check::{LocalMr, Reach};
pub use error::{
    AccessError, BindError, DeregError, FetchError, InvalidAccess, OutOfBounds, OutOfMemory,
    RegError,
};
pub use grant::{Dereg, Grant, Loan};
pub use host_memory::{
    DirectPath, DirectWrite, HostMemory, Revocation, RevocationEpoch, WriteSome,
};
pub use numbers::Numbers;
pub use region::{CrcPrefix, Landing, Region, Source};
pub use slots::Key;
pub use table::{Bind, Iova, MrInfo, MrKind, MrLimits, MrTable, MwType, Rereg};
