//! The scenes: every service and every operation, one at a time.

mod atomics;
mod datagrams;
mod one_sided;
mod trouble;
mod two_sided;
mod windows;

use super::stage::Play;

/// One thing that RDMA does.
#[derive(Debug)]
pub(super) struct Scene {
    /// Name on the command line.
    pub(super) name: &'static str,
    /// Heading.
    pub(super) title: &'static str,
    /// What happens.
    pub(super) story: &'static str,
    /// Words that are new, and what they mean.
    pub(super) terms: &'static [(&'static str, &'static str)],
    /// What to look at in the picture.
    pub(super) notice: &'static str,
    /// Makes it happen.
    pub(super) play: fn(&mut Play<'_>) -> anyhow::Result<()>,
}

/// All of them, in the order in which they make sense.
pub(super) const ALL: &[Scene] = &[
    two_sided::SEND,
    two_sided::SEND_IMM,
    one_sided::WRITE,
    one_sided::WRITE_IMM,
    one_sided::READ,
    atomics::CAS,
    atomics::FAA,
    atomics::ATOMIC_WRITE,
    one_sided::FLUSH,
    windows::WINDOW,
    windows::SEND_INV,
    two_sided::SRQ,
    datagrams::UC,
    datagrams::UD,
    datagrams::MULTICAST,
    trouble::RNR,
    trouble::REFUSED,
];
