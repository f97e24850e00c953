//! Latency: one message at a time.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use feroce::{SendFlags, SendWr};

use super::clock::{self, nanos};
use super::end::{End, Idle};
use super::measure::Sample;
use super::progress::Progress;
use super::side::{Message, Side, Tally, unexpected};
use super::spec::{Amount, Op};
use super::stop;

/// How long an answer may take before it counts as lost.
const OVERDUE: Duration = Duration::from_secs(5);
/// By default, one in so many sends of a ping-pong is signaled.
const SIGNAL_EVERY: u32 = 64;

/// Most looks at memory between two polls.
const MOST_LOOKS: u32 = 256;

/// One side of the exchange.
struct Player<'a> {
    end: &'a mut End,
    side: &'a mut Side,
    size: usize,
    /// One in so many sends is signaled.
    every: u64,
    posted: u64,
    /// The next message.
    next: SendWr,
    /// Sends that are not known to be complete.
    outstanding: u64,
    /// Receives that were consumed, to post again after the next message is sent.
    used: u64,
    /// For WRITEs, the value of the last byte of the message that this side expects.
    mark: u8,
    /// How often to look for it in memory between two polls.
    looks: u32,
    idle: Idle,
}

/// Why a wait ended.
enum Heard {
    Message,
    /// The other side has finished.
    End,
}

impl<'a> Player<'a> {
    fn new(end: &'a mut End, side: &'a mut Side, size: usize) -> Self {
        let every = match end.spec.cq_mod {
            _ if !end.spec.is_ping_pong() => 1,
            0 => SIGNAL_EVERY,
            n => n,
        };
        let every = u64::from(every.min(end.spec.tx_depth));
        let idle = Idle::default();
        let next = end.request(0, 0, size, every == 1);
        let (posted, outstanding, used) = (0, 0, 0);
        let looks = if end.spec.no_poll { MOST_LOOKS } else { 2 };
        Self { end, side, size, every, posted, next, outstanding, used, mark: 0, looks, idle }
    }

    /// Sends one message. If every send is signaled, waits for its completion before anything else,
    /// as perftest does.
    fn send(&mut self) -> anyhow::Result<()> {
        if self.end.spec.op == Op::Write {
            self.put_mark()?;
        }
        self.end.qps[0].post_one(self.next.clone()).context("cannot post")?;
        self.posted += 1;
        self.outstanding += 1;
        let signaled = (self.posted + 1).is_multiple_of(self.every);
        self.next.flags.set(SendFlags::SIGNALED, signaled);
        self.replenish()?;
        if self.every == 1 && self.end.spec.is_ping_pong() { self.settle() } else { Ok(()) }
    }

    /// Writes the mark into the last byte of the next message.
    #[inline(never)]
    fn put_mark(&mut self) -> anyhow::Result<()> {
        let last = self.end.out_at(0) + self.size - 1;
        self.end.mr.write_at(last, &[self.mark])?;
        if self.size <= self.end.spec.inline as usize {
            self.next.data = self.end.payload(0, self.size);
        }
        Ok(())
    }

    /// Polls for completions of sends, which also drives the adapter.
    fn reap(&mut self) -> anyhow::Result<bool> {
        let Some(cqe) = self.end.send_cq.poll_one() else { return Ok(false) };
        self.end.check(&cqe)?;
        self.outstanding = 0;
        Ok(true)
    }

    /// Whether the message of the other side has arrived.
    fn look(&mut self) -> anyhow::Result<bool> {
        match self.end.spec.op {
            Op::Send => {
                let Some(cqe) = self.end.recv_cq.poll_one() else { return Ok(false) };
                self.end.check(&cqe)?;
                self.used += 1;
                Ok(true)
            }
            Op::Write => {
                let last = self.end.in_at(0) + self.size - 1;
                for look in 0..self.looks {
                    let mut byte = [0];
                    self.end.mr.read_at(last, &mut byte)?;
                    if byte[0] == self.mark {
                        // A message that is there at the first look was probably received by the
                        // poll before it, so poll more often (unless `no_poll`). A message that
                        // arrives between two polls needs no poll, so poll less often.
                        self.looks = match look {
                            0 if !self.end.spec.no_poll => (self.looks / 2).max(2),
                            _ => (2 * self.looks).min(MOST_LOOKS),
                        };
                        return Ok(true);
                    }
                }
                if !self.end.spec.no_poll {
                    self.reap()?;
                }
                Ok(false)
            }
            Op::Read | Op::Atomic => self.reap(),
        }
    }

    fn replenish(&mut self) -> anyhow::Result<()> {
        match std::mem::take(&mut self.used) {
            0 => Ok(()),
            used => self.end.post_receives(0, used),
        }
    }

    /// Waits for the message of the other side. `patient`: without a timeout.
    fn wait(&mut self, patient: bool) -> anyhow::Result<Heard> {
        let mut since: Option<Instant> = None;
        let mut turns = 0_u32;
        while !self.look()? {
            turns += 1;
            if turns.is_multiple_of(256) || self.end.spec.events {
                if self.end.spec.no_poll {
                    // A thread with real-time priority that never yields keeps every other thread
                    // of that priority off this processor.
                    std::thread::yield_now();
                }
                match self.side.try_recv()? {
                    Some(Message::Done { .. }) => return Ok(Heard::End),
                    Some(other) => return Err(unexpected(&other)),
                    None => {}
                }
                let started = *since.get_or_insert_with(clock::now);
                if !patient && clock::now() - started > OVERDUE {
                    bail!(
                        "no answer within {OVERDUE:?}: a message was lost, and this service \
                           does not send it again"
                    );
                }
            }
            self.idle.pause(self.end)?;
        }
        self.idle.reset();
        Ok(Heard::Message)
    }

    /// As [`Player::settle_some`], if that is due.
    #[inline]
    fn tidy(&mut self) -> anyhow::Result<()> {
        if self.outstanding < self.every { Ok(()) } else { self.settle_some() }
    }

    /// Keeps the send queue from filling up with unsignaled sends, and the completion queue with
    /// completions of signaled ones.
    fn settle_some(&mut self) -> anyhow::Result<()> {
        if self.end.spec.op == Op::Send || self.end.spec.no_poll {
            return self.settle();
        }
        // `look` polls the send CQ only if the answer is not in memory yet. Where answers always
        // arrive between two polls, this is the only poll that takes completions.
        self.reap().map(|_| ())
    }

    /// Waits for the completion of the last signaled send, if it is due.
    fn settle(&mut self) -> anyhow::Result<()> {
        while self.outstanding >= self.every && !self.reap()? {
            self.idle.pause(self.end)?;
        }
        Ok(())
    }
}

/// The client: measures.
pub(crate) fn lead(
    end: &mut End,
    side: &mut Side,
    size: usize,
    amount: Amount,
    progress: &mut Progress,
) -> anyhow::Result<(Tally, Sample)> {
    let mut sample = Sample::new();
    let halves = if end.spec.is_ping_pong() { 2 } else { 1 };
    let mut player = Player::new(end, side, size);
    let started = clock::now();
    let (target, until) = match amount {
        Amount::Messages(n) => (n, None),
        Amount::Seconds(s) => (u64::MAX, Some(started + Duration::from_secs_f64(s))),
    };
    let (mut before, mut last) = (clock::now(), None);
    while player.posted < target && !stop::requested() && until.is_none_or(|at| before < at) {
        player.mark = player.mark.wrapping_add(1).max(1);
        player.send()?;
        // The bookkeeping of the previous message runs after this send, where it overlaps with the
        // round trip. The clock is read before the send, because the answer may be under way before
        // the posting call returns.
        if let Some((from, to)) = last.take() {
            sample.record(nanos(to - from) / halves);
        }
        progress.tick(player.posted);
        if let Heard::End = player.wait(false)? {
            bail!("the other side stopped");
        }
        let now = clock::now();
        last = Some((before, now));
        before = now;
        player.tidy()?;
    }
    if let Some((from, to)) = last {
        sample.record(nanos(to - from) / halves);
    }
    player.replenish()?;
    let sent = player.posted;
    clear(end, size)?;
    side.send(Message::Done { thread: 0, sent })?;
    let elapsed_ns = nanos(before - started);
    Ok((Tally { sent, elapsed_ns, ..Tally::default() }, sample))
}

/// The server: answers.
pub(crate) fn follow(end: &mut End, side: &mut Side, size: usize) -> anyhow::Result<Tally> {
    if !end.spec.is_ping_pong() {
        return match side.recv()? {
            Message::Done { .. } => Ok(Tally::default()),
            other => Err(unexpected(&other)),
        };
    }
    let mut player = Player::new(end, side, size);
    loop {
        player.mark = player.mark.wrapping_add(1).max(1);
        if let Heard::End = player.wait(true)? {
            break;
        }
        player.send()?;
        player.tidy()?;
    }
    player.replenish()?;
    let sent = player.posted;
    clear(end, size)?;
    Ok(Tally { sent, ..Tally::default() })
}

/// Clears the mark, so that the next measurement does not take it for one of its own.
fn clear(end: &End, size: usize) -> anyhow::Result<()> {
    Ok(end.mr.write_at(end.in_at(0) + size - 1, &[0])?)
}
