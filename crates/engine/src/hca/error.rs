//! Errors of control operations: the caller's fault, and what to do about it.

use core::fmt;

use crate::hca::attr::AttrMask;
use crate::hca::state::QpState;

const OUT_OF_MEMORY: &str =
    "too little memory: ask for fewer entries, or raise the limit (`ulimit -v`, the cgroup)";

/// Why an object could not be made.
///
/// ```
/// # use feroce_engine::CreateError;
/// assert_eq!(
///     CreateError::BeyondLimits("max_send_wr").to_string(),
///     "max_send_wr is beyond the adapter's limit: query the device for it",
/// );
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CreateError {
    /// The adapter has no more of these.
    TooMany,
    /// A size is beyond the adapter's limits.
    BeyondLimits(&'static str),
    /// A protection domain, queue or domain that was named does not exist.
    Unknown(&'static str),
    /// The combination makes no sense.
    Invalid(&'static str),
    /// The transport of the adapter does not have it.
    Unsupported(&'static str),
    /// There is too little memory.
    OutOfMemory,
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany => {
                f.write_str("the adapter holds as many as it may: destroy some, or raise `Limits`")
            }
            Self::BeyondLimits(what) => {
                write!(f, "{what} is beyond the adapter's limit: query the device for it")
            }
            Self::Unknown(what) => write!(f, "there is no such {what}"),
            Self::Invalid(why) | Self::Unsupported(why) => f.write_str(why),
            Self::OutOfMemory => f.write_str(OUT_OF_MEMORY),
        }
    }
}

impl core::error::Error for CreateError {}

/// Why an object could not be destroyed.
///
/// ```
/// # use feroce_engine::DestroyError;
/// assert!(DestroyError::Busy.to_string().contains("destroy what uses it first"));
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DestroyError {
    /// It does not exist.
    Unknown,
    /// Something still uses it.
    Busy,
}

impl fmt::Display for DestroyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "there is no such object",
            Self::Busy => "still in use: destroy what uses it first",
        })
    }
}

impl core::error::Error for DestroyError {}

/// Why a queue pair could not be modified.
///
/// ```
/// # use feroce_engine::{ModifyQpError, QpState};
/// let error = ModifyQpError::NoTransition { from: QpState::Reset, to: QpState::Rts };
/// assert_eq!(error.to_string(), "no transition from Reset to Rts: Reset leads to Init and Err");
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModifyQpError {
    /// It does not exist.
    Unknown,
    /// The state is not the one the caller believed.
    NotInState {
        /// What it is.
        actual: QpState,
    },
    /// There is no way from here to there.
    NoTransition {
        /// State before.
        from: QpState,
        /// State asked for.
        to: QpState,
    },
    /// Attributes do not fit the transition.
    Attributes {
        /// State before.
        from: QpState,
        /// State asked for.
        to: QpState,
        /// Attributes that the transition needs.
        missing: AttrMask,
        /// Attributes that it does not take.
        forbidden: AttrMask,
    },
    /// A value is out of range.
    BadValue(AttrMask, &'static str),
}

impl fmt::Display for ModifyQpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("there is no such queue pair"),
            Self::NotInState { actual } => {
                write!(f, "the queue pair is in {actual:?}, which is not the `cur_state` given")
            }
            Self::NoTransition { from, to } => {
                write!(f, "no transition from {from:?} to {to:?}: {from:?} leads to ")?;
                f.write_str(match from {
                    QpState::Reset => "Init and Err",
                    QpState::Init => "Init, Rtr, Reset and Err",
                    QpState::Rtr => "Rts, Reset and Err",
                    QpState::Rts => "Rts, Sqd, Reset and Err",
                    QpState::Sqd => "Sqd, Rts, Reset and Err",
                    QpState::Sqe => "Reset and Err, and with an unreliable service to Rts",
                    QpState::Err => "Reset",
                })
            }
            Self::Attributes { from, to, missing, forbidden } => {
                write!(f, "{from:?} to {to:?}:")?;
                if !missing.is_empty() {
                    f.write_str(" give also ")?;
                    bitflags::parser::to_writer(missing, &mut *f)?;
                }
                if !forbidden.is_empty() {
                    let comma = if missing.is_empty() { "" } else { "," };
                    write!(f, "{comma} leave out ")?;
                    bitflags::parser::to_writer(forbidden, &mut *f)?;
                }
                Ok(())
            }
            Self::BadValue(attr, why) => {
                bitflags::parser::to_writer(attr, &mut *f)?;
                write!(f, ": {why}")
            }
        }
    }
}

impl core::error::Error for ModifyQpError {}

/// Why a queue could not be resized.
///
/// ```
/// # use feroce_engine::ResizeError;
/// let error = ResizeError::TooSmall { waiting: 3 };
/// assert!(error.to_string().contains("take them out first"));
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResizeError {
    /// It does not exist.
    Unknown,
    /// Larger than the adapter allows, or zero.
    BeyondLimits,
    /// More entries wait than would fit.
    TooSmall {
        /// How many wait.
        waiting: usize,
    },
    /// There is too little memory; the queue is as it was.
    OutOfMemory,
}

impl fmt::Display for ResizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("there is no such queue"),
            Self::BeyondLimits => f.write_str("beyond the adapter's limit, or zero"),
            Self::TooSmall { waiting } => {
                write!(f, "{waiting} entries wait and would not fit: take them out first")
            }
            Self::OutOfMemory => f.write_str(OUT_OF_MEMORY),
        }
    }
}

impl core::error::Error for ResizeError {}
