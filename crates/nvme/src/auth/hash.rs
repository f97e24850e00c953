//! Hash functions of the protocol.

use hmac::digest::Digest;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Sha256, Sha384, Sha512};

/// A hash function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

impl Hash {
    /// All of them, the strongest first.
    pub(super) const ALL: [Self; 3] = [Self::Sha512, Self::Sha384, Self::Sha256];

    pub(super) fn of(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.id() == id)
    }

    /// Its number on the wire, and in secrets.
    pub(super) fn id(self) -> u8 {
        match self {
            Self::Sha256 => 1,
            Self::Sha384 => 2,
            Self::Sha512 => 3,
        }
    }

    /// Bytes of a hash.
    pub(super) fn len(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    pub(super) fn digest(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => Sha256::digest(bytes).to_vec(),
            Self::Sha384 => Sha384::digest(bytes).to_vec(),
            Self::Sha512 => Sha512::digest(bytes).to_vec(),
        }
    }

    /// HMAC of parts, one behind the other.
    pub(super) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        match self {
            Self::Sha256 => code::<Hmac<Sha256>>(key, parts).finalize().into_bytes().to_vec(),
            Self::Sha384 => code::<Hmac<Sha384>>(key, parts).finalize().into_bytes().to_vec(),
            Self::Sha512 => code::<Hmac<Sha512>>(key, parts).finalize().into_bytes().to_vec(),
        }
    }

    /// Whether `found` is the HMAC of parts. Takes the same time whichever bytes differ.
    pub(super) fn verify(self, key: &[u8], parts: &[&[u8]], found: &[u8]) -> bool {
        match self {
            Self::Sha256 => code::<Hmac<Sha256>>(key, parts).verify_slice(found).is_ok(),
            Self::Sha384 => code::<Hmac<Sha384>>(key, parts).verify_slice(found).is_ok(),
            Self::Sha512 => code::<Hmac<Sha512>>(key, parts).verify_slice(found).is_ok(),
        }
    }
}

fn code<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> M {
    let code = <M as KeyInit>::new_from_slice(key);
    let mut code = code.unwrap_or_else(|_| unreachable!("HMAC takes keys of every length"));
    parts.iter().for_each(|part| code.update(part));
    code
}
