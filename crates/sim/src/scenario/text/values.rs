//! Values of a scenario as people write them, and what can be wrong with them.

use feroce_fabric::Rate;
use serde::Deserialize;
use toml::Spanned;

use crate::scenario::units::{parse_chance, parse_rate, parse_size, parse_time};

/// What is wrong, and the byte of the file at which it is.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) at: Option<usize>,
    pub(super) what: String,
}

impl Fault {
    /// At the place of a value.
    pub(super) fn at<T>(place: &Spanned<T>, what: impl Into<String>) -> Self {
        Self { at: Some(place.span().start), what: what.into() }
    }
}

/// Without a place in the file.
impl From<String> for Fault {
    fn from(what: String) -> Self {
        Self { at: None, what }
    }
}

/// A time in picoseconds.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Span(pub(super) u64);

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        let ps = parse_time(&word);
        ps.map(Self).ok_or_else(|| format!("{word:?} is not a time, such as \"1us\""))
    }
}

/// Bytes: a number, or a word with a unit.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "NumberOrWord")]
pub(super) struct Size(pub(super) u64);

/// A number or a word.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a whole number, or a word in quotes")]
pub(super) enum NumberOrWord {
    Number(u64),
    Word(String),
}

impl TryFrom<NumberOrWord> for Size {
    type Error = String;

    fn try_from(value: NumberOrWord) -> Result<Self, String> {
        match value {
            NumberOrWord::Number(bytes) => Ok(Self(bytes)),
            NumberOrWord::Word(word) => {
                let bytes = parse_size(&word);
                bytes.map(Self).ok_or_else(|| format!("{word:?} is not a size, such as \"32MiB\""))
            }
        }
    }
}

/// A rate.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Speed(pub(super) Rate);

impl TryFrom<String> for Speed {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        let rate = parse_rate(&word);
        rate.map(Self).ok_or_else(|| format!("{word:?} is not a rate, such as \"100G\""))
    }
}

/// A probability: a number, or a word that may be in percent.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(try_from = "FractionOrWord")]
pub(super) struct Chance(pub(super) f64);

/// A number, which may be a fraction, or a word.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a number, or a word in quotes, such as \"1%\"")]
enum FractionOrWord {
    Fraction(f64),
    Word(String),
}

impl TryFrom<FractionOrWord> for Chance {
    type Error = String;

    fn try_from(value: FractionOrWord) -> Result<Self, String> {
        match value {
            FractionOrWord::Fraction(value) => Some(value)
                .filter(|value| (0.0..=1.0).contains(value))
                .map(Self)
                .ok_or_else(|| format!("{value} is not between 0 and 1")),
            FractionOrWord::Word(word) => parse_chance(&word)
                .map(Self)
                .ok_or_else(|| format!("{word:?} is not between \"0%\" and \"100%\"")),
        }
    }
}
