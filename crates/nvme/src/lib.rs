//! Remote disks: NVMe over Fabrics on RDMA.
//!
//! A [`Target`] serves disks; the Linux kernel connects to it (`nvme connect -t rdma`) as well as a
//! [`Host`] of this crate does. What a target serves is a [`Namespace`]: a file or a block device
//! ([`FileNamespace`]), memory ([`MemoryNamespace`], [`DirectNamespace`]), or a disk of another
//! target ([`RemoteNamespace`]).
//!
//! * [`wire`]: commands, completions and data structures, to bytes and back.
//! * [`controller`]: what a target answers, without I/O.
//! * [`Target`] and [`Host`]: both ends on connections of `feroce`. Runtime-agnostic.
//!
//! # What is not built
//!
//! Namespaces that appear or change while a host is
//! connected (asynchronous events are held and none is raised), reservations, metadata and
//! protection information, fused commands, and queues of more than 128 entries. Commands that need
//! them end with the status that the specification has for that.
//!
//! A target believes a host its name, unless the subsystem has a [`Secret`] of that host
//! ([`Subsystem::authenticate`]). Nothing is encrypted: serve disks in networks that you trust.

#![forbid(unsafe_code)]

mod auth;
pub mod controller;
mod counters;
mod error;
mod host;
mod namespace;
mod subsystem;
mod target;
mod tasks;
pub mod wire;

pub use auth::{AuthFailure, Secret, SecretError};
pub use error::HostError;
pub use host::{Host, HostOptions, Multipath, PathInfo, RemoteNamespace, discover};
pub use namespace::{DirectNamespace, FileNamespace, Io, MemoryNamespace, Namespace};
pub use subsystem::Subsystem;
pub use target::{Queue, Target, Watch};
