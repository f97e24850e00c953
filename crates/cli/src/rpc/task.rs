//! What calls do.

use super::store::{BLOB, ECHO, FETCH, GET, KEYS, PUT, VALUE};

/// What a call does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Task {
    Echo(usize),
    Get,
    Put,
    Fetch,
}

impl Task {
    pub(super) fn all(sizes: Vec<usize>) -> Vec<Self> {
        let rest = [Self::Get, Self::Put, Self::Fetch];
        sizes.into_iter().map(Self::Echo).chain(rest).collect()
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Echo(_) => "echo",
            Self::Get => "get",
            Self::Put => "put",
            Self::Fetch => "fetch",
        }
    }

    /// Bytes that the call moves.
    pub(super) fn size(self) -> usize {
        match self {
            Self::Echo(size) => size,
            Self::Get | Self::Put => VALUE,
            Self::Fetch => BLOB,
        }
    }

    /// The request of the `i`th call.
    pub(super) fn request(self, i: u64, into: &mut Vec<u8>) {
        into.clear();
        let key = (i.wrapping_mul(0x9e37_79b9) % KEYS).to_be_bytes();
        match self {
            Self::Echo(size) => {
                into.push(ECHO);
                into.resize(1 + size, i as u8);
            }
            Self::Get => {
                into.push(GET);
                into.extend(key);
            }
            Self::Put => {
                into.push(PUT);
                into.extend(key);
                into.resize(9 + VALUE, i as u8);
            }
            Self::Fetch => into.push(FETCH),
        }
    }

    /// Whether this is the reply.
    pub(super) fn is_answered(self, i: u64, reply: &[u8]) -> bool {
        match self {
            Self::Echo(size) => reply.len() == size && reply.iter().all(|&b| b == i as u8),
            // All bytes of a value are equal, whichever client has put it last.
            Self::Get => reply.len() == VALUE && reply.iter().all(|&b| b == reply[0]),
            Self::Put => reply.is_empty(),
            Self::Fetch => reply.len() == BLOB && reply[0] == 1 && reply[BLOB - 1] == 1,
        }
    }
}
