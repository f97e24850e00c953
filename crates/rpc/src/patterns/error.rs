//! What can go wrong.

use std::fmt;

use feroce::{PostError, WcStatus};

/// Why a message was not sent or did not come.
#[derive(Debug)]
#[non_exhaustive]
pub enum PatternError {
    /// The peer, or the connection to it, is gone.
    Disconnected,
    /// A work request has failed, and the queue pair with it.
    Failed(WcStatus),
    /// The message is longer than the two ends have agreed on.
    TooLong {
        /// Its length.
        len: usize,
        /// The longest that fits.
        longest: usize,
    },
    /// There is no reply, although the connection seems to be there.
    Silent,
    /// The peer does not speak the protocol of these patterns.
    NotAPeer,
    /// A request was not posted.
    Post(PostError),
    /// The connection, or an object for it, could not be made.
    Verbs(feroce::Error),
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disconnected => f.write_str("the peer has ended the connection"),
            Self::Failed(status) => write!(f, "a work request has failed: {status:?}"),
            Self::TooLong { len, longest } => {
                write!(f, "a message of {len} bytes, and the ends have agreed on {longest} at most")
            }
            Self::Silent => f.write_str("the peer does not reply: is its program stopped?"),
            Self::NotAPeer => f.write_str(
                "the other end does not speak this protocol: start `feroce rpc bench` of the same \
                 version there",
            ),
            Self::Post(e) => e.fmt(f),
            Self::Verbs(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for PatternError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Post(e) => Some(e),
            Self::Verbs(e) => Some(e),
            _ => None,
        }
    }
}

impl From<feroce::Error> for PatternError {
    fn from(e: feroce::Error) -> Self {
        Self::Verbs(e)
    }
}

impl From<PostError> for PatternError {
    fn from(e: PostError) -> Self {
        Self::Post(e)
    }
}
