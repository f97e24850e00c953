//! How warnings are said: once for an object, and not for ever more objects.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;

/// Objects of one mistake that are named; who has made it so often has understood.
const NAMED: usize = 8;

/// What a warning is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Rule {
    Depth,
    PeerStarved,
    StarvedHere,
    RefusedLocally,
    RefusedByPeer,
    RefusedHere,
    Pulled,
    Unsignalled,
}

/// What was said already: the objects of each mistake, by numbers that tell them apart.
#[derive(Debug)]
pub(super) struct Said(BTreeMap<Rule, BTreeSet<(usize, u64)>>);

impl Said {
    pub(super) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Says something about an object unless it was said before.
    pub(super) fn once(&mut self, rule: Rule, object: (usize, u64), text: impl FnOnce() -> String) {
        let objects = self.0.entry(rule).or_default();
        if objects.len() > NAMED || !objects.insert(object) {
            return;
        }
        if objects.len() > NAMED {
            say("the same again, on other objects: no more is said about those");
        } else {
            say(&text());
        }
    }
}

/// Writes a line. A program without standard error does not want to know.
pub(super) fn say(text: &str) {
    // In one piece, so that lines of threads and processes do not mix.
    let line = format!("feroce: lint: {text}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
