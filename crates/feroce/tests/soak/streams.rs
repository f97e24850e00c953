//! Connections over iWARP while TCP is slowed, cut and reset: what completes is right to the last
//! byte, what does not is flushed at both ends, and the next connection works.
//!
//! A connection goes through rounds. The client WRITEs, SENDs a message, waits for the answer of
//! the server and READs; the server checks the message and what was written in front of it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use feroce::cm::{Connection, Connector, Listener, Manager};
use feroce::{Access, Cq, Cqe, Device, Mr, Pd, QpCap, Remote, SendOp, SendWr, Settings, WcStatus};

use crate::random::{Random, pattern};

/// Bytes of a message, and of a WRITE or READ, at most.
const MESSAGE: usize = 20_000;
const SHARE: usize = 64 << 10;

/// Each end has a part for what it sends, received, and what the peer writes or reads.
const SEND: usize = 0;
const RECEIVED: usize = SHARE;
const SHARED: usize = 2 * SHARE;
const FETCHED: usize = 3 * SHARE;

/// Faults that the connections must survive, for each 1024 bytes that arrive. Each has a worker of
/// its own; they live side by side.
const FAULTS: [&str; 4] = [
    "cut=0.3%,reset=0.3%,delay=300us~200us",
    "cut=0.4%,rate=400Mbit:128KiB",
    "reset=0.5%,delay=1ms~1ms,rate=200Mbit:256KiB",
    // A damaged length may leave a receiver waiting for bytes of a peer that waits for its answer,
    // for a minute: only a soak that lasts has this one.
    DAMAGE,
];

/// Bytes that change.
const DAMAGE: &str = "corrupt=0.1%,cut=0.05%,delay=200us~100us";

/// What happened.
#[derive(Default, Debug)]
struct Tally {
    connections: u64,
    refused: u64,
    rounds: u64,
}

/// The peer ended, or the connection broke.
struct Ended;

fn manager(ip: IpAddr, fault: &str) -> Manager {
    let mut settings = Settings::default();
    for (key, value) in [("transport", "iwarp"), ("fault", fault)] {
        settings.set(key, value).expect("a setting");
    }
    let device = Device::at([ip]).open_with(settings).expect("a device");
    Manager::with([device]).expect("a manager")
}

/// The next completion. It is one of success, or the connection is over.
fn next(cq: &Cq) -> Result<Cqe, Ended> {
    let cqe = cq.wait().expect("a completion");
    match cqe.status {
        WcStatus::Success => Ok(cqe),
        WcStatus::Flushed => Err(Ended),
        other => panic!("{other:?}"),
    }
}

/// What a round is about: both ends know it from its number.
struct Round {
    seed: u32,
    message: usize,
    written: usize,
    fetched: usize,
}

impl Round {
    fn new(connection: u32, number: u32) -> Self {
        let seed = connection.wrapping_mul(7919).wrapping_add(number);
        let mut random = Random(u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut len = || match random.below(3) {
            0 => random.below(50),
            1 => random.below(3000),
            _ => random.below(MESSAGE),
        };
        Self { seed, message: 4 + len(), written: len(), fetched: len() }
    }

    fn message(&self) -> Vec<u8> {
        [&self.seed.to_be_bytes()[..], &pattern(self.seed, self.message - 4)].concat()
    }

    fn written(&self) -> Vec<u8> {
        pattern(!self.seed, self.written)
    }
}

/// One end: memory that all of its connections use, one after the other.
struct End {
    pd: Pd,
    mr: Mr,
}

impl End {
    fn new(manager: &Manager) -> Self {
        let pd = manager.contexts()[0].alloc_pd().expect("a domain");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = pd.alloc_mr(4 * SHARE, access).expect("memory");
        Self { pd, mr }
    }

    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.read_at(at, &mut bytes).expect("in memory");
        bytes
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.mr.write_at(at, bytes).expect("in memory");
    }
}

/// Serves a connection until it ends.
fn serve(end: &End, far: &mut Connection, number: u32) -> Result<(), Ended> {
    for round in 0.. {
        let round = Round::new(number, round);
        let cqe = next(far.recv_cq())?;
        assert_eq!(cqe.byte_len as usize, round.message);
        assert_eq!(end.read(RECEIVED, round.message), round.message());
        assert_eq!(end.read(SHARED, round.written), round.written(), "written before the message");
        let fetched = pattern(round.seed ^ 0x5555, round.fetched);
        end.write(SHARED + SHARE / 2, &fetched);
        let receive = end.mr.recv(1, RECEIVED..RECEIVED + MESSAGE + 4);
        far.post_recv([receive]).map_err(|_| Ended)?;
        let answer = SendWr::new(2, SendOp::Send, end.mr.data(RECEIVED..RECEIVED + 4));
        far.post_send([answer]).map_err(|_| Ended)?;
        next(far.send_cq())?;
    }
    Ok(())
}

/// No CRC covers private data: the number of a connection is there twice.
fn private_data(number: u32) -> [u8; 8] {
    (u64::from(number) << 32 | u64::from(!number)).to_be_bytes()
}

/// The number of a connection, unless it was damaged on its way.
fn number_in(data: &[u8]) -> Option<u32> {
    let number = (u64::from_be_bytes(data.try_into().ok()?) >> 32) as u32;
    (private_data(number) == data).then_some(number)
}

/// Takes connections until told to stop. Then it listens no more, so that no client waits for it.
fn serve_all(end: &End, listener: Listener, stops: &AtomicBool) {
    while !stops.load(Ordering::Relaxed) {
        let request = listener.accept().expect("a request");
        let Some(number) = number_in(request.private_data()) else { continue };
        let Ok(mut accepting) = request.pd(&end.pd).cap(QpCap::new(8, 8)).prepare() else {
            continue;
        };
        let receive = end.mr.recv(1, RECEIVED..RECEIVED + MESSAGE + 4);
        accepting.post_recv([receive]).expect("room for a receive");
        // The peer, or the connection to it, may be gone already.
        let Ok(mut far) = accepting.accept() else { continue };
        let _ = serve(end, &mut far, number);
    }
}

/// One round of a client.
fn talk(end: &End, near: &mut Connection, to: Remote, round: &Round) -> Result<(), Ended> {
    end.write(SEND, &round.message());
    end.write(SEND + SHARE / 2, &round.written());
    let at = |offset: usize| Remote { addr: to.addr + offset as u64, ..to };
    near.post_recv([end.mr.recv(1, RECEIVED..RECEIVED + 4)]).map_err(|_| Ended)?;
    let written = end.mr.data(SEND + SHARE / 2..SEND + SHARE / 2 + round.written);
    let message = end.mr.data(SEND..SEND + round.message);
    let wrs =
        [SendWr::new(2, SendOp::Write(at(SHARED)), written), SendWr::new(3, SendOp::Send, message)];
    near.post_send(wrs).map_err(|_| Ended)?;
    for wr_id in [2, 3] {
        assert_eq!(next(near.send_cq())?.wr_id, wr_id);
    }
    next(near.recv_cq())?;
    assert_eq!(end.read(RECEIVED, 4), round.seed.to_be_bytes());
    let fetched = end.mr.data(FETCHED..FETCHED + round.fetched);
    let read = SendWr::new(4, SendOp::Read(at(SHARED + SHARE / 2)), fetched);
    near.post_send([read]).map_err(|_| Ended)?;
    assert_eq!(next(near.send_cq())?.wr_id, 4);
    let fetched = pattern(round.seed ^ 0x5555, round.fetched);
    assert_eq!(end.read(FETCHED, round.fetched), fetched);
    Ok(())
}

/// Connects, and goes through rounds until the connection ends or has had enough of them.
fn call(
    client: &Manager,
    end: &End,
    (to, memory): (SocketAddr, Remote),
    number: u32,
    tally: &mut Tally,
) {
    let connector = Connector::new(client).pd(&end.pd).cap(QpCap::new(8, 8));
    let connector = connector.private_data(&private_data(number));
    let Ok(mut near) = connector.connect(to) else {
        tally.refused += 1;
        return;
    };
    tally.connections += 1;
    for round in 0..200 {
        if talk(end, &mut near, memory, &Round::new(number, round)).is_err() {
            return;
        }
        tally.rounds += 1;
    }
}

/// One client and one server, and faults at both.
fn work(worker: u8, seed: u64, is_over: &(dyn Fn(u64) -> bool + Sync)) -> (Tally, Counted) {
    let ip = |number| IpAddr::from(Ipv4Addr::new(127, 121, worker, number));
    let fault = FAULTS[usize::from(worker)];
    let manager =
        |number: u8| manager(ip(number), &format!("{fault},seed={}", seed + u64::from(number)));
    let (server, client) = (manager(1), manager(2));
    let listener = Listener::bind(&server, (ip(1), 0).into()).expect("a listener");
    let (far, near) = (End::new(&server), End::new(&client));
    let to = (listener.local_addr(), far.mr.remote(0));
    let stops = AtomicBool::new(false);
    let mut tally = Tally::default();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| serve_all(&far, listener, &stops));
        let mut number = 0;
        while !serving.is_finished() {
            number += 1;
            stops.store(is_over(tally.rounds), Ordering::Relaxed);
            call(&client, &near, to, number, &mut tally);
        }
    });
    let mut counted = Counted::new();
    for counters in [&server, &client].map(|manager| manager.contexts()[0].link_counters()) {
        for (name, count) in counters.into_iter().filter(|(_, count)| *count > 0) {
            *counted.entry(name).or_default() += count;
        }
    }
    (tally, counted)
}

type Counted = BTreeMap<&'static str, u64>;

#[test]
#[expect(clippy::disallowed_methods, reason = "a soak runs for a time")]
fn connections_that_are_cut_and_slowed_carry_every_byte_or_end() {
    let variable = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let seconds = variable("FEROCE_TEST_SOAK_SECONDS");
    let seed = variable("FEROCE_SEED").unwrap_or(0x5eed);
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(0));
    let is_over = |rounds| match seconds {
        Some(_) => Instant::now() >= end,
        None => rounds >= 100,
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let workers =
            (0_u8..).zip(FAULTS).filter(|(_, fault)| seconds.is_some() || *fault != DAMAGE);
        let works = workers.map(|(worker, _)| scope.spawn(move || work(worker, seed, &is_over)));
        let works: Vec<_> = works.collect();
        works.into_iter().map(|work| work.join().expect("a worker")).collect()
    });
    for (worker, (tally, counted)) in results.iter().enumerate() {
        println!("{}: {tally:?} {counted:?}", FAULTS[worker]);
        assert!(tally.rounds >= 100 && tally.connections > 1, "connections ended and began");
        assert!(!counted.contains_key("iwarp_refused_otherwise"));
    }
}
