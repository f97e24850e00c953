//! Qualified names of subsystems and hosts: NVMe Base 4.5.

use std::fmt;
use std::str::FromStr;

/// The subsystem that every discovery controller has.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Longest name in bytes.
const LONGEST: usize = 223;

/// A qualified name: `nqn.`, and at most 223 bytes of UTF-8.
///
/// ```
/// use feroce_nvme::wire::Nqn;
///
/// let nqn: Nqn = "nqn.2024-01.com.example:disk".parse()?;
/// assert_eq!(nqn.as_str(), "nqn.2024-01.com.example:disk");
/// assert!("disk".parse::<Nqn>().is_err());
/// # Ok::<(), feroce_nvme::wire::NqnError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Nqn(String);

/// Why a text is no qualified name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NqnError {
    /// It does not begin with `nqn.`.
    Prefix,
    /// It is longer than 223 bytes.
    Length,
    /// It has a control character.
    Character,
}

impl fmt::Display for NqnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prefix => "a qualified name begins with `nqn.`, as nqn.2024-01.com.example:disk",
            Self::Length => "a qualified name has at most 223 bytes",
            Self::Character => "a qualified name has no control characters",
        })
    }
}

impl std::error::Error for NqnError {}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(text: &str) -> Result<Self, NqnError> {
        if !text.starts_with("nqn.") {
            return Err(NqnError::Prefix);
        }
        if text.len() > LONGEST {
            return Err(NqnError::Length);
        }
        if text.chars().any(char::is_control) {
            return Err(NqnError::Character);
        }
        Ok(Self(text.to_owned()))
    }
}

impl Nqn {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of the discovery subsystem.
    pub fn discovery() -> Self {
        Self(DISCOVERY_NQN.to_owned())
    }

    /// Whether it is the name of the discovery subsystem.
    pub fn is_discovery(&self) -> bool {
        self.0 == DISCOVERY_NQN
    }

    /// From a field of 256 bytes that ends with zeros.
    pub(super) fn parse(field: &[u8]) -> Option<Self> {
        let end = field.iter().position(|&b| b == 0)?;
        std::str::from_utf8(field.get(..end)?).ok()?.parse().ok()
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
