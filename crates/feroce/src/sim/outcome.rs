//! How a run ends.

use std::fmt;
use std::time::Duration;

/// How the program of a host ends: with nothing, or with a result whose error fails the run.
pub trait Outcome {
    /// Why it failed, if it did.
    fn failure(self) -> Option<String>;
}

impl Outcome for () {
    fn failure(self) -> Option<String> {
        None
    }
}

impl<E: fmt::Display> Outcome for Result<(), E> {
    fn failure(self) -> Option<String> {
        self.err().map(|e| e.to_string())
    }
}

/// How a run ended well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    /// How long it took, in the time of the world.
    pub elapsed: Duration,
    /// Packets that reached a host.
    pub delivered: u64,
    /// Packets that were lost.
    pub lost: u64,
    /// A hash of all packets that reached a host, their times and headers: two runs with equal
    /// digests are the same.
    pub digest: u64,
}

/// Why a run did not end well. The message has the seed, which replays the run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorldError {
    pub(super) seed: u64,
    pub(super) at: Duration,
    pub(super) what: Failure,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    Host(String, String),
    Stuck(Vec<String>),
    Limit(Vec<String>),
    Device(String, String),
    Topology(String),
    Nested,
}

impl WorldError {
    /// The seed of the run.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// When it happened, in the time of the world.
    pub fn at(&self) -> Duration {
        self.at
    }
}

impl fmt::Display for WorldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, after {:?}: ", self.seed, self.at)?;
        match &self.what {
            Failure::Host(host, why) => write!(f, "the program of {host} failed: {why}"),
            Failure::Stuck(hosts) => {
                write!(f, "nothing will ever happen again, and {} still wait", hosts.join(", "))
            }
            Failure::Limit(hosts) => {
                write!(f, "the time is up, and {} still run", hosts.join(", "))
            }
            Failure::Device(host, why) => write!(f, "{host} has no device: {why}"),
            Failure::Topology(why) => write!(f, "the topology is wrong: {why}"),
            Failure::Nested => write!(f, "this thread is inside another world"),
        }
    }
}

impl std::error::Error for WorldError {}
