//! Where the values of settings come from.

use std::path::PathBuf;
use std::{env, fs};

use super::{KEYS, SettingError, SettingPlace, Settings, variable_name};
use crate::Error;

/// A setting, and where its value comes from.
///
/// ```
/// let all = feroce::Settings::sources()?;
/// let seed = all.iter().find(|setting| setting.name == "seed").unwrap();
/// assert_eq!((&*seed.variable, seed.default), ("FEROCE_SEED", "random"));
/// # Ok::<(), feroce::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SettingSource {
    /// Name in the file.
    pub name: &'static str,
    /// Variable of the environment.
    pub variable: String,
    /// The value, as it is written in `place`; none if the default applies.
    pub value: Option<String>,
    /// Where the value is: the environment overrides the file.
    pub place: Option<SettingPlace>,
    /// The default, in words.
    pub default: &'static str,
    /// What the setting does, as Markdown.
    pub help: &'static str,
}

impl Settings {
    /// Every setting as [`Settings::load`] finds it, in the order of the documentation.
    pub fn sources() -> Result<Vec<SettingSource>, Error> {
        // Refuses what cannot be understood.
        Self::load()?;
        let file = config_file();
        let table: toml::Table = match &file {
            None => toml::Table::new(),
            Some(path) => {
                let unreadable = |error| SettingError::Unreadable { path: path.clone(), error };
                let text = fs::read_to_string(path).map_err(unreadable)?;
                text.parse().map_err(|error: toml::de::Error| SettingError::Syntax {
                    path: path.clone(),
                    error: error.into(),
                })?
            }
        };
        let sources = KEYS.iter().map(|key| {
            let variable = variable_name(key.name);
            let here = env::var(&variable).ok().filter(|value| !value.is_empty());
            let (value, place) = match (here, table.get(key.name), &file) {
                (Some(value), ..) => (Some(value), Some(SettingPlace::Environment)),
                (None, Some(value), Some(path)) => {
                    (Some(written(value)), Some(SettingPlace::File(path.clone())))
                }
                _ => (None, None),
            };
            let (name, default, help) = (key.name, key.default, key.help);
            SettingSource { name, variable, value, place, default, help }
        });
        Ok(sources.collect())
    }
}

/// A value of the file, as the environment would have it.
pub(super) fn written(value: &toml::Value) -> String {
    match value {
        toml::Value::String(s) => s.clone(),
        toml::Value::Boolean(b) => u8::from(*b).to_string(),
        other => other.to_string(),
    }
}

/// The file to read, if there is one. A file that `FEROCE_CONFIG` names must exist. The working
/// directory is not searched: it may be another user's, and a settings file names files to write.
pub(super) fn config_file() -> Option<PathBuf> {
    if let Some(path) = env::var_os("FEROCE_CONFIG").filter(|p| !p.is_empty()) {
        return Some(path.into());
    }
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".config"));
    let user = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).or_else(home);
    user.map(|dir| dir.join("feroce/feroce.toml")).filter(|path| path.is_file())
}
