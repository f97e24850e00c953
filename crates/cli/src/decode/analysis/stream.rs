//! Requests from one address to one queue pair, and their answers.

use std::collections::VecDeque;

use feroce::wire::{NakCode, Service, Syndrome};
use feroce::{Psn, Qpn};
use hdrhistogram::Histogram;

use super::super::dissect::Port;
use super::Fact;
use crate::words;

/// Most requests whose answers are awaited; of more, the oldest are forgotten.
const MAX_WAITING: usize = 4096;

/// The smallest MTU: a READ takes at most one number for each so many bytes.
const LEAST_MTU: u32 = 256;

/// Numbers that a capture may have missed; a larger step is another connection.
const FARTHEST: u32 = 1 << 20;

/// Packets may be this much earlier in the capture than they were sent.
const REORDERED: u32 = 1024;

/// Answers after which a requester that starts over is taken for a new one: all of them would have
/// to be lost behind the capture.
const ENOUGH_ANSWERS: u64 = 3;

/// Why the requester sends something again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    /// The responder said that a packet is missing.
    Missing,
    /// The responder had no receive.
    NotReady,
}

/// A request that has no answer yet.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    psn: Psn,
    number: u64,
    time_ns: Option<u64>,
}

/// A request that the responder refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    pub(super) code: NakCode,
    /// The number of the answer in the file.
    pub(super) number: u64,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) from: Port,
    pub(super) to: Port,
    pub(super) qp: Qpn,
    /// Which of the connections between these ends, from 1.
    pub(super) connection: usize,
    pub(super) service: Service,
    /// Requests, those that were sent again included.
    pub(super) packets: u64,
    /// Payload of requests, and of answers to READs, each byte once.
    pub(super) bytes: u64,
    pub(super) first_ns: Option<u64>,
    pub(super) last_ns: Option<u64>,
    /// The first number.
    start: Psn,
    /// Requests, or packets of a READ, that were answered for the first time.
    answers: u64,
    /// The number that comes next, and how many after it a READ may have taken.
    next: Option<Psn>,
    slack: u32,
    /// The number after the last one that was answered.
    answered: Option<Psn>,
    /// Where the packet is expected that follows one sent again.
    resent: Option<Psn>,
    trouble: Option<Trouble>,
    waiting: VecDeque<Waiting>,
    /// Answers were seen.
    pub(super) is_answered: bool,
    /// From a request to its answer, in nanoseconds.
    pub(super) latency: Histogram<u64>,
    pub(super) sent_again: u64,
    /// How often the requester started over: nothing was answered.
    pub(super) timeouts: u64,
    /// The longest time without an answer before that.
    pub(super) silence_ns: u64,
    pub(super) missing_naks: u64,
    pub(super) not_ready_naks: u64,
    pub(super) notifications: u64,
    /// Requests, and answers, that were marked by congestion on their way.
    pub(super) marks: u64,
    pub(super) answer_marks: u64,
    /// Packets that are not in the capture.
    pub(super) gaps: u64,
    pub(super) refusal: Option<Refusal>,
}

impl Stream {
    pub(super) fn new(fact: &Fact, connection: usize) -> Self {
        Self {
            from: fact.from,
            to: fact.to,
            qp: fact.qp,
            connection,
            service: fact.service,
            packets: 0,
            bytes: 0,
            first_ns: fact.time_ns,
            last_ns: fact.time_ns,
            start: fact.psn,
            answers: 0,
            next: None,
            slack: 0,
            answered: None,
            resent: None,
            trouble: None,
            waiting: VecDeque::new(),
            is_answered: false,
            latency: Histogram::new(2).expect("two digits are possible"),
            sent_again: 0,
            timeouts: 0,
            silence_ns: 0,
            missing_naks: 0,
            not_ready_naks: 0,
            notifications: 0,
            marks: 0,
            answer_marks: 0,
            gaps: 0,
            refusal: None,
        }
    }

    /// Whether a request is of another connection between the same ends, though the capture has no
    /// message of a connection manager that says so.
    pub(super) fn is_over(&self, fact: &Fact) -> bool {
        let (Some(next), Service::Rc | Service::Uc) = (self.next, fact.service) else {
            return false;
        };
        if fact.op.is_middle() || fact.op.is_last() {
            return false;
        }
        if !fact.psn.is_before(next) {
            return fact.psn.since(next) > FARTHEST;
        }
        // A number that was never sent, or the first one after all requests were answered.
        let is_older = fact.psn.is_before(self.start) && self.start.since(fact.psn) > REORDERED;
        let is_done = self.waiting.is_empty() && self.answers >= ENOUGH_ANSWERS;
        is_older || (fact.psn == self.start && is_done)
    }

    /// Whether a request with this number was sent, and has no answer yet.
    pub(super) fn awaits(&self, psn: Psn) -> bool {
        let is_sent = self.next.is_some_and(|next| psn.is_before(next.wrapping_add(self.slack)));
        is_sent && self.waiting.iter().any(|waiting| !waiting.psn.is_after(psn))
    }

    /// Requests without an answer: how many, and the number of the first one in the file.
    pub(super) fn unanswered(&self) -> Option<(usize, u64)> {
        self.waiting.front().map(|first| (self.waiting.len(), first.number))
    }

    /// Takes a request; what is special about it.
    pub(super) fn request(&mut self, fact: &Fact) -> Option<String> {
        let silence =
            self.last_ns.zip(fact.time_ns).map_or(0, |(last, now)| now.saturating_sub(last));
        self.packets += 1;
        self.marks += u64::from(fact.is_marked);
        self.last_ns = fact.time_ns.or(self.last_ns);
        if fact.service == Service::Ud {
            self.bytes += fact.payload_len as u64;
            return None;
        }
        let Some(next) = self.next else {
            self.go_on(fact);
            return None;
        };
        if fact.psn.is_before(next) {
            return Some(self.again(fact, silence));
        }
        let gap = fact.psn.since(next).saturating_sub(self.slack);
        self.gaps += u64::from(gap);
        self.go_on(fact);
        (gap > 0).then(|| format!("{gap} before it not captured"))
    }

    /// A request with a new number.
    fn go_on(&mut self, fact: &Fact) {
        self.bytes += fact.payload_len as u64;
        self.next = Some(fact.psn.next());
        self.slack = fact.reads.map_or(0, |len| len.div_ceil(LEAST_MTU).saturating_sub(1));
        self.resent = None;
        self.wait_for(fact);
    }

    fn wait_for(&mut self, fact: &Fact) {
        if fact.is_awaited && fact.service != Service::Uc {
            if self.waiting.len() == MAX_WAITING {
                self.waiting.pop_front();
            }
            let Fact { psn, number, time_ns, .. } = *fact;
            self.waiting.push_back(Waiting { psn, number, time_ns });
        }
    }

    /// A request that was sent before.
    fn again(&mut self, fact: &Fact, silence: u64) -> String {
        self.sent_again += 1;
        // An answer could be to either of the two, so it tells no time.
        self.waiting.retain(|waiting| waiting.psn.is_before(fact.psn));
        self.wait_for(&Fact { time_ns: None, ..*fact });
        let goes_on = self.resent == Some(fact.psn);
        self.resent = Some(fact.psn.next());
        match self.trouble.take() {
            Some(Trouble::Missing) => "sent again: the NAK asked for it".to_owned(),
            Some(Trouble::NotReady) => "sent again: the receiver was not ready".to_owned(),
            None if goes_on => "sent again".to_owned(),
            None => {
                self.timeouts += 1;
                self.silence_ns = self.silence_ns.max(silence);
                format!("sent again after {} of silence", words::duration(silence))
            }
        }
    }

    /// Takes an answer, or a notification of congestion; what is special about it.
    pub(super) fn answer(&mut self, fact: &Fact) -> Option<String> {
        if fact.service == Service::Cnp {
            self.notifications += 1;
            return None;
        }
        self.answer_marks += u64::from(fact.is_marked);
        self.last_ns = fact.time_ns.or(self.last_ns);
        let is_old = self.answered.is_some_and(|answered| fact.psn.is_before(answered));
        match fact.syndrome {
            Some(Syndrome::RnrNak { .. }) => {
                self.not_ready_naks += 1;
                self.trouble = Some(Trouble::NotReady);
                return None;
            }
            Some(Syndrome::Nak(NakCode::PsnSequence)) => {
                self.missing_naks += 1;
                self.trouble = Some(Trouble::Missing);
                return None;
            }
            Some(Syndrome::Nak(code)) => {
                let refusal = Refusal { code, number: fact.number };
                self.refusal.get_or_insert(refusal);
                self.waiting.clear();
                return None;
            }
            Some(Syndrome::Reserved(_)) => return None,
            Some(Syndrome::Ack { .. }) | None => {}
        }
        let mut last = None;
        // The first answer to a READ tells its time; the others find it gone.
        while let Some(waiting) = self.waiting.pop_front_if(|w| !w.psn.is_after(fact.psn)) {
            last = Some(waiting);
        }
        if is_old {
            return Some("answered before".to_owned());
        }
        self.answers += 1;
        self.bytes += fact.payload_len as u64;
        self.answered = Some(fact.psn.next());
        // A READ takes the numbers of its answers.
        let is_known = self.next.is_some_and(|next| fact.psn.is_before(next));
        if !is_known {
            self.next = Some(fact.psn.next());
        }
        let sent_at = last.and_then(|waiting| waiting.time_ns);
        if let Some((sent, now)) = sent_at.zip(fact.time_ns) {
            // The histogram grows; only a time beyond all captures would not fit.
            let _ = self.latency.record(now.saturating_sub(sent));
        }
        None
    }
}
