//! Tests of the C libraries, in one program: most run programs of others on them.

mod backend;
mod blocks;
mod common;
mod examples;
mod exports;
mod fabric;
mod files;
mod layout;
mod lint;
mod loaders;
mod netlink;
mod programs;
mod programs_in_c;
mod pyverbs;
mod refusals;
mod sanitizers;
