//! Secrets, in the form that `nvme gen-dhchap-key` writes.

use std::fmt;
use std::str::FromStr;

use base64ct::{Base64, Encoding as _};

use super::hash::Hash;
use crate::wire::Nqn;

/// A secret that a host or a subsystem proves to have: `DHHC-1:00:` and 32, 48 or 64 bytes with
/// their CRC-32 in Base64. `nvme gen-dhchap-key` and `feroce disk secret` make new ones.
///
/// ```
/// use feroce_nvme::Secret;
///
/// let secret = Secret::new([7; 32]);
/// assert_eq!(secret.to_text().parse(), Ok(secret));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    bytes: Vec<u8>,
    /// The hash function that makes the key of the bytes and the name of their owner.
    transform: Option<Hash>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Why a text is not a secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SecretError(&'static str);

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(what) = self;
        write!(f, "{what}: `nvme gen-dhchap-key` or `feroce disk secret` makes a secret")
    }
}

impl std::error::Error for SecretError {}

impl Secret {
    /// A new secret, of random bytes of the system.
    pub fn random() -> Self {
        let mut bytes = [0; 32];
        super::random(&mut bytes);
        Self::new(bytes)
    }

    /// A secret of 32 random bytes, which the caller has drawn.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self { bytes: bytes.to_vec(), transform: None }
    }

    /// The text that [`Secret::from_str`] reads. It is not what `Debug` prints, so that secrets do
    /// not get into logs by accident.
    pub fn to_text(&self) -> String {
        let hash = self.transform.map_or(0, Hash::id);
        let bytes = [&self.bytes[..], &crc32(&self.bytes).to_le_bytes()].concat();
        format!("DHHC-1:{hash:02}:{}:", Base64::encode_string(&bytes))
    }

    /// The key with which the owner of this name answers challenges.
    pub(super) fn key(&self, owner: &Nqn) -> Vec<u8> {
        match self.transform {
            None => self.bytes.clone(),
            Some(hash) => {
                hash.hmac(&self.bytes, &[owner.as_str().as_bytes(), b"NVMe-over-Fabrics"])
            }
        }
    }
}

impl FromStr for Secret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        let error = |what| Err(SecretError(what));
        let mut parts = text.trim().split(':');
        let [version, hash, encoded] = [parts.next(), parts.next(), parts.next()];
        if version != Some("DHHC-1") {
            return error("a secret begins with DHHC-1:");
        }
        let transform = match hash {
            Some("00") => None,
            Some("01") => Some(Hash::Sha256),
            Some("02") => Some(Hash::Sha384),
            Some("03") => Some(Hash::Sha512),
            _ => return error("a secret names its hash function: 00, 01, 02 or 03"),
        };
        let Some(Ok(all)) = encoded.map(Base64::decode_vec) else {
            return error("the secret is not in Base64");
        };
        let Some((bytes, crc)) = all.split_last_chunk::<4>() else {
            return error("the secret is too short");
        };
        if ![32, 48, 64].contains(&bytes.len()) {
            return error("a secret has 32, 48 or 64 bytes");
        }
        if u32::from_le_bytes(*crc) != crc32(bytes) {
            return error("the checksum of the secret is wrong, a character may be missing");
        }
        Ok(Self { bytes: bytes.to_vec(), transform })
    }
}

/// CRC-32 of IEEE 802.3.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_ethernet() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn texts_that_are_no_secrets_are_refused() {
        let good = Secret::new([0x5a; 32]).to_text();
        assert_eq!(good.parse::<Secret>(), Ok(Secret::new([0x5a; 32])));
        let middle = good.len() / 2;
        let changed = format!("{}A{}", &good[..middle], &good[middle + 1..]);
        let bad = ["", "DHHC-1", "DHHC-1:00", "DHHC-1:00::", "DHHC-1:04:AAAA:", "DHHC-2:00:AAAA:"];
        for text in bad.into_iter().chain([changed.as_str(), &good[..middle]]) {
            assert!(text.parse::<Secret>().is_err(), "{text}");
        }
    }

    #[test]
    fn logs_show_no_secret() {
        assert_eq!(format!("{:?}", Secret::new([1; 32])), "Secret(..)");
    }
}
