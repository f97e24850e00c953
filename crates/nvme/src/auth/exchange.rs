//! The exchange, without I/O: each end gets messages and says what to send.
//!
//! ```text
//!   host                              controller
//!     | negotiate ----------------------> |   hash functions and groups
//!     | <---------------------- challenge |   C1, and a public value
//!     | reply --------------------------> |   HMAC of C1; C2, and a public value
//!     | <----------------------- success1 |   HMAC of C2, if the host wants to know the controller
//!     | success2 -----------------------> |
//! ```
//!
//! Either end sends a failure instead, after which nothing follows.

use super::group::{EXPONENT, Group};
use super::hash::Hash;
use super::message::{AuthFailure, Body, Message, offer};
use super::secret::Secret;
use crate::wire::Nqn;

/// Fills bytes with random ones.
pub(crate) type Random = fn(&mut [u8]);

/// Who authenticates to whom.
#[derive(Clone, Debug)]
pub(crate) struct Parties {
    pub(crate) host: Nqn,
    pub(crate) subsystem: Nqn,
    /// The secret of the host.
    pub(crate) secret: Secret,
    /// The secret of the subsystem, if that must or can prove itself.
    pub(crate) subsystem_secret: Option<Secret>,
}

/// What a response is computed of, besides the key.
struct Proof<'a> {
    hash: Hash,
    /// The secret of the Diffie-Hellman exchange; empty if there is none.
    shared: &'a [u8],
    challenge: &'a [u8],
    sequence: u32,
    id: u16,
}

impl Proof<'_> {
    /// The response of one end, whose name comes first, to the other, or whether it is right.
    fn with<T>(&self, role: &str, names: [&Nqn; 2], done: impl FnOnce(Hash, &[&[u8]]) -> T) -> T {
        let challenge = if self.shared.is_empty() {
            self.challenge.to_vec()
        } else {
            self.hash.hmac(&self.hash.digest(self.shared), &[self.challenge])
        };
        let [first, second] = names.map(|name| name.as_str().as_bytes());
        let (sequence, id) = (self.sequence.to_le_bytes(), self.id.to_le_bytes());
        // Behind the number of the transaction: no secure channel. Between the names: their end.
        let parts: [&[u8]; 8] =
            [&challenge, &sequence, &id, &[0], role.as_bytes(), first, &[0], second];
        done(self.hash, &parts)
    }
}

impl Parties {
    /// The response of the host.
    fn host_response<T>(
        &self,
        proof: &Proof<'_>,
        done: impl FnOnce(Hash, &[u8], &[&[u8]]) -> T,
    ) -> T {
        let key = self.secret.key(&self.host);
        proof.with("HostHost", [&self.host, &self.subsystem], |hash, parts| done(hash, &key, parts))
    }

    /// The response of the controller, if the subsystem has a secret.
    fn controller_response<T>(
        &self,
        proof: &Proof<'_>,
        done: impl FnOnce(Hash, &[u8], &[&[u8]]) -> T,
    ) -> Option<T> {
        let key = self.subsystem_secret.as_ref()?.key(&self.subsystem);
        let names = [&self.subsystem, &self.host];
        Some(proof.with("Controller", names, |hash, parts| done(hash, &key, parts)))
    }
}

fn random<const N: usize>(draw: Random) -> [u8; N] {
    let mut bytes = [0; N];
    draw(&mut bytes);
    bytes
}

/// A number that is not zero.
fn sequence(draw: Random) -> u32 {
    u32::from_le_bytes(random(draw)).max(1)
}

fn bytes(draw: Random, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    draw(&mut bytes);
    bytes
}

/// The end of a host.
#[derive(Debug)]
pub(crate) struct HostAuth {
    parties: Parties,
    draw: Random,
    id: u16,
    /// What the controller must prove: hash, shared secret, challenge and its number.
    pending: Option<(Hash, Vec<u8>, Vec<u8>, u32)>,
}

impl HostAuth {
    pub(crate) fn new(parties: Parties, draw: Random) -> Self {
        Self { parties, draw, id: u16::from_le_bytes(random(draw)), pending: None }
    }

    /// The first message.
    pub(crate) fn negotiate(&self) -> Vec<u8> {
        Message { id: self.id, body: offer() }.emit()
    }

    /// What to tell the controller before giving up.
    pub(crate) fn failure(&self, why: AuthFailure) -> Vec<u8> {
        Message { id: self.id, body: Body::Failure2(why) }.emit()
    }

    fn parse(&self, message: &[u8]) -> Result<Body, AuthFailure> {
        let message = Message::parse(message).ok_or(AuthFailure::Payload)?;
        match message.body {
            Body::Failure1(why) => Err(why),
            body if message.id == self.id => Ok(body),
            _ => Err(AuthFailure::Message),
        }
    }

    /// The reply to a challenge.
    pub(crate) fn reply(&mut self, message: &[u8]) -> Result<Vec<u8>, AuthFailure> {
        let Body::Challenge { hash, group, sequence: number, value, public } =
            self.parse(message)?
        else {
            return Err(AuthFailure::Message);
        };
        let hash = Hash::of(hash).ok_or(AuthFailure::Hash)?;
        let group = Group::of(group).ok_or(AuthFailure::Group)?;
        if value.len() != hash.len() {
            return Err(AuthFailure::Payload);
        }
        let exponent: [u8; EXPONENT] = random(self.draw);
        let shared = group.shared(&public, &exponent).ok_or(AuthFailure::Payload)?;
        let (id, challenge) = (self.id, &value[..]);
        let proof = Proof { hash, shared: &shared, challenge, sequence: number, id };
        let response = self.parties.host_response(&proof, |hash, key, parts| hash.hmac(key, parts));
        let mine = self.parties.subsystem_secret.as_ref().map(|_| bytes(self.draw, hash.len()));
        let sequence = if mine.is_some() { sequence(self.draw) } else { 0 };
        let body = Body::Reply {
            sequence,
            response,
            challenge: mine.clone(),
            public: group.public(&exponent),
        };
        self.pending = mine.map(|mine| (hash, shared, mine, sequence));
        Ok(Message { id, body }.emit())
    }

    /// Judges the end of the exchange; the result is a last message, if there is one.
    pub(crate) fn finish(&mut self, message: &[u8]) -> Result<Option<Vec<u8>>, AuthFailure> {
        let Body::Success1 { response } = self.parse(message)? else {
            return Err(AuthFailure::Message);
        };
        let Some((hash, shared, challenge, sequence)) = self.pending.take() else {
            return Ok(None);
        };
        let response = response.ok_or(AuthFailure::Failed)?;
        let proof = Proof { hash, shared: &shared, challenge: &challenge, sequence, id: self.id };
        let is_right = self
            .parties
            .controller_response(&proof, |hash, key, parts| hash.verify(key, parts, &response));
        match is_right {
            Some(true) => Ok(Some(Message { id: self.id, body: Body::Success2 }.emit())),
            _ => Err(AuthFailure::Failed),
        }
    }
}

/// How far a controller is.
#[derive(Debug)]
enum Stage {
    /// The host has not begun.
    Begin,
    /// The host gets this message next.
    Tells(Message, Box<Self>),
    /// The host answers a challenge.
    Challenged {
        id: u16,
        hash: Hash,
        group: Group,
        exponent: [u8; EXPONENT],
        value: Vec<u8>,
        sequence: u32,
    },
    /// The host must still say that it knows the controller.
    Proven {
        id: u16,
    },
    Done,
    Failed,
}

/// The end of a controller, for one queue.
#[derive(Debug)]
pub(crate) struct ControllerAuth {
    parties: Parties,
    draw: Random,
    stage: Stage,
}

impl ControllerAuth {
    pub(crate) fn new(parties: Parties, draw: Random) -> Self {
        Self { parties, draw, stage: Stage::Begin }
    }

    /// Whether the host has proven who it is, and is content with the controller.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done)
    }

    /// Takes a message of the host.
    pub(crate) fn handle(&mut self, message: &[u8]) {
        let stage = std::mem::replace(&mut self.stage, Stage::Failed);
        let (id, next) = match Message::parse(message) {
            Some(Message { body: Body::Failure2(_), .. }) => return,
            Some(message) => (message.id, self.answer(stage, message)),
            None => (0, Err(AuthFailure::Payload)),
        };
        self.stage = next.unwrap_or_else(|why| {
            Stage::Tells(Message { id, body: Body::Failure1(why) }, Box::new(Stage::Failed))
        });
    }

    /// The next message for the host; none if it is the turn of the host.
    pub(crate) fn tell(&mut self) -> Option<Vec<u8>> {
        match std::mem::replace(&mut self.stage, Stage::Failed) {
            Stage::Tells(message, next) => {
                self.stage = *next;
                Some(message.emit())
            }
            stage => {
                self.stage = stage;
                None
            }
        }
    }

    fn answer(&self, stage: Stage, message: Message) -> Result<Stage, AuthFailure> {
        let id = message.id;
        match (stage, message.body) {
            (Stage::Begin, Body::Negotiate { secure_channel, hashes, groups }) => {
                if secure_channel != 0 {
                    return Err(AuthFailure::SecureChannel);
                }
                self.challenge(id, &hashes, &groups)
            }
            (
                Stage::Challenged { id: of, hash, group, exponent, value, sequence: number },
                Body::Reply { sequence, response, challenge, public },
            ) if of == id => {
                let shared = group.shared(&public, &exponent).ok_or(AuthFailure::Payload)?;
                let shared = &shared[..];
                let proof = Proof { hash, shared, challenge: &value, sequence: number, id };
                let verify =
                    |hash: Hash, key: &[u8], parts: &[&[u8]]| hash.verify(key, parts, &response);
                if !self.parties.host_response(&proof, verify) {
                    return Err(AuthFailure::Failed);
                }
                let Some(challenge) = challenge else {
                    let body = Body::Success1 { response: None };
                    return Ok(Stage::Tells(Message { id, body }, Box::new(Stage::Done)));
                };
                let proof = Proof { hash, shared, challenge: &challenge, sequence, id };
                let response = self
                    .parties
                    .controller_response(&proof, |hash, key, parts| hash.hmac(key, parts));
                // The host wants a proof of a subsystem that has no secret.
                let response = Some(response.ok_or(AuthFailure::Failed)?);
                let body = Body::Success1 { response };
                Ok(Stage::Tells(Message { id, body }, Box::new(Stage::Proven { id })))
            }
            (Stage::Proven { id: of }, Body::Success2) if of == id => Ok(Stage::Done),
            _ => Err(AuthFailure::Message),
        }
    }

    fn challenge(&self, id: u16, hashes: &[u8], groups: &[u8]) -> Result<Stage, AuthFailure> {
        if hashes.is_empty() && groups.is_empty() {
            return Err(AuthFailure::Protocol);
        }
        let hash = Hash::ALL.into_iter().find(|hash| hashes.contains(&hash.id()));
        let hash = hash.ok_or(AuthFailure::Hash)?;
        let group = Group::ALL.into_iter().find(|group| groups.contains(&group.id()));
        let group = group.ok_or(AuthFailure::Group)?;
        let exponent: [u8; EXPONENT] = random(self.draw);
        let (value, sequence) = (bytes(self.draw, hash.len()), sequence(self.draw));
        let body = Body::Challenge {
            hash: hash.id(),
            group: group.id(),
            sequence,
            value: value.clone(),
            public: group.public(&exponent),
        };
        let next = Stage::Challenged { id, hash, group, exponent, value, sequence };
        Ok(Stage::Tells(Message { id, body }, Box::new(next)))
    }
}
