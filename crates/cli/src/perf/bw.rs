//! Bandwidth: one side or both sides keep their send queues full.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use feroce::{Cqe, SendFlags, SendWr};

use super::clock::{self, nanos};
use super::end::{End, Idle};
use super::measure::Sample;
use super::progress::Progress;
use super::side::{Message, Side, Tally, unexpected};
use super::spec::{Amount, Op, Service};
use super::stop;

/// Most completions taken with one poll.
const BATCH: usize = 64;
/// How long to wait for further messages of an unreliable service after the last one.
const STRAGGLERS: Duration = Duration::from_millis(30);

/// The progress of one queue pair.
#[derive(Debug)]
struct Flow {
    /// The work request that it posts repeatedly.
    request: SendWr,
    posted: u64,
    completed: u64,
    /// Messages that the receiver has room for.
    allowed: u64,
    /// The next message to be signaled.
    next_report: u64,
    /// Signaled messages that have not completed, and when they were posted.
    reporting: VecDeque<(u64, Instant)>,
    /// Whether everything has completed.
    is_done: bool,
}

impl Flow {
    /// Posts `request` repeatedly, `allowed` times at first; one in `every` is signaled.
    fn new(request: SendWr, every: u64, allowed: u64) -> Self {
        let (posted, completed, next_report) = (0, 0, every - 1);
        let (reporting, is_done) = (VecDeque::new(), false);
        Self { request, posted, completed, allowed, next_report, reporting, is_done }
    }
}

/// The sending side.
struct Pump {
    every: u64,
    /// Messages per queue pair.
    target: u64,
    until: Option<Instant>,
    flows: Vec<Flow>,
    /// Flows that may have room: there may be many that have none.
    due: Vec<usize>,
    /// How many flows are done.
    done: usize,
    /// Messages of all flows that were posted, and that have completed.
    posted: u64,
    completed: u64,
    started: Instant,
    ended: Option<Instant>,
    cqes: Vec<Cqe>,
}

impl Pump {
    fn new(end: &End, size: usize, amount: Amount) -> Self {
        let started = clock::now();
        let (target, until) = match amount {
            Amount::Messages(n) => (n, None),
            Amount::Seconds(s) => (u64::MAX, Some(started + Duration::from_secs_f64(s))),
        };
        let every = end.spec.signal_every(size);
        let allowed = if end.spec.needs_credits() { end.spec.rx_depth.into() } else { u64::MAX };
        let count = end.qps.len();
        let flow = |i| Flow::new(end.request(i, 0, size, false), every, allowed);
        Self {
            every,
            target,
            until,
            flows: (0..count).map(flow).collect(),
            due: (0..count).collect(),
            done: 0,
            posted: 0,
            completed: 0,
            started,
            ended: None,
            cqes: Vec::with_capacity(BATCH),
        }
    }

    /// The receiver of a flow has room for more messages.
    fn allow(&mut self, i: usize, receives: u64) {
        let allowed = &mut self.flows[i].allowed;
        *allowed = allowed.saturating_add(receives);
        self.due.push(i);
    }

    /// Posts as many messages as there is room for and takes completions. True if it posted or took
    /// any.
    fn turn(&mut self, end: &mut End, sample: &mut Sample) -> anyhow::Result<bool> {
        if self.ended.is_some() {
            return Ok(false);
        }
        let now = clock::now();
        let is_over = stop::requested() || self.until.is_some_and(|until| now >= until);
        if is_over && self.target > 0 {
            self.target = 0;
            self.due = (0..self.flows.len()).collect();
        }
        let mut busy = false;
        let mut due = std::mem::take(&mut self.due);
        for i in due.drain(..) {
            while self.post(end, i, now)? {
                busy = true;
            }
            let flow = &mut self.flows[i];
            if !flow.is_done && flow.posted >= self.target && flow.completed == flow.posted {
                flow.is_done = true;
                self.done += 1;
            }
        }
        self.due = due;
        busy |= self.take(end, sample)?;
        if self.done == self.flows.len() {
            self.ended = Some(clock::now());
        }
        Ok(busy)
    }

    /// Posts messages on queue pair `i`.
    fn post(&mut self, end: &mut End, i: usize, now: Instant) -> anyhow::Result<bool> {
        let (depth, list) = (u64::from(end.spec.tx_depth), u64::from(end.spec.post_list));
        let flow = &mut self.flows[i];
        let closing = flow.posted >= self.target;
        let first = flow.posted;
        let n = if closing {
            // If the last message was not signaled, post one more that is, so that its completion
            // shows that the queue has drained.
            let reports = flow.reporting.back().is_some_and(|(last, _)| last + 1 == first);
            u64::from(flow.completed < first && !reports)
        } else {
            let room = depth - (first - flow.completed);
            // Post whole lists, to make few calls; shorter ones only at the end.
            let left = self.target - first;
            if room < list.min(left).min(depth) { 0 } else { list.min(left).min(room) }
        };
        let n = n.min(flow.allowed - first);
        if n == 0 {
            return Ok(false);
        }
        let (every, target) = (self.every, self.target);
        let Flow { request, reporting, next_report, .. } = flow;
        let wr = |seq: u64| {
            let is_turn = seq == *next_report;
            *next_report += if is_turn { every } else { 0 };
            let reports = is_turn || closing || seq + 1 == target;
            if reports {
                reporting.push_back((seq, now));
            }
            SendWr {
                wr_id: (i as u64) << 48 | seq,
                flags: if reports { SendFlags::SIGNALED } else { SendFlags::empty() },
                ..request.clone()
            }
        };
        end.qps[i].post_send((first..first + n).map(wr)).context("cannot post")?;
        flow.posted += n;
        self.posted += n;
        Ok(true)
    }

    /// Takes completions of sends.
    fn take(&mut self, end: &End, sample: &mut Sample) -> anyhow::Result<bool> {
        self.cqes.clear();
        let taken = end.send_cq.poll(&mut self.cqes);
        if taken == 0 {
            return Ok(false);
        }
        let now = clock::now();
        for cqe in &self.cqes {
            end.check(cqe)?;
            let i = (cqe.wr_id >> 48) as usize;
            let Some(flow) = self.flows.get_mut(i) else { continue };
            if let Some((seq, posted)) = flow.reporting.pop_front() {
                self.completed += seq + 1 - flow.completed;
                flow.completed = seq + 1;
                self.due.push(i);
                sample.record(nanos(now - posted));
            }
        }
        Ok(true)
    }
}

/// The receiving side.
struct Sink {
    received: u64,
    /// Receives to post again, by queue pair.
    owed: Vec<u64>,
    batch: u64,
    cqes: Vec<Cqe>,
    last: Instant,
}

impl Sink {
    fn new(end: &End) -> Self {
        Self {
            received: 0,
            owed: vec![0; end.qps.len()],
            batch: u64::from(end.spec.rx_depth).div_ceil(4),
            cqes: Vec::with_capacity(BATCH),
            last: clock::now(),
        }
    }

    fn turn(&mut self, end: &mut End, side: &mut Side) -> anyhow::Result<bool> {
        self.cqes.clear();
        if end.recv_cq.poll(&mut self.cqes) == 0 {
            return Ok(false);
        }
        for cqe in &self.cqes {
            end.check(cqe)?;
            let i = cqe.wr_id as usize;
            self.owed[i] += 1;
            if self.owed[i] >= self.batch {
                let receives = std::mem::take(&mut self.owed[i]);
                end.post_receives(i, receives)?;
                if end.spec.needs_credits() {
                    side.send(Message::Credits { qp: i, receives })?;
                }
            }
        }
        self.received += self.cqes.len() as u64;
        self.last = clock::now();
        Ok(true)
    }

    /// Posts the receives that are missing.
    fn refill(&mut self, end: &mut End) -> anyhow::Result<()> {
        for (i, owed) in self.owed.iter_mut().enumerate() {
            end.post_receives(i, std::mem::take(owed))?;
        }
        Ok(())
    }

    /// Whether all of the `sent` messages that will arrive have arrived.
    fn is_full(&self, sent: u64, service: Service) -> bool {
        self.received >= sent || service != Service::Rc && clock::now() - self.last > STRAGGLERS
    }
}

/// Waits until no more packets arrive. Only the packet counters show an unreliable WRITE, and
/// messages of the peer on the side channel may overtake its packets.
#[expect(clippy::disallowed_methods, reason = "a command may sleep")]
fn wait_for_packets(end: &End) {
    let mut seen = end.context.counters().rcvd_pkts;
    loop {
        std::thread::sleep(STRAGGLERS);
        let now = end.context.counters().rcvd_pkts;
        if now == seen {
            return;
        }
        seen = now;
    }
}

/// Runs one measurement, and tells the other side when it is done. This side sends if `sends`, the
/// other side if `peer_sends`.
pub(crate) fn run(
    end: &mut End,
    side: &mut Side,
    size: usize,
    amount: Amount,
    (sends, peer_sends): (bool, bool),
    progress: &mut Progress,
) -> anyhow::Result<(Tally, Sample)> {
    let mut sample = Sample::new();
    let mut pump = sends.then(|| Pump::new(end, size, amount));
    let mut sink = (peer_sends && end.spec.takes_receives()).then(|| Sink::new(end));
    // How many messages the peer sent, once it has reported that.
    let mut peer_sent = (!peer_sends).then_some(0);
    let mut told = !sends;
    let mut idle = Idle::default();
    let mut idle_turns = 0_u32;
    loop {
        let mut busy = false;
        if let Some(pump) = &mut pump {
            busy |= pump.turn(end, &mut sample)?;
            if pump.ended.is_some() && !told {
                side.send(Message::Done { thread: 0, sent: pump.posted })?;
                told = true;
            }
            progress.tick(pump.completed);
        }
        if let Some(sink) = &mut sink {
            busy |= sink.turn(end, side)?;
        }
        let full = match (&sink, peer_sent) {
            (_, None) => false,
            (Some(sink), Some(sent)) => sink.is_full(sent, end.spec.service),
            (None, Some(_)) => true,
        };
        if told && full {
            break;
        }
        if busy {
            (idle, idle_turns) = (Idle::default(), 0);
            continue;
        }
        idle_turns += 1;
        let nothing_to_poll = told && sink.is_none();
        let heard = match nothing_to_poll {
            true => Some(side.recv()?),
            false if idle_turns.is_multiple_of(64) || end.spec.events => side.try_recv()?,
            false => None,
        };
        match heard {
            Some(Message::Done { sent, .. }) => peer_sent = Some(sent),
            Some(Message::Credits { qp, receives }) => {
                let pump = pump.as_mut().filter(|pump| qp < pump.flows.len());
                pump.context("the other side has another number of QPs")?.allow(qp, receives);
            }
            Some(other) => return Err(unexpected(&other)),
            None => idle.pause(end)?,
        }
    }
    if let Some(sink) = &mut sink {
        sink.refill(end)?;
    }
    if peer_sends && end.spec.service != Service::Rc && end.spec.op == Op::Write {
        wait_for_packets(end);
    }
    let after = end.context.counters();
    let tally = Tally {
        sent: pump.as_ref().map_or(0, |pump| pump.completed),
        elapsed_ns: pump.as_ref().map_or(0, |p| nanos(p.ended.unwrap_or(p.started) - p.started)),
        received: sink.map(|s| s.received),
        sent_pkts: after.sent_pkts - end.before.sent_pkts,
        rcvd_pkts: after.rcvd_pkts - end.before.rcvd_pkts,
        cpu_us: None,
    };
    Ok((tally, sample))
}
