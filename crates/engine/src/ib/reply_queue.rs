//! The queue of answers that the responder has to send, in the order of the requests.

use alloc::collections::VecDeque;

use feroce_wire::{Msn, NakCode, Psn, Rkey, RnrTimer};

/// An answer to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    /// Everything up to the PSN is done.
    Ack { psn: Psn, msn: Msn },
    /// The request is refused.
    Nak { psn: Psn, msn: Msn, code: NakCode },
    /// The request came too early.
    Rnr { psn: Psn, msn: Msn, timer: RnrTimer },
    /// What an atomic found.
    Atomic { psn: Psn, msn: Msn, original: u64, again: bool },
    /// Bytes of memory.
    Read(ReadReply),
}

/// The answer to a read, or what is left of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ReadReply {
    /// First PSN, and packets sent of it.
    pub(super) psn: Psn,
    pub(super) sent: u32,
    pub(super) msn: Msn,
    pub(super) va: u64,
    pub(super) rkey: Rkey,
    pub(super) len: u32,
    /// Protection domain whose memory it is.
    pub(super) pd: feroce_mem::PdId,
    /// The request had been executed before.
    pub(super) again: bool,
}

impl Reply {
    pub(super) fn psn(&self) -> Psn {
        match self {
            Self::Ack { psn, .. }
            | Self::Nak { psn, .. }
            | Self::Rnr { psn, .. }
            | Self::Atomic { psn, .. } => *psn,
            Self::Read(read) => read.psn.wrapping_add(read.sent),
        }
    }

    /// Whether it reports a cumulative PSN, so that of two in a row the later PSN suffices.
    fn coalesces(&self) -> bool {
        matches!(self, Self::Ack { .. } | Self::Nak { .. } | Self::Rnr { .. })
    }
}

/// Answers waiting to be sent, oldest first. Acknowledgements, good or bad, coalesce, so there are
/// at most twice as many as reads and atomics outstanding, plus one.
#[derive(Debug, Default)]
pub(super) struct Replies {
    pub(super) queue: VecDeque<Reply>,
}

impl Replies {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether the next answer is that to a read.
    #[inline]
    pub(super) fn starts_with_read(&self) -> bool {
        matches!(self.queue.front(), Some(Reply::Read(_)))
    }

    /// Whether the only answer is a positive acknowledgement.
    #[inline]
    pub(super) fn is_bare_ack(&self) -> bool {
        self.queue.len() == 1 && matches!(self.queue.front(), Some(Reply::Ack { .. }))
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }

    /// Reads and atomics that have not been answered completely.
    pub(super) fn outstanding(&self) -> usize {
        self.queue.iter().filter(|r| matches!(r, Reply::Read(_) | Reply::Atomic { .. })).count()
    }

    /// The same without those that are answered again. The peer may have had their answers
    /// already, so they do not count when it asks for something new.
    pub(super) fn outstanding_new(&self) -> usize {
        let is_new = |r: &&Reply| match r {
            Reply::Read(read) => !read.again,
            Reply::Atomic { again, .. } => !again,
            _ => false,
        };
        self.queue.iter().filter(is_new).count()
    }

    /// Appends an answer. True: it took the place of an acknowledgement that it includes.
    #[inline]
    pub(super) fn push(&mut self, reply: Reply) -> bool {
        if reply.coalesces()
            && let Some(last) = self.queue.back_mut().filter(|last| last.coalesces())
        {
            let was_ack = matches!(last, Reply::Ack { .. });
            // The answer to a duplicate may cover less than the answer that waits already.
            if !reply.psn().is_before(last.psn()) {
                *last = reply;
            }
            return was_ack;
        }
        self.queue.push_back(reply);
        false
    }

    /// A request came again: whatever was to answer it or later requests is void, because the
    /// requester starts over from there.
    pub(super) fn cut_from(&mut self, psn: Psn) {
        while self.queue.back().is_some_and(|r| !r.psn().is_before(psn)) {
            self.queue.pop_back();
        }
    }
}
