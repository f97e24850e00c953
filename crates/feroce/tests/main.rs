//! Tests of the Rust API from outside, in one program.

mod cm_attacks;
mod cm_death;
mod cm_namespaces;
mod common;
mod connections;
mod convert;
mod deregistration;
mod descriptors;
mod idle;
mod inside_device;
mod iwarp;
mod iwarp_cases;
mod iwarp_extensions;
mod iwarp_landing;
mod iwarp_limits;
mod iwarp_malformed;
mod iwarp_peer;
mod iwarp_records;
mod layers;
mod namespaces;
#[path = "../../link/tests/common/netns.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod netns;
mod shards;
mod shorter;
mod stopped;
mod threads;
mod timeouts;
mod together;
mod unpredictable;
mod wakers;
#[path = "../../link/tests/common/warnings.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod warnings;
mod world;
