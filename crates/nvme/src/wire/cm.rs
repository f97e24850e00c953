//! Private data of connection requests, replies and rejections: RDMA Transport 3.

use std::fmt;

use super::bytes::{le16, put};

/// What a host asks for when it connects a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CmRequest {
    /// The queue: 0 is the admin queue.
    pub queue: u16,
    /// Entries of the host's receive queue.
    pub recv_size: u16,
    /// Entries of the host's send queue, less one.
    pub send_size: u16,
}

/// What a target answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CmReply {
    /// Entries of the target's receive queue.
    pub recv_size: u16,
}

/// Why a target rejects a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CmReject(pub RejectStatus);

/// Why, as a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RejectStatus {
    /// The private data has a wrong length.
    Length,
    /// The format is not supported.
    Format,
    /// There is no such queue.
    Queue,
    /// The size of the send queue is wrong.
    SendSize,
    /// The size of the receive queue is wrong.
    RecvSize,
    /// There are no resources for the queue.
    Resources,
    /// Another reason.
    Other(u16),
}

impl RejectStatus {
    const fn number(self) -> u16 {
        match self {
            Self::Length => 1,
            Self::Format => 2,
            Self::Queue => 3,
            Self::SendSize => 4,
            Self::RecvSize => 5,
            Self::Resources => 6,
            Self::Other(number) => number,
        }
    }

    fn of(number: u16) -> Self {
        let known = [
            Self::Length,
            Self::Format,
            Self::Queue,
            Self::SendSize,
            Self::RecvSize,
            Self::Resources,
        ];
        let found = known.into_iter().find(|status| status.number() == number);
        found.unwrap_or(Self::Other(number))
    }
}

impl fmt::Display for RejectStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Length => "private data of a wrong length",
            Self::Format => "an unknown format of private data",
            Self::Queue => "an invalid queue",
            Self::SendSize => "an invalid size of the send queue",
            Self::RecvSize => "an invalid size of the receive queue",
            Self::Resources => "no resources for another queue",
            Self::Other(number) => return write!(f, "reason {number}"),
        })
    }
}

impl CmRequest {
    /// Length in bytes.
    pub const LEN: usize = 32;

    /// From the private data of a request.
    pub fn parse(bytes: &[u8]) -> Result<Self, RejectStatus> {
        if bytes.len() < Self::LEN {
            return Err(RejectStatus::Length);
        }
        if le16(bytes, 0) != 0 {
            return Err(RejectStatus::Format);
        }
        let field = |at| le16(bytes, at);
        Ok(Self { queue: field(2), recv_size: field(4), send_size: field(6) })
    }

    /// Its bytes.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        for (at, field) in [(2, self.queue), (4, self.recv_size), (6, self.send_size)] {
            put(&mut out, at, &field.to_le_bytes());
        }
        out
    }
}

impl CmReply {
    /// Length in bytes.
    pub const LEN: usize = 32;

    /// From the private data of a reply; none if the format is unknown.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        (le16(bytes, 0) == 0).then(|| Self { recv_size: le16(bytes, 2) })
    }

    /// Its bytes.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        put(&mut out, 2, &self.recv_size.to_le_bytes());
        out
    }
}

impl CmReject {
    /// From the private data of a rejection.
    pub fn parse(bytes: &[u8]) -> Self {
        Self(RejectStatus::of(le16(bytes, 2)))
    }

    /// Its bytes.
    pub fn emit(&self) -> [u8; 4] {
        let mut out = [0; 4];
        put(&mut out, 2, &self.0.number().to_le_bytes());
        out
    }
}
