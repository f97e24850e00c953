//! The transport of devices: the setting, and what a command line chooses instead.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use feroce_engine::TransportKind;

use super::{Settings, Wrong};

/// The index in [`Settings::TRANSPORTS`] of the transport that was chosen, plus one; 0 if none was.
static CHOSEN: AtomicU8 = AtomicU8::new(0);

impl Settings {
    /// The names of the transports.
    pub const TRANSPORTS: [&str; 2] = ["roce", "iwarp"];

    /// From now on, every [`Settings::load`] of this process returns this transport, regardless of
    /// the file and the environment.
    pub fn choose_transport(transport: TransportKind) {
        let number = match transport {
            TransportKind::InfiniBand => 1,
            TransportKind::Iwarp => 2,
        };
        CHOSEN.store(number, Ordering::Relaxed);
    }

    /// The name of the transport.
    pub fn transport_name(&self) -> &'static str {
        match self.engine.transport {
            TransportKind::InfiniBand => Self::TRANSPORTS[0],
            TransportKind::Iwarp => Self::TRANSPORTS[1],
        }
    }
}

/// The chosen transport overrides what the file and the environment say.
pub(super) fn apply_chosen(settings: &mut Settings) {
    match CHOSEN.load(Ordering::Relaxed) {
        0 => {}
        1 => settings.engine.transport = TransportKind::InfiniBand,
        _ => settings.engine.transport = TransportKind::Iwarp,
    }
}

/// The transport with this name.
pub(super) fn parse(value: &str) -> Result<TransportKind, Wrong> {
    match value {
        "roce" => Ok(TransportKind::InfiniBand),
        "iwarp" => Ok(TransportKind::Iwarp),
        _ => Err("expected roce or iwarp".into()),
    }
}

/// How long the host of a peer may be silent; 0 stands for no limit.
pub(super) fn tcp_timeout(value: &str) -> Result<Option<Duration>, Wrong> {
    match value.parse() {
        Ok(0) => Ok(None),
        Ok(seconds @ 1..=86_400) => Ok(Some(Duration::from_secs(seconds))),
        _ => Err("expected seconds, from 1 to 86400, or 0".into()),
    }
}

/// A revision of MPA.
pub(super) fn mpa_revision(value: &str) -> Result<u8, Wrong> {
    match value {
        "1" => Ok(1),
        "2" => Ok(2),
        _ => Err("expected 1 or 2".into()),
    }
}
