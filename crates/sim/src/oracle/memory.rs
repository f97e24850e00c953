//! Memory and its model.

use std::sync::Arc;

use feroce_mem::Region;

use super::Violation;
use crate::dice::Dice;

/// The region of one node, what the model says it holds, and what of it is in use.
#[derive(Debug)]
pub struct Memory {
    /// The real bytes.
    pub region: Arc<Region>,
    /// The model.
    model: Vec<u8>,
    /// Ranges that are not compared: where messages may have been cut short.
    unknown: Vec<(usize, usize)>,
    /// First byte that was not allocated.
    top: usize,
}

impl Memory {
    /// `len` random bytes.
    ///
    /// # Panics
    /// If there is no memory.
    pub fn new(len: usize, dice: &mut Dice) -> Self {
        let region = Region::alloc(len).expect("memory for a simulated node");
        let mut model = vec![0; len];
        dice.fill(&mut model);
        region.write_at(0, &model).expect("the region has this length");
        Self { region, model, unknown: Vec::new(), top: 0 }
    }

    /// Allocates `len` bytes, aligned to 8 if `aligned`, with a gap before them that no request may
    /// touch. `None`: there is no room.
    pub fn take(&mut self, len: usize, aligned: bool, dice: &mut Dice) -> Option<usize> {
        let mut at = self.top + dice.size(1..=40);
        if aligned {
            at = at.next_multiple_of(8);
        }
        let end = at.checked_add(len)?;
        if end >= self.model.len() {
            return None;
        }
        self.top = end;
        Some(at)
    }

    /// How many bytes were not allocated.
    pub fn left(&self) -> usize {
        self.model.len() - self.top
    }

    /// What the model says is at a range.
    pub fn expected(&self, at: usize, len: usize) -> &[u8] {
        &self.model[at..at + len]
    }

    /// The model learns that `data` was written.
    pub fn expect(&mut self, at: usize, data: &[u8]) {
        self.model[at..at + data.len()].copy_from_slice(data);
    }

    /// The model learns that `data` was scattered over `pieces` in order.
    pub fn expect_scattered(&mut self, pieces: &[(usize, usize)], data: &[u8]) {
        let mut rest = data;
        for &(at, len) in pieces {
            let (now, later) = rest.split_at(len.min(rest.len()));
            self.expect(at, now);
            rest = later;
        }
    }

    /// The word that the model has at `at`.
    pub fn expected_word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.expected(at, 8).try_into().unwrap_or([0; 8]))
    }

    /// Excludes a range from the comparison.
    pub fn forget(&mut self, at: usize, len: usize) {
        self.unknown.push((at, len));
    }

    /// What is really at a range.
    pub fn real(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.read_at(at, &mut bytes).expect("inside the region");
        bytes
    }

    /// What is really at `pieces`, as one run of `len` bytes.
    pub fn real_gathered(&self, pieces: &[(usize, usize)], len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len);
        for &(at, piece) in pieces {
            bytes.extend(self.real(at, piece.min(len - bytes.len())));
        }
        bytes
    }

    /// Compares all of memory with the model.
    pub fn check(&self, node: usize) -> Result<(), Violation> {
        let mut real = self.real(0, self.model.len());
        for &(at, len) in &self.unknown {
            real[at..at + len].copy_from_slice(&self.model[at..at + len]);
        }
        if real == self.model {
            return Ok(());
        }
        let differs = |(i, (a, b)): (usize, (&u8, &u8))| (a != b).then_some(i);
        let wrong: Vec<usize> =
            real.iter().zip(&self.model).enumerate().filter_map(differs).collect();
        let (first, last) = (wrong[0], wrong[wrong.len() - 1]);
        Err(Violation::new(
            "memory",
            format!(
                "node {node}: {} bytes differ from the model, from offset {first:#x} to \
                 {last:#x}; the first is {:#04x} and should be {:#04x}",
                wrong.len(),
                real[first],
                self.model[first],
            ),
        ))
    }

    /// A hash of the real bytes that the model knows of.
    pub fn hash(&self) -> u64 {
        let mut real = self.real(0, self.model.len());
        for &(at, len) in &self.unknown {
            real[at..at + len].fill(0);
        }
        real.chunks(8).fold(0, |hash: u64, chunk| {
            let word = chunk.iter().fold(0, |sum, &b| sum << 8 | u64::from(b));
            (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29)
        })
    }
}
