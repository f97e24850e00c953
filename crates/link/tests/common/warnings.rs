//! Collects what the link warns of.

use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, OnceLock};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").expect("strings take everything");
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().expect("not poisoned").push(message.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// What `f` returns, and the warnings of this thread while it ran.
pub(crate) fn during<R>(f: impl FnOnce() -> R) -> (R, Vec<String>) {
    let warnings = Warnings::default();
    let result = tracing::subscriber::with_default(warnings.clone(), f);
    let list = warnings.0.lock().expect("not poisoned").clone();
    (result, list)
}

/// The warnings of all threads of this process since the first call.
#[allow(dead_code, reason = "tests of other crates use it")]
pub(crate) fn of_all_threads() -> Vec<String> {
    static ALL: OnceLock<Warnings> = OnceLock::new();
    let warnings = ALL.get_or_init(|| {
        let warnings = Warnings::default();
        tracing::subscriber::set_global_default(warnings.clone()).expect("no other subscriber");
        warnings
    });
    warnings.0.lock().expect("not poisoned").clone()
}
