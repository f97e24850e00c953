//! libibumad: management datagrams of programs on a host of an InfiniBand fabric.
//!
//! The fabric does what the kernel does (`feroce-subnet`), so that this is marshalling: a port that
//! is open is a connection to the fabric, a datagram is a message of it.
//!
//! Without such a fabric there is no adapter to manage.

pub(crate) mod adapter;
pub(crate) mod fields;
pub(crate) mod pairs;
pub(crate) mod port;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod text;

use feroce::Settings;
use feroce_umad::Host;

/// The host that this process runs on.
pub(crate) fn host() -> Option<Host> {
    crate::log::start();
    let settings = match Settings::load() {
        Ok(settings) => settings,
        Err(e) => {
            crate::log::failure("libibumad", &e);
            return None;
        }
    };
    Some(Host { socket: settings.subnet?, name: settings.host? })
}

/// The name of its adapter.
pub(crate) fn adapter_name() -> String {
    let chosen = Settings::load().ok().and_then(|settings| settings.device_name);
    chosen.unwrap_or_else(|| "feroce0".to_owned())
}
