//! Errors of hosts.

use std::fmt;

use feroce::cm::CmError;

use crate::auth::AuthFailure;
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
    /// The target, or this host, is not who it claims to be.
    Authentication(AuthFailure),
    /// The target wants this host to prove itself, and the host has no secret.
    NoSecret,
    /// The host wants the target to prove itself, and the target does not authenticate.
    Unproven,
    /// The disk is not the one that it was: it has another identifier, another size of its blocks,
    /// or fewer of them.
    Changed,
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
            Self::Authentication(why) => write!(f, "authentication failed: {}", why.name()),
            Self::NoSecret => f.write_str(
                "the target asks for authentication: give the secret that it has of this host",
            ),
            Self::Unproven => f.write_str(
                "the target does not authenticate, so it cannot prove who it is: let it serve with \
                 secrets, or ask for no proof",
            ),
            Self::Changed => f.write_str(
                "the target has another disk under the same number: a disk in memory that was \
                 started again is empty, for example",
            ),
            Self::Target(what) => write!(f, "the target cannot be used: {what}"),
        }
    }
}

impl std::error::Error for HostError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Rdma(e) => Some(e),
            Self::Refused(status) | Self::Command(status) => Some(status),
            _ => None,
        }
    }
}

impl HostError {
    /// Whether it says nothing of the command, which can be executed by another connection.
    pub(crate) fn is_of_the_path(&self) -> bool {
        matches!(self, Self::Lost | Self::Rdma(_) | Self::Changed)
    }

    /// Whether another attempt to connect would fail the same way.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Refused(status) => status.is_final(),
            Self::Changed | Self::Authentication(_) | Self::NoSecret | Self::Unproven => true,
            _ => false,
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
