//! The protocol of rsockets, whose unit tests stand beside it: the library itself cannot be linked
//! for tests.

#[path = "../src/rsocket/protocol/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the library uses the rest")]
mod protocol;
