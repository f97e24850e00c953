//! The variables of the environment that are settings.

use std::ffi::OsString;

use super::similar::similar;
use super::{KEYS, SettingError, SettingPlace};

/// What the names of our variables begin with.
const PREFIX: &str = "FEROCE_";

/// Variables that are not settings: the file of the settings, the level of messages, the library of
/// `feroce run`. Names that begin with `FEROCE_TEST_` are those of our tests.
const OTHER_VARIABLES: [&str; 3] = ["FEROCE_CONFIG", "FEROCE_LOG", "FEROCE_LIB"];

pub(super) fn variable_name(key: &str) -> String {
    format!("{PREFIX}{}", key.to_uppercase())
}

/// Refuses a variable that looks like a setting and is none, so that a mistyped setting is not
/// taken for one that has no effect.
pub(super) fn check_variables(names: impl Iterator<Item = OsString>) -> Result<(), SettingError> {
    for name in names {
        let name = name.to_string_lossy();
        if !name.starts_with(PREFIX) || name.starts_with("FEROCE_TEST_") {
            continue;
        }
        let known: Vec<String> = KEYS.iter().map(|key| variable_name(key.name)).collect();
        let known = || known.iter().map(String::as_str).chain(OTHER_VARIABLES);
        if !known().any(|known| known == name) {
            return Err(SettingError::Unknown {
                similar: similar(&name, known()).map(str::to_owned),
                name: name.into_owned(),
                place: SettingPlace::Environment,
            });
        }
    }
    Ok(())
}
