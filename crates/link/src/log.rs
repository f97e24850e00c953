//! Messages of carriers for the user.

use std::fmt;
use std::sync::Arc;

use tracing::Level;
use tracing::level_filters::LevelFilter;

/// Takes the messages of a carrier. The owner of a carrier calls it under a lock, and a `tracing`
/// subscriber is foreign code: it may wait, or call the owner. So the owner may want to emit the
/// messages when it has released the lock.
pub trait LogSink: Send + Sync + fmt::Debug {
    /// Takes a message.
    fn log(&self, level: Level, text: String);
}

/// What a carrier logs to.
#[derive(Clone, Debug, Default)]
pub struct Logger {
    /// Without a sink, messages are emitted at once.
    sink: Option<Arc<dyn LogSink>>,
}

impl Logger {
    /// Passes messages on to `sink`.
    pub fn new(sink: Arc<dyn LogSink>) -> Self {
        Self { sink: Some(sink) }
    }

    /// Logs what the user can act on.
    pub fn warn(&self, text: fmt::Arguments<'_>) {
        self.log(Level::WARN, text);
    }

    /// Logs what the user may want to know.
    pub fn info(&self, text: fmt::Arguments<'_>) {
        self.log(Level::INFO, text);
    }

    /// Logs what helps to find faults.
    pub fn debug(&self, text: fmt::Arguments<'_>) {
        self.log(Level::DEBUG, text);
    }

    #[cold]
    fn log(&self, level: Level, text: fmt::Arguments<'_>) {
        // This asks no subscriber, only for the level that the most curious one has set.
        if level > LevelFilter::current() {
            return;
        }
        match &self.sink {
            Some(sink) => sink.log(level, text.to_string()),
            None => emit(level, &text),
        }
    }
}

/// Emits a message as a `tracing` event.
pub fn emit(level: Level, text: &dyn fmt::Display) {
    match level {
        Level::ERROR => tracing::error!("{text}"),
        Level::WARN => tracing::warn!("{text}"),
        Level::INFO => tracing::info!("{text}"),
        Level::DEBUG => tracing::debug!("{text}"),
        Level::TRACE => tracing::trace!("{text}"),
    }
}
