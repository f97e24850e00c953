//! Printing warnings: once per object, and for a limited number of objects per rule.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::sync::OnceLock;
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

/// Names the function of the program that called the library.
static CALLER: OnceLock<fn() -> Option<String>> = OnceLock::new();

pub(crate) fn ask_for_callers(caller: fn() -> Option<String>) {
    CALLER.get_or_init(|| caller);
}

thread_local! {
    /// Warnings of this thread that are not printed yet.
    static HELD: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Keeps a warning until the thread has released the lock of the ledger: to name the caller takes
/// locks of the C library.
pub(crate) fn hold(text: &str) {
    // A thread that is ending has no place for it any more.
    if HELD.try_with(|held| held.borrow_mut().push(text.to_owned())).is_err() {
        print(text);
    }
}

/// Prints the warnings that this thread has kept.
pub(crate) fn print_held() {
    let held = HELD.try_with(RefCell::take).unwrap_or_default();
    held.iter().for_each(|text| print_with_caller(text));
}

/// Writes a line with the function of the program that called the library.
pub(crate) fn print_with_caller(text: &str) {
    match CALLER.get().and_then(|caller| caller()) {
        Some(caller) => print(&format!("{text} (called by {caller})")),
        None => print(text),
    }
}

/// Writes a line to standard error. Without standard error the warning is lost.
pub(crate) fn print(text: &str) {
    ANY.store(true, Ordering::Relaxed);
    // With one call, so that lines of several threads and processes do not mix.
    let line = format!("feroce[{}]: lint: {text}\n", std::process::id());
    let _ = std::io::stderr().write_all(line.as_bytes());
}
