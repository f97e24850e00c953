//! The sequence of measurements that client and server run together.

use anyhow::{bail, ensure};

use super::end::{End, Place};
use super::measure::{Figures, Row, Sample, Table};
use super::path::Counted;
use super::progress::Progress;
use super::side::{Message, Side, Tally, VERSION, unexpected};
use super::spec::{Amount, Mode, Op, Service, Spec};
use super::{clock, lat, stop, threads};

/// The client: tells the server what to measure, and shows the results.
pub(crate) fn lead(
    place: &Place,
    side: &mut Side,
    spec: &Spec,
    table: Table,
) -> anyhow::Result<Vec<Row>> {
    let mut ends = End::open_all(place, spec)?;
    side.send(Message::Hello { version: VERSION, spec: whole(&ends) })?;
    let mut peers = Vec::new();
    for _ in &ends {
        match side.answer()? {
            Message::Ends(peer) => peers.push(peer),
            other => return Err(unexpected(&other)),
        }
    }
    for (end, peer) in ends.iter_mut().zip(&peers) {
        let own = end.ends()?;
        end.connect(peer)?;
        side.send(Message::Ends(own))?;
    }
    expect_ready(side)?;
    let (spec, context, mtu) = (whole(&ends), ends[0].context.clone(), ends[0].mtu.bytes());
    table.head(&spec, &ends[0].ends()?.shown(), &peers[0].shown(), mtu);
    let (warm_up, amount) = (warm_up(&spec), spec.amount);
    let mut rows = Vec::new();
    for size in spec.sizes.clone() {
        measure(&mut ends, side, size, warm_up, true)?;
        if stop::requested() {
            break;
        }
        let (cpu_before, counted) = (clock::cpu_s(), Counted::of(&context));
        let (own, peer, sample) = measure(&mut ends, side, size, amount, table.json)?;
        let cpu_s = clock::cpu_s() - cpu_before;
        let is_any = own.sent + peer.sent > 0;
        let mut row = Row::new(&spec, figures((&spec, mtu), size, (own, peer), cpu_s), &sample);
        row.path = Counted::of(&context).way(counted, own.sent + peer.sent);
        if is_any {
            table.row(&row)?;
            rows.push(row);
        }
        if stop::requested() {
            break;
        }
    }
    side.send(Message::Bye)?;
    table.foot(&rows);
    Ok(rows)
}

/// The server: runs the measurements that the client requests.
pub(crate) fn follow(place: &Place, side: &mut Side, expected: &Spec) -> anyhow::Result<()> {
    let spec = match side.recv()? {
        Message::Hello { version: VERSION, spec } => spec,
        Message::Hello { version, .. } => {
            bail!("this side speaks version {VERSION}, the client {version}")
        }
        other => return Err(unexpected(&other)),
    };
    ensure!(
        (spec.op, spec.mode) == (expected.op, expected.mode),
        "the client measures {} {}, this side was started for {} {}",
        spec.op.name(),
        spec.mode.name(),
        expected.op.name(),
        expected.mode.name()
    );
    // The specification came from the network, so the server checks it, too.
    spec.check()?;
    let mut ends = End::open_all(place, &spec)?;
    ensure!(
        whole(&ends).iwarp == spec.iwarp,
        "one side speaks iWARP and the other RoCE: give both the same --transport"
    );
    for end in &mut ends {
        let offer = end.offer()?;
        side.send(Message::Ends(offer))?;
    }
    for end in &mut ends {
        let said = match end.accept(side)? {
            Some(said) => said,
            None => side.recv()?,
        };
        match said {
            Message::Ends(peer) => end.connect(&peer)?,
            other => return Err(unexpected(&other)),
        }
    }
    side.send(Message::Ready)?;
    loop {
        let (size, amount) = match side.recv()? {
            Message::Start { size, amount } => (size, amount),
            Message::Bye => return Ok(()),
            other => return Err(unexpected(&other)),
        };
        ensure!(size > 0 && size <= spec.max_size(), "the client changed its mind about sizes");
        ends.iter_mut().for_each(End::begin);
        side.send(Message::Ready)?;
        let cpu_before = clock::cpu_s();
        let mut tally = match spec.mode {
            Mode::Lat => lat::follow(&mut ends[0], side, size)?,
            Mode::Bw => {
                let who = (spec.bidirectional, true);
                let mut progress = Progress::new(String::new(), amount, true);
                threads::run(&mut ends, side, size, amount, who, &mut progress)?.0
            }
        };
        if !side.is_here() {
            tally.cpu_us = Some(((clock::cpu_s() - cpu_before) * 1e6) as u64);
        }
        side.send(Message::Tally(tally))?;
    }
}

/// One measurement, by the client: the counts of each side, and the times of messages.
fn measure(
    ends: &mut [End],
    side: &mut Side,
    size: usize,
    amount: Amount,
    quiet: bool,
) -> anyhow::Result<(Tally, Tally, Sample)> {
    ends.iter_mut().for_each(End::begin);
    side.send(Message::Start { size, amount })?;
    expect_ready(side)?;
    let mut progress = Progress::new(format!("{size} bytes"), amount, quiet);
    let (own, sample) = match ends[0].spec.mode {
        Mode::Lat => lat::lead(&mut ends[0], side, size, amount, &mut progress)?,
        Mode::Bw => {
            let who = (true, ends[0].spec.bidirectional);
            threads::run(ends, side, size, amount, who, &mut progress)?
        }
    };
    match side.answer()? {
        Message::Tally(peer) => Ok((own, peer, sample)),
        other => Err(unexpected(&other)),
    }
}

/// The amount of the warm-up: enough to fill queues, open congestion windows and touch memory.
fn warm_up(spec: &Spec) -> Amount {
    match (spec.amount, spec.mode) {
        (Amount::Messages(n), Mode::Bw) => Amount::Messages(n.min(2 * u64::from(spec.tx_depth))),
        (Amount::Messages(n), Mode::Lat) => Amount::Messages(n.min(200)),
        (Amount::Seconds(s), _) => Amount::Seconds((s / 4.0).min(0.25)),
    }
}

/// What the ends of all threads measure together.
fn whole(ends: &[End]) -> Spec {
    let spec = &ends[0].spec;
    Spec { qps: spec.qps * spec.threads, ..spec.clone() }
}

/// Combines the counts of both sides.
fn figures(
    (spec, mtu): (&Spec, usize),
    size: usize,
    (own, peer): (Tally, Tally),
    cpu_s: f64,
) -> Figures {
    let is_latency = spec.mode == Mode::Lat;
    let peer_sent = if is_latency { 0 } else { peer.sent };
    let sent = (own.sent + peer_sent) as f64;
    let share = |arrived: u64, of: u64| 1.0 - (arrived as f64 / of.max(1) as f64).min(1.0);
    let lost = match (spec.service, spec.op) {
        _ if is_latency => None,
        (Service::Rc, _) => None,
        (_, Op::Send) => {
            let received = own.received.unwrap_or(0) + peer.received.unwrap_or(0);
            Some(share(received, own.sent + peer_sent))
        }
        // No completion tells which unreliable WRITEs arrived, so the share of lost packets stands
        // in for it.
        _ => Some(share(own.rcvd_pkts + peer.rcvd_pkts, own.sent_pkts + peer.sent_pkts)),
    };
    Figures {
        size,
        mtu,
        messages: sent * (1.0 - lost.unwrap_or(0.0)),
        elapsed_s: own.elapsed_ns.max(peer.elapsed_ns) as f64 / 1e9,
        cpu_s,
        peer_cpu_s: peer.cpu_us.map(|us| us as f64 / 1e6),
        lost,
    }
}

fn expect_ready(side: &mut Side) -> anyhow::Result<()> {
    match side.answer()? {
        Message::Ready => Ok(()),
        other => Err(unexpected(&other)),
    }
}
