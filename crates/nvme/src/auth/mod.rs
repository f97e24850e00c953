//! DH-HMAC-CHAP: a host proves that it has a secret, and a subsystem likewise. NVMe Base 8.13.5.

mod exchange;
mod group;
mod hash;
mod message;
mod secret;

pub(crate) use exchange::{ControllerAuth, HostAuth, Parties};
pub use message::AuthFailure;
pub(crate) use message::MESSAGE;
pub use secret::{Secret, SecretError};

/// Words 10 and 11 of Authentication Send and Receive: the protocol, and the length.
pub(crate) fn words(len: usize) -> [u32; 6] {
    [0xe9 << 24 | 1 << 16 | 1 << 8, len as u32, 0, 0, 0, 0]
}

/// The length in a command of this protocol; none if it is of another one, or too long.
pub(crate) fn length(cdw: &[u32; 6]) -> Option<usize> {
    let len = usize::try_from(cdw[1]).ok()?;
    (cdw[0] == words(0)[0] && len > 0 && len <= MESSAGE).then_some(len)
}

/// Fills bytes with random ones of the system.
pub(crate) fn random(bytes: &mut [u8]) {
    // Without them nothing can be kept secret.
    getrandom::fill(bytes).unwrap_or_else(|e| panic!("the system has no random bytes: {e}"));
}

#[cfg(test)]
mod tests;
