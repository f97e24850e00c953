//! Threads of one side, each with queue pairs and completion queues of its own on the same device.
//!
//! Each thread measures as if it were alone. The thread that has the side channel passes on what
//! the threads of one side tell those of the other.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};

use super::bw;
use super::end::End;
use super::measure::Sample;
use super::progress::Progress;
use super::side::{Message, Side, Tally, unexpected};
use super::spec::Amount;
use super::stop;

/// How often the thread with the side channel looks for messages.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// As [`bw::run`], with a thread for each end if there are several.
pub(crate) fn run(
    ends: &mut [End],
    side: &mut Side,
    size: usize,
    amount: Amount,
    who: (bool, bool),
    progress: &mut Progress,
) -> anyhow::Result<(Tally, Sample)> {
    if let [end] = ends {
        return bw::run(end, side, size, amount, who, progress);
    }
    let pairs = ends.iter().map(|_| Side::pair());
    let (ours, theirs): (Vec<Side>, Vec<Side>) = pairs.unzip();
    let all = thread::scope(move |scope| {
        let mut threads = Vec::new();
        for (end, mut theirs) in ends.iter_mut().zip(theirs) {
            let thread = thread::Builder::new().name("perf-thread".to_owned());
            threads.push(thread.spawn_scoped(scope, move || {
                let mut quiet = Progress::new(String::new(), amount, true);
                bw::run(end, &mut theirs, size, amount, who, &mut quiet)
            })?);
        }
        let has_ended = || threads.iter().all(thread::ScopedJoinHandle::is_finished);
        let relayed = relay(ours, side, who.1, has_ended);
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().map_err(|_| anyhow!("a thread has panicked"))?
        };
        let joined: Vec<_> = threads.into_iter().map(join).collect();
        // If the other side is gone, the threads know only that the relay has ended.
        relayed?;
        joined.into_iter().collect::<anyhow::Result<Vec<(Tally, Sample)>>>()
    })?;
    Ok(all.into_iter().fold((Tally::default(), Sample::new()), |(sum, mut times), (one, more)| {
        times.add(&more);
        (together(sum, one), times)
    }))
}

/// Passes messages on until all threads have ended. If the relay ends first, with an error, the
/// threads that wait for a message end as well.
fn relay(
    mut ours: Vec<Side>,
    side: &mut Side,
    peer_sends: bool,
    has_ended: impl Fn() -> bool,
) -> anyhow::Result<()> {
    // What the other side says when it has said this of each thread is not for the threads.
    let mut expected = if peer_sends { ours.len() } else { 0 };
    loop {
        let is_last = has_ended();
        for (thread, ours) in ours.iter_mut().enumerate() {
            // Why a thread has ended is known when it is joined.
            while let Ok(Some(message)) = ours.try_recv() {
                let Message::Done { sent, .. } = message else { return Err(unexpected(&message)) };
                side.send(Message::Done { thread, sent })?;
            }
        }
        if is_last {
            return Ok(());
        }
        if side.heeds_stop && stop::requested() {
            bail!("interrupted");
        }
        match if expected > 0 { side.try_recv()? } else { None } {
            Some(Message::Done { thread, sent }) => {
                let ours = ours.get_mut(thread);
                let ours = ours.context("the other side has another number of threads")?;
                // An error means that the thread has ended.
                let _ = ours.send(Message::Done { thread, sent });
                expected -= 1;
            }
            Some(other) => return Err(unexpected(&other)),
            None => thread::park_timeout(LOOK_EVERY),
        }
    }
}

/// The counts of two threads of one side. Both have the packets of the device.
fn together(a: Tally, b: Tally) -> Tally {
    Tally {
        sent: a.sent + b.sent,
        elapsed_ns: a.elapsed_ns.max(b.elapsed_ns),
        received: match (a.received, b.received) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0) + b.unwrap_or(0)),
        },
        sent_pkts: a.sent_pkts.max(b.sent_pkts),
        rcvd_pkts: a.rcvd_pkts.max(b.rcvd_pkts),
        cpu_us: None,
    }
}
