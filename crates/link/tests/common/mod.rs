//! What the tests of links share.
#![allow(dead_code, unused_imports, reason = "every test binary uses a part of it")]

pub(crate) mod icmp;
pub(crate) mod netns;
pub(crate) mod sniff;
mod trains;
pub(crate) mod warnings;

pub(crate) use trains::*;
