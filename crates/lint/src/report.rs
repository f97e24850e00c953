//! Printing warnings: once per object, and for a limited number of objects per rule.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

/// How many objects are named per rule.
const NAMED: usize = 8;

/// A rule; some rules have several kinds of warnings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Rule {
    Depth,
    PeerStarved,
    StarvedHere,
    RefusedLocally,
    RefusedByPeer,
    RefusedHere,
    Pulled,
    Unsignalled,
    TooLong,
    InvalidThere,
    Unanswered,
    Modify,
    Post,
}

/// The objects that each rule has reported, by numbers that tell them apart.
#[derive(Debug)]
pub(crate) struct Said {
    objects: BTreeMap<Rule, BTreeSet<(usize, u64)>>,
    print: fn(&str),
}

impl Said {
    pub(crate) const fn new(print: fn(&str)) -> Self {
        Self { objects: BTreeMap::new(), print }
    }

    /// Prints a warning about an object, unless the rule has reported the object before.
    pub(crate) fn once(&mut self, rule: Rule, object: (usize, u64), text: impl FnOnce() -> String) {
        let objects = self.objects.entry(rule).or_default();
        if objects.len() > NAMED || !objects.insert(object) {
            return;
        }
        if objects.len() > NAMED {
            (self.print)("the same again, on other objects: no more is said about those");
        } else {
            (self.print)(&text());
        }
    }
}

/// Whether a warning was printed.
static ANY: AtomicBool = AtomicBool::new(false);

/// Whether this process has printed a warning.
pub(crate) fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Writes a line to standard error. Without standard error the warning is lost.
pub(crate) fn print(text: &str) {
    ANY.store(true, Ordering::Relaxed);
    // With one call, so that lines of several threads and processes do not mix.
    let line = format!("feroce[{}]: lint: {text}\n", std::process::id());
    let _ = std::io::stderr().write_all(line.as_bytes());
}
