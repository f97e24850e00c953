//! Sending and receiving on a stream.

use core::ffi::c_int;

use feroce::Errno;

use super::{Core, Stream};
use crate::endpoint::{End, Endpoint, Source};

/// Length of the first write of a long message, short so that it leaves soon, and the length up to
/// which the following ones double.
const FIRST_WRITE: usize = 1 << 13;
const MAX_WRITE: usize = 1 << 16;

fn blocks(core: &Core, flags: c_int) -> bool {
    !core.settings.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0
}

/// Why the endpoint cannot send any more.
fn refusal(endpoint: &Endpoint) -> Option<Errno> {
    match endpoint.end {
        End::Broken(errno) => Some(Errno(errno)),
        _ if !endpoint.is_writable => Some(Errno(libc::ECONNRESET)),
        _ => None,
    }
}

impl Stream {
    /// Sends all parts, in order; returns how many bytes were sent.
    pub(crate) fn send(&self, parts: &[&[u8]], flags: c_int) -> Result<usize, Errno> {
        let mut limit = FIRST_WRITE;
        self.send_all(&mut Source::new(parts), flags, |endpoint, source| {
            let sent = endpoint.send(source, limit);
            limit = (limit * 2).min(MAX_WRITE);
            Some(sent)
        })
    }

    /// Sends all of `source` with `send`, which returns how many bytes it sent, or none if it can
    /// never send the rest. Returns how many bytes were sent; an error only if none were.
    pub(super) fn send_all(
        &self,
        source: &mut Source<'_>,
        flags: c_int,
        mut send: impl FnMut(&mut Endpoint, &mut Source<'_>) -> Option<usize>,
    ) -> Result<usize, Errno> {
        let all = source.left();
        let blocks = blocks(&self.lock(), flags);
        let sent = self.until(blocks, |core| {
            let mut mappings = std::mem::take(&mut core.mappings);
            let result = match core.connection() {
                Err(errno) => Some(Err(errno)),
                Ok(None) => None,
                Ok(Some(endpoint)) => match refusal(endpoint) {
                    Some(errno) => Some(Err(errno)),
                    // The peer learns of a mapping before it gets data that may speak of it.
                    None if mappings.are_pending() && !mappings.announce(endpoint) => None,
                    None => loop {
                        if source.left() == 0 {
                            break Some(Ok(()));
                        }
                        match send(endpoint, source) {
                            Some(0) => break None,
                            Some(_) => {}
                            None => break Some(Ok(())),
                        }
                    },
                },
            };
            core.mappings = mappings;
            result
        });
        match (sent, all - source.left()) {
            (Err(errno), 0) => Err(errno),
            (_, sent) => Ok(sent),
        }
    }

    /// Fills the parts, in order; returns with how many bytes.
    pub(crate) fn receive(&self, parts: &mut [&mut [u8]], flags: c_int) -> Result<usize, Errno> {
        let all: usize = parts.iter().map(|part| part.len()).sum();
        let peeks = flags & libc::MSG_PEEK != 0;
        let wants_all = flags & libc::MSG_WAITALL != 0 && !peeks;
        let blocks = blocks(&self.lock(), flags);
        let mut taken = 0;
        let received = self.until(blocks, |core| {
            let endpoint = match core.connection() {
                Ok(endpoint) => endpoint?,
                Err(errno) => return Some(Err(errno)),
            };
            if endpoint.receiving.has_data() {
                taken += endpoint.receive(&mut behind(parts, taken), peeks);
            }
            if taken == all || (taken > 0 && !wants_all) {
                return Some(Ok(()));
            }
            match endpoint.end {
                End::Broken(errno) => Some(Err(Errno(errno))),
                _ if !endpoint.is_readable => Some(Ok(())),
                _ => None,
            }
        });
        match (received, taken) {
            (Err(errno), 0) => Err(errno),
            (_, taken) => Ok(taken),
        }
    }
}

/// The parts without their first `skip` bytes.
fn behind<'a>(parts: &'a mut [&mut [u8]], mut skip: usize) -> Vec<&'a mut [u8]> {
    let rest = parts.iter_mut().filter_map(|part| {
        let skipped = skip.min(part.len());
        skip -= skipped;
        let rest = &mut part[skipped..];
        (!rest.is_empty()).then_some(rest)
    });
    rest.collect()
}
