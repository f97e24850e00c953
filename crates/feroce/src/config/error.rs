//! Settings that could not be understood.

use std::path::PathBuf;
use std::{error, fmt, io};

/// Why a setting could not be understood.
///
/// ```
/// use feroce::{Error, SettingError, Settings};
///
/// let refused = Settings::default().set("gso", "perhaps");
/// let Err(Error::Setting(SettingError::Value { name, value, .. })) = refused else { panic!() };
/// assert_eq!((&*name, &*value), ("gso", "perhaps"));
/// ```
#[non_exhaustive]
#[derive(Debug)]
pub enum SettingError {
    /// The file cannot be read.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The file is not TOML.
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        error: Box<dyn error::Error + Send + Sync>,
    },
    /// No setting has this name.
    Unknown {
        /// The name; that of the variable if it is in the environment.
        name: String,
        /// The name that was probably meant.
        similar: Option<String>,
        /// Where it is.
        place: SettingPlace,
    },
    /// The value is not one that the setting can have.
    Value {
        /// Name of the setting; that of the variable if the value is in the environment.
        name: String,
        /// The value.
        value: String,
        /// What was expected.
        why: String,
        /// Where it is.
        place: SettingPlace,
    },
}

/// Where a setting was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SettingPlace {
    /// In this file.
    File(PathBuf),
    /// In the environment.
    Environment,
    /// In a call of [`Settings::set`](super::Settings::set).
    Call,
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Unknown { place: SettingPlace::File(path), .. }
        | Self::Value { place: SettingPlace::File(path), .. } = self
        {
            write!(f, "{}: ", path.display())?;
        }
        match self {
            Self::Unreadable { path, error } => {
                write!(f, "cannot read the settings in {}: {error}", path.display())
            }
            Self::Syntax { path, error } => write!(f, "{}: {error}", path.display()),
            // As a shell and as TOML have it.
            Self::Unknown { name, similar, place } => {
                let is_variable = *place == SettingPlace::Environment;
                let word = |name: &str| match is_variable {
                    true => name.to_owned(),
                    false => format!("{name:?}"),
                };
                write!(f, "there is no setting {}: ", word(name))?;
                if let Some(similar) = similar {
                    write!(f, "did you mean {}? ", word(similar))?;
                }
                f.write_str("docs/CONFIGURATION.md lists all")
            }
            Self::Value { name, value, why, place: SettingPlace::Environment } => {
                write!(f, "{name}={value:?}: {why}")
            }
            Self::Value { name, value, why, .. } => write!(f, "{name} = {value:?}: {why}"),
        }
    }
}

impl error::Error for SettingError {
    /// The error that a variant wraps.
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Unreadable { error, .. } => Some(error),
            Self::Syntax { error, .. } => Some(&**error),
            Self::Unknown { .. } | Self::Value { .. } => None,
        }
    }
}
