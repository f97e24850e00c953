//! Settings: how devices are made, from the environment.

use std::env;
use std::sync::Arc;

use feroce_engine::Config;
use feroce_link::Tap;

use crate::Error;

/// Settings of a device. [`Settings::from_env`] reads what a user may say without changing the
/// program.
///
/// | variable | meaning | default |
/// |---|---|---|
/// | `FEROCE_SEED` | fixes everything that is random in the adapter | from the operating system |
/// | `FEROCE_TAIL_PROBE` | `0`: retransmit only when the timeout of the queue pair has passed | `1` |
/// | `FEROCE_GSO` | `0`: no segmentation offload, one packet per call | `1` |
/// | `FEROCE_GRO` | `0`: no merged packets | `1` |
/// | `FEROCE_ICRC` | `strict`: refuse packets whose IPv4 identification is not the expected one | `any` |
#[derive(Clone, Debug)]
pub struct Settings {
    /// What the engine is made with. Seed 0 is replaced by a random one.
    pub engine: Config,
    /// Segmentation offload when sending.
    pub gso: bool,
    /// Merged packets when receiving.
    pub gro: bool,
    /// Refuse packets whose IPv4 identification is not the expected one.
    pub strict_icrc: bool,
    /// Who looks at every packet that the device sends and receives, if anybody does.
    pub tap: Option<Arc<dyn Tap>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { engine: Config::default(), gso: true, gro: true, strict_icrc: false, tap: None }
    }
}

impl Settings {
    /// The defaults, changed by what the environment says.
    pub fn from_env() -> Result<Self, Error> {
        let mut settings = Self::default();
        if let Some(seed) = variable("FEROCE_SEED") {
            settings.engine.seed = parse("FEROCE_SEED", &seed)?;
        }
        settings.engine.tail_probe = switch("FEROCE_TAIL_PROBE", true)?;
        settings.gso = switch("FEROCE_GSO", true)?;
        settings.gro = switch("FEROCE_GRO", true)?;
        settings.strict_icrc = match variable("FEROCE_ICRC").as_deref() {
            None | Some("any") => false,
            Some("strict") => true,
            Some(other) => {
                return Err(Error::Setting(format!("FEROCE_ICRC is {other:?}: any or strict")));
            }
        };
        Ok(settings)
    }
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|v| !v.is_empty())
}

fn parse<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, Error> {
    value.parse().map_err(|_| Error::Setting(format!("{name} is {value:?}: not a number")))
}

fn switch(name: &str, default: bool) -> Result<bool, Error> {
    match variable(name).as_deref() {
        None => Ok(default),
        Some("1" | "on" | "yes") => Ok(true),
        Some("0" | "off" | "no") => Ok(false),
        Some(other) => Err(Error::Setting(format!("{name} is {other:?}: 0 or 1"))),
    }
}
