//! Packets that the engine holds back: packets to itself, and acknowledgements that may wait.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use feroce_train::{Instant, RxMeta, Train};

/// Packets on their way to ourselves, as bytes, with buffers to reuse.
#[derive(Debug, Default)]
pub(super) struct Loopback {
    pub(super) queue: VecDeque<(RxMeta, usize, Vec<u8>)>,
    pub(super) spare: Vec<Vec<u8>>,
}

impl Loopback {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes the bytes of a train.
    pub(super) fn push(&mut self, train: &Train) {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.resize(train.total_len(), 0);
        let mut at = 0;
        for i in 0..train.count {
            at += train.emit(i, &mut bytes[at..]);
        }
        let meta = RxMeta::from(&train.path);
        self.queue.push_back((meta, train.packet_len(0), bytes));
    }
}

/// Queue pairs that have only an acknowledgement to send, while acknowledgements may wait.
#[derive(Debug, Default)]
pub(super) struct HeldAcks {
    pub(super) held: bool,
    /// Since when the first of them waits.
    pub(super) since: Instant,
    pub(super) slots: Vec<u32>,
}
