//! What the library says on standard error.
//!
//! C has `errno` for the reason of a failure, and programs print little of it. So a device that
//! cannot be opened or listed is said in words here, and warnings of the adapter are as well.
//! `FEROCE_LOG` is the least important level to show: `error`, `warn` (the default), `info`,
//! `debug` or `trace`.

use core::fmt::{self, Write as _};
use std::io::Write as _;
use std::sync::{Mutex, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Begins to show what the adapter says. Called before the adapter has anything to say.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let named = std::env::var("FEROCE_LOG").ok().filter(|level| !level.is_empty());
        let level = named.as_deref().map_or(Ok(LevelFilter::WARN), str::parse);
        let shown = level.as_ref().copied().unwrap_or(LevelFilter::WARN);
        let _ = tracing::subscriber::set_global_default(Stderr { level: shown });
        if let (Err(_), Some(named)) = (level, named) {
            tracing::error!(
                "FEROCE_LOG={named:?}: expected error, warn, info, debug or trace; showing warnings"
            );
        }
    });
}

/// Says why a call fails, unless the last call failed for the same reason: programs try again.
pub(crate) fn failure(what: &str, why: &dyn fmt::Display) {
    static LAST: Mutex<String> = Mutex::new(String::new());
    let text = format!("{what}: {why}");
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if *last != text {
        tracing::error!("{text}");
        *last = text;
    }
}

/// Writes a line for every event.
struct Stderr {
    level: LevelFilter,
}

impl Subscriber for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line("feroce: ".to_owned());
        event.record(&mut line);
        line.0.push('\n');
        // One call, so that lines of several processes stay whole. Where standard error is closed
        // there is no one to tell.
        let _ = std::io::stderr().write_all(line.0.as_bytes());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The message of an event, followed by its other fields.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
