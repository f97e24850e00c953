//! Messages of DH-HMAC-CHAP: NVMe Base 8.13.5.

use super::group::Group;
use super::hash::Hash;

/// Greatest message that is accepted: a reply with the greatest hash and group has 1168 bytes.
pub(crate) const MESSAGE: usize = 4096;

/// Kinds of messages: those of all protocols, and those of DH-HMAC-CHAP.
const COMMON: u8 = 0x00;
const DHCHAP: u8 = 0x01;

const NEGOTIATE: u8 = 0x00;
const CHALLENGE: u8 = 0x01;
const REPLY: u8 = 0x02;
const SUCCESS1: u8 = 0x03;
const SUCCESS2: u8 = 0x04;
const FAILURE2: u8 = 0xf0;
const FAILURE1: u8 = 0xf1;

/// The protocol in a negotiation.
const PROTOCOL: u8 = 0x01;

/// Why an authentication failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AuthFailure {
    /// The response is wrong: the secrets differ.
    Failed,
    /// The other end speaks no protocol that this one does.
    Protocol,
    /// The other end wants a secure channel beside.
    SecureChannel,
    /// The other end has no hash function in common.
    Hash,
    /// The other end has no group in common.
    Group,
    /// A message is malformed.
    Payload,
    /// A message came that was not expected.
    Message,
}

impl AuthFailure {
    /// The number of the explanation.
    fn code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Protocol => 2,
            Self::SecureChannel => 3,
            Self::Hash => 4,
            Self::Group => 5,
            Self::Payload => 6,
            Self::Message => 7,
        }
    }

    fn of(code: u8) -> Self {
        match code {
            2 => Self::Protocol,
            3 => Self::SecureChannel,
            4 => Self::Hash,
            5 => Self::Group,
            6 => Self::Payload,
            7 => Self::Message,
            _ => Self::Failed,
        }
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Failed => "the secrets of the two ends differ",
            Self::Protocol => "no authentication protocol in common",
            Self::SecureChannel => "a secure channel is required, which is not built",
            Self::Hash => "no hash function in common",
            Self::Group => "no Diffie-Hellman group in common",
            Self::Payload => "a message is malformed",
            Self::Message => "a message came that was not expected",
        }
    }
}

/// A message. `id` is the number of the transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Message {
    pub(super) id: u16,
    pub(super) body: Body,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Body {
    Negotiate {
        secure_channel: u8,
        hashes: Vec<u8>,
        groups: Vec<u8>,
    },
    Challenge {
        hash: u8,
        group: u8,
        sequence: u32,
        value: Vec<u8>,
        public: Vec<u8>,
    },
    Reply {
        sequence: u32,
        response: Vec<u8>,
        challenge: Option<Vec<u8>>,
        public: Vec<u8>,
    },
    Success1 {
        response: Option<Vec<u8>>,
    },
    Success2,
    /// Of the controller, and of the host.
    Failure1(AuthFailure),
    Failure2(AuthFailure),
}

impl Message {
    /// Reads a message; none if it is malformed. Bytes behind it are ignored, because controllers
    /// fill the buffer of the host with zeros.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let le16 = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let le32 = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let byte = |at: usize| bytes.get(at).copied();
        let part = |at: usize, len: usize| Some(bytes.get(at..)?.get(..len)?.to_vec());
        let id = le16(4)?;
        let body = match (byte(0)?, byte(1)?) {
            (COMMON, NEGOTIATE) => {
                // The first descriptor of the protocol; there is no other protocol.
                let count = usize::from(byte(7)?);
                let starts = (0..count).map(|i| 8 + 64 * i);
                let start = starts.into_iter().find(|&at| byte(at) == Some(PROTOCOL));
                let (hashes, groups) = match start {
                    Some(at) => {
                        let (hashes, groups) = (byte(at + 2)?.min(30), byte(at + 3)?.min(30));
                        (part(at + 4, hashes.into())?, part(at + 34, groups.into())?)
                    }
                    None => (Vec::new(), Vec::new()),
                };
                Body::Negotiate { secure_channel: byte(6)?, hashes, groups }
            }
            (DHCHAP, CHALLENGE) => {
                let (len, public) = (usize::from(byte(6)?), usize::from(le16(10)?));
                Body::Challenge {
                    hash: byte(8)?,
                    group: byte(9)?,
                    sequence: le32(12)?,
                    value: part(16, len)?,
                    public: part(16 + len, public)?,
                }
            }
            (DHCHAP, REPLY) => {
                let (len, public) = (usize::from(byte(6)?), usize::from(le16(10)?));
                let challenge = part(16 + len, len)?;
                Body::Reply {
                    sequence: le32(12)?,
                    response: part(16, len)?,
                    challenge: (byte(8)? & 1 == 1).then_some(challenge),
                    public: part(16 + 2 * len, public)?,
                }
            }
            (DHCHAP, SUCCESS1) => {
                let response = (byte(8)? & 1 == 1).then(|| part(16, byte(6)?.into()));
                Body::Success1 {
                    response: match response {
                        Some(found) => Some(found?),
                        None => None,
                    },
                }
            }
            (DHCHAP, SUCCESS2) => Body::Success2,
            (COMMON, FAILURE1) => Body::Failure1(AuthFailure::of(byte(7)?)),
            (COMMON, FAILURE2) => Body::Failure2(AuthFailure::of(byte(7)?)),
            _ => return None,
        };
        Some(Self { id, body })
    }

    /// Its bytes.
    pub(super) fn emit(&self) -> Vec<u8> {
        let mut out = vec![0; 16];
        out[4..6].copy_from_slice(&self.id.to_le_bytes());
        let kind = match &self.body {
            Body::Negotiate { secure_channel, hashes, groups } => {
                out.resize(8 + 64, 0);
                (out[6], out[7], out[8]) = (*secure_channel, 1, PROTOCOL);
                (out[10], out[11]) = (hashes.len() as u8, groups.len() as u8);
                out[12..12 + hashes.len()].copy_from_slice(hashes);
                out[42..42 + groups.len()].copy_from_slice(groups);
                [COMMON, NEGOTIATE]
            }
            Body::Challenge { hash, group, sequence, value, public } => {
                (out[6], out[8], out[9]) = (value.len() as u8, *hash, *group);
                out[10..12].copy_from_slice(&(public.len() as u16).to_le_bytes());
                out[12..16].copy_from_slice(&sequence.to_le_bytes());
                out.extend(value.iter().chain(public));
                [DHCHAP, CHALLENGE]
            }
            Body::Reply { sequence, response, challenge, public } => {
                (out[6], out[8]) = (response.len() as u8, challenge.is_some().into());
                out[10..12].copy_from_slice(&(public.len() as u16).to_le_bytes());
                out[12..16].copy_from_slice(&sequence.to_le_bytes());
                out.extend(response);
                // There is room for a challenge, also if there is none.
                out.extend(challenge.clone().unwrap_or_else(|| vec![0; response.len()]));
                out.extend(public);
                [DHCHAP, REPLY]
            }
            Body::Success1 { response } => {
                out[8] = response.is_some().into();
                out[6] = response.as_ref().map_or(0, Vec::len) as u8;
                out.extend(response.iter().flatten());
                [DHCHAP, SUCCESS1]
            }
            Body::Success2 => [DHCHAP, SUCCESS2],
            Body::Failure1(why) => {
                (out[6], out[7]) = (1, why.code());
                [COMMON, FAILURE1]
            }
            Body::Failure2(why) => {
                (out[6], out[7]) = (1, why.code());
                [COMMON, FAILURE2]
            }
        };
        if matches!(self.body, Body::Failure1(_) | Body::Failure2(_)) {
            out.truncate(8);
        }
        out[..2].copy_from_slice(&kind);
        out
    }
}

/// What both ends can do.
pub(super) fn offer() -> Body {
    let hashes = Hash::ALL.map(Hash::id).to_vec();
    let groups = Group::ALL.map(Group::id).to_vec();
    Body::Negotiate { secure_channel: 0, hashes, groups }
}
