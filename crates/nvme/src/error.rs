//! Errors of hosts.

use std::fmt;

use feroce::cm::CmError;

use crate::wire::{CmReject, RejectStatus, Status};

/// Why a host failed.
#[non_exhaustive]
#[derive(Debug)]
pub enum HostError {
    /// A call of `feroce` failed.
    Rdma(feroce::Error),
    /// The target rejected the connection of a queue.
    Rejected(RejectStatus),
    /// The target refused to associate: no subsystem has that name, or this host may not use it.
    Refused(Status),
    /// A command failed.
    Command(Status),
    /// The connection was lost.
    Lost,
    /// The target does what its specification forbids, or lacks what this host needs.
    Target(&'static str),
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rdma(e) => e.fmt(f),
            Self::Rejected(why) => write!(f, "the target rejects the connection: {why}"),
            Self::Refused(status) if status.code() == Status::CONNECT_PARAMETERS.code() => {
                write!(f, "the target has no subsystem of that name: {status}")
            }
            Self::Refused(status) if status.code() == Status::CONNECT_HOST.code() => {
                write!(f, "the target does not let this host use the subsystem: {status}")
            }
            Self::Refused(status) => write!(f, "the target refuses: {status}"),
            Self::Command(status) => write!(f, "the target answers: {status}"),
            Self::Lost => f.write_str("the connection to the target was lost"),
            Self::Target(what) => write!(f, "the target cannot be used: {what}"),
        }
    }
}

impl std::error::Error for HostError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Rdma(e) => Some(e),
            Self::Refused(status) | Self::Command(status) => Some(status),
            Self::Rejected(_) | Self::Lost | Self::Target(_) => None,
        }
    }
}

impl From<feroce::Error> for HostError {
    fn from(error: feroce::Error) -> Self {
        match error {
            // Reason 28: the program there has rejected it, with private data.
            feroce::Error::Cm(CmError::Rejected { reason, private_data })
                if reason == feroce::cm::RejReason::CONSUMER =>
            {
                Self::Rejected(CmReject::parse(&private_data).0)
            }
            error => Self::Rdma(error),
        }
    }
}

impl From<HostError> for Status {
    fn from(error: HostError) -> Self {
        match error {
            HostError::Command(status) | HostError::Refused(status) => status,
            _ => Self::PATH,
        }
    }
}
