//! What can go wrong.

use std::fmt;

/// How a call went, as a reply says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Status {
    /// The reply is what the caller wants.
    Ok,
    /// The deadline had passed before the reply was there.
    Expired,
    /// The caller has cancelled the call.
    Cancelled,
    /// The server could not read the body of the request, or write that of the reply.
    Transfer,
    /// The request is longer than the server takes.
    RequestTooLong,
    /// The reply is longer than the buffer that the caller offered; its length is not sent.
    ReplyTooLong,
    /// The server shuts down and takes no more requests.
    ShuttingDown,
    /// The server has no such method.
    UnknownMethod,
    /// The body of the request is not what the method takes.
    BadRequest,
    /// The handler's own code, from 0 to 127.
    Handler(u8),
}

impl Status {
    /// The number on the wire.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Expired => 1,
            Self::Cancelled => 2,
            Self::Transfer => 3,
            Self::RequestTooLong => 4,
            Self::ReplyTooLong => 5,
            Self::ShuttingDown => 6,
            Self::UnknownMethod => 7,
            Self::BadRequest => 8,
            Self::Handler(code) => 128 | code,
        }
    }

    /// The status with this number. Numbers of later versions are failures without a name.
    pub(crate) fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Ok,
            1 => Self::Expired,
            2 => Self::Cancelled,
            4 => Self::RequestTooLong,
            5 => Self::ReplyTooLong,
            6 => Self::ShuttingDown,
            7 => Self::UnknownMethod,
            8 => Self::BadRequest,
            128.. => Self::Handler(code & 127),
            _ => Self::Transfer,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok => f.write_str("it succeeded"),
            Self::Expired => f.write_str("its deadline has passed"),
            Self::Cancelled => f.write_str("it was cancelled"),
            Self::Transfer => f.write_str("its body could not be transferred"),
            Self::RequestTooLong => f.write_str("the request is longer than the server takes"),
            Self::ReplyTooLong => {
                f.write_str("the reply needs a longer buffer: offer one with `Request::reply_into`")
            }
            Self::ShuttingDown => f.write_str("the server shuts down"),
            Self::UnknownMethod => f.write_str("the server has no such method"),
            Self::BadRequest => f.write_str("the body is not what the method takes"),
            Self::Handler(code) => write!(f, "the handler refused it with code {code}"),
        }
    }
}

/// What is wrong with a message of a peer. The connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Malformed {
    /// Shorter than its header.
    Short,
    /// Another version of the protocol.
    Version(u8),
    /// Not a kind of message that this end knows.
    Kind(u8),
    /// Flags that this kind of message does not have.
    Flags(u8),
    /// The header tells another length than the message has.
    Length {
        /// Length of the body, as the header tells it.
        told: u32,
        /// Bytes behind the header.
        behind: usize,
    },
    /// It belongs to no call.
    Unknown(u64),
    /// It begins a call that is under way already, or one more than the window has room for.
    Unexpected(u64),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => f.write_str("a message is shorter than its header"),
            Self::Version(version) => write!(f, "the peer speaks version {version}"),
            Self::Kind(kind) => write!(f, "unknown kind of message {kind}"),
            Self::Flags(flags) => write!(f, "a message has flags {flags:#x} that it may not have"),
            Self::Length { told, behind } => {
                write!(f, "a header tells a body of {told} bytes, and {behind} follow")
            }
            Self::Unknown(id) => write!(f, "a message for call {id}, which there is not"),
            Self::Unexpected(id) => {
                write!(f, "call {id} is under way already, or is one more than agreed")
            }
        }
    }
}

impl std::error::Error for Malformed {}

/// Why a server did not accept a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Rejection {
    /// It does not speak the version of this client.
    Version,
    /// It has as many connections as it may have.
    Full,
    /// It shuts down.
    ShuttingDown,
}

impl Rejection {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Version => 1,
            Self::Full => 2,
            Self::ShuttingDown => 3,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        [Self::Version, Self::Full, Self::ShuttingDown].into_iter().find(|r| r.code() == code)
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Version => {
                "the server speaks another version of the protocol: update one of them"
            }
            Self::Full => {
                "the server has all the connections it may have: try again later, or raise \
                 `ServerOptions::connections`"
            }
            Self::ShuttingDown => "the server shuts down: try again when it is back",
        })
    }
}

/// Why a call has no reply, or there is no connection.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The server refused the call.
    Refused(Status),
    /// The connection has ended. Whether the server has executed the call is unknown.
    Disconnected,
    /// The peer does not speak the protocol; the connection has ended.
    Peer(Malformed),
    /// The body is longer than the greatest that a call may have.
    TooLong,
    /// The server answered the connect request with something else than its limits.
    NotAServer,
    /// The server did not accept the connection.
    Rejected(Rejection),
    /// The body of the reply is not what the method returns.
    BadReply,
    /// The connection, or an object for it, could not be made.
    Verbs(feroce::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(status) => write!(f, "the call failed: {status}"),
            Self::Disconnected => f.write_str("the connection has ended before the reply"),
            Self::Peer(malformed) => write!(f, "the peer does not speak the protocol: {malformed}"),
            Self::TooLong => f.write_str("the body is too long: put it into a buffer of a pool"),
            Self::NotAServer => f.write_str("the listener there is not a server of feroce-rpc"),
            Self::Rejected(rejection) => rejection.fmt(f),
            Self::BadReply => f.write_str(
                "the reply is not what the method returns: do both ends have the same definition?",
            ),
            Self::Verbs(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Peer(malformed) => Some(malformed),
            Self::Verbs(e) => Some(e),
            _ => None,
        }
    }
}

impl From<feroce::Error> for Error {
    fn from(e: feroce::Error) -> Self {
        Self::Verbs(e)
    }
}
