//! Why a received segment ends the stream: what the peer is told (RFC 5040 7, RFC 5041 7), and what
//! the consumer is.

use feroce_mem::AccessError;
use feroce_wire::Qpn;
use feroce_wire::iwarp::fpdu::FramingError;
use feroce_wire::iwarp::rdmap::ReadRequest;
use feroce_wire::iwarp::terminate::Cause;

use crate::hca::event::AsyncEvent;

/// Why a segment was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Failure {
    pub(super) cause: Cause,
    /// The READ request that was refused.
    pub(super) request: Option<ReadRequest>,
    pub(super) notice: Notice,
}

/// The asynchronous event of a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Notice {
    /// None, as with Linux.
    None,
    /// The peer used memory that it may not use so.
    Access,
    /// The peer asked for something invalid.
    Request,
    /// No completion can tell of it.
    Fatal,
}

impl Notice {
    pub(super) fn event(self, qpn: Qpn) -> Option<AsyncEvent> {
        match self {
            Self::None => None,
            Self::Access => Some(AsyncEvent::QpAccessError(qpn)),
            Self::Request => Some(AsyncEvent::QpRequestError(qpn)),
            Self::Fatal => Some(AsyncEvent::QpFatal(qpn)),
        }
    }
}

impl From<Cause> for Failure {
    fn from(cause: Cause) -> Self {
        Self { cause, request: None, notice: Notice::Fatal }
    }
}

impl From<FramingError> for Failure {
    fn from(error: FramingError) -> Self {
        Self::from(match error {
            FramingError::Crc => Cause::MPA_CRC,
            FramingError::Short { .. } => Cause::MPA_MARKERS,
        })
    }
}

/// The payload of a tagged segment cannot be placed.
pub(super) fn tagged(error: AccessError, wraps: bool) -> Failure {
    let (cause, notice) = match error {
        AccessError::BadKey => (Cause::TAGGED_INVALID_STAG, Notice::None),
        AccessError::WrongPd | AccessError::WrongQp => {
            (Cause::TAGGED_NOT_OF_STREAM, Notice::Access)
        }
        AccessError::NotPermitted => (Cause::PROTECTION_ACCESS, Notice::Access),
        _ if wraps => (Cause::TAGGED_WRAP, Notice::Access),
        _ => (Cause::TAGGED_BOUNDS, Notice::Access),
    };
    Failure { cause, request: None, notice }
}

/// Memory cannot be used for an atomic.
pub(super) fn atomic(error: AccessError) -> Failure {
    let (cause, notice) = match error {
        AccessError::BadKey => (Cause::PROTECTION_INVALID_STAG, Notice::None),
        AccessError::WrongPd | AccessError::WrongQp => {
            (Cause::PROTECTION_NOT_OF_STREAM, Notice::Request)
        }
        AccessError::NotPermitted => (Cause::PROTECTION_ACCESS, Notice::Request),
        _ => (Cause::PROTECTION_BOUNDS, Notice::Request),
    };
    Failure { cause, request: None, notice }
}

/// Memory cannot be read for a READ.
pub(super) fn read(error: AccessError, request: ReadRequest) -> Failure {
    let wraps = request.source_offset.checked_add(request.len.into()).is_none();
    let (cause, notice) = match error {
        AccessError::BadKey => (Cause::PROTECTION_INVALID_STAG, Notice::None),
        AccessError::WrongPd | AccessError::WrongQp => {
            (Cause::PROTECTION_NOT_OF_STREAM, Notice::Request)
        }
        AccessError::NotPermitted => (Cause::PROTECTION_ACCESS, Notice::Request),
        _ if wraps => (Cause::PROTECTION_WRAP, Notice::Request),
        _ => (Cause::PROTECTION_BOUNDS, Notice::Request),
    };
    Failure { cause, request: Some(request), notice }
}
