//! What the server has: it echoes, stores values, and has something long to fetch.

use std::collections::BTreeMap;

use crate::perf::clock;

pub(super) const ECHO: u8 = 0;
pub(super) const GET: u8 = 1;
pub(super) const PUT: u8 = 2;
pub(super) const FETCH: u8 = 3;
/// Asks for the processor time of the server, in nanoseconds.
pub(super) const CPU: u8 = 4;

/// Keys of the store, and bytes in a value.
pub(super) const KEYS: u64 = 1000;
pub(super) const VALUE: usize = 100;
/// Bytes to fetch.
pub(super) const BLOB: usize = 1 << 20;
/// Longest message: an echo of as many.
pub(super) const LONGEST: usize = BLOB + 64;

/// What the server has.
pub(super) struct Store {
    values: BTreeMap<u64, Vec<u8>>,
    blob: Vec<u8>,
}

impl Store {
    pub(super) fn new() -> Self {
        Self { values: (0..KEYS).map(|key| (key, vec![0; VALUE])).collect(), blob: vec![1; BLOB] }
    }

    /// Answers a request. One that is malformed has an empty reply.
    pub(super) fn answer(&mut self, request: &[u8], reply: &mut Vec<u8>) {
        let Some((&op, rest)) = request.split_first() else { return };
        let key = rest.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
        match (op, key) {
            (ECHO, _) => reply.extend(rest),
            (GET, Some(key)) => {
                self.values.get(&key).into_iter().for_each(|value| reply.extend(value));
            }
            (PUT, Some(key)) if key < KEYS && rest.len() == 8 + VALUE => {
                self.values.insert(key, rest[8..].to_vec());
            }
            (FETCH, _) => reply.extend(&self.blob),
            (CPU, _) => reply.extend(((clock::cpu_s() * 1e9) as u64).to_be_bytes()),
            _ => {}
        }
    }
}
