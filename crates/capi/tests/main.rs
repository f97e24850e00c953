//! Tests of the C libraries, in one program: most run programs of others on them.

mod backend;
mod common;
mod examples;
mod exports;
mod fabric;
mod files;
mod infiniband;
mod layout;
mod lint;
mod loaders;
mod memory_blocks;
mod netlink;
#[path = "../../link/tests/common/netns.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod netns;
mod programs;
mod programs_in_c;
mod pyverbs;
mod recipes;
mod refusals;
mod sanitizers;
