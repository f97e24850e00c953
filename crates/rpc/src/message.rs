//! Requests and replies, as both ends see them.

use std::ops::{Deref, Range};
use std::time::Duration;

use feroce::{Buf, Instant};

/// A call to make.
///
/// ```
/// # use std::time::Duration;
/// use feroce_rpc::Request;
///
/// let request = Request::new(7, b"key").timeout(Duration::from_millis(20));
/// ```
#[derive(Debug)]
pub struct Request {
    pub(crate) method: u32,
    pub(crate) body: RequestBody,
    pub(crate) timeout: Option<Duration>,
    pub(crate) priority: u8,
    pub(crate) into: Option<Buf>,
}

#[derive(Debug)]
pub(crate) enum RequestBody {
    Copied(Vec<u8>),
    Buf(Buf, usize),
}

impl RequestBody {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Copied(bytes) => bytes.len(),
            Self::Buf(_, len) => *len,
        }
    }
}

impl Request {
    /// A call whose body is copied, and at most [`Limits::eager`](crate::Limits) bytes long.
    pub fn new(method: u32, body: &[u8]) -> Self {
        let body = RequestBody::Copied(body.to_vec());
        Self { method, body, timeout: None, priority: 0, into: None }
    }

    /// A call whose body is the beginning of a buffer. If it is long, the server reads it from
    /// there, without a copy; the buffer comes back with the reply.
    pub fn from_buf(method: u32, buf: Buf, len: usize) -> Self {
        let len = len.min(buf.len());
        Self { method, body: RequestBody::Buf(buf, len), timeout: None, priority: 0, into: None }
    }

    /// How long the caller will wait. The server does not begin what it cannot answer in time, and
    /// does not send what is too late; the call then fails with
    /// [`Status::Expired`](crate::Status::Expired). A caller that does not want to wait for a
    /// server that is silent drops the call after that time.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Which of the calls that wait begins first: that with the greatest priority, and of those the
    /// one that has waited longest. Calls wait at the client for their turn in the window, and at
    /// the server for a [handler](crate::ServerOptions::handlers). The default is 0.
    #[must_use]
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// Offers a buffer for the reply. If that is long, the server writes it there, without a copy.
    #[must_use]
    pub fn reply_into(mut self, buf: Buf) -> Self {
        self.into = Some(buf);
        self
    }
}

/// The bytes of a message.
#[derive(Debug)]
pub enum Body {
    /// Where they have arrived, and where they stay until the buffer is dropped: an answer, or
    /// another request, may be made of it.
    Buf(Buf, Range<usize>),
    /// A copy, because all buffers of the connection were in use: a program may keep as many
    /// messages as it likes, and receives are posted nevertheless.
    Copied(Vec<u8>),
}

impl Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Buf(buf, range) => buf.get(range.clone()).unwrap_or_default(),
            Self::Copied(bytes) => bytes,
        }
    }
}

/// The reply to a call: its bytes, and the buffers of the call.
#[derive(Debug)]
pub struct Reply {
    /// The bytes.
    pub body: Body,
    /// The buffer of the request, if it had a long one.
    pub request: Option<Buf>,
    /// The buffer that was offered, if the reply is not in it.
    pub unused: Option<Buf>,
}

impl Deref for Reply {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.body
    }
}

/// A request that has reached the server.
#[derive(Debug)]
pub struct Incoming {
    /// What to do.
    pub method: u32,
    /// When the caller gives up, on the clock of the server's device
    /// ([`Context::now`](feroce::Context::now)).
    pub deadline: Option<Instant>,
    /// How the caller ranks it.
    pub priority: u8,
    /// The bytes.
    pub body: Body,
}

impl Deref for Incoming {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.body
    }
}

/// What a handler answers.
#[derive(Debug)]
pub enum Answer {
    /// Bytes that are copied into the reply.
    Copied(Vec<u8>),
    /// The beginning of a buffer of the server's domain. If it is long, it is written into the
    /// buffer that the caller offered, without a copy.
    Buf(Buf, usize),
}

impl Answer {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            Self::Buf(buf, len) => &buf[..(*len).min(buf.len())],
        }
    }
}

impl From<&[u8]> for Answer {
    fn from(bytes: &[u8]) -> Self {
        Self::Copied(bytes.to_vec())
    }
}
