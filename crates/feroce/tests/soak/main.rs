//! Random operations over real sockets, every byte checked against a model.
//!
//! `FEROCE_TEST_SOAK_SECONDS` sets the duration (3 by default), `FEROCE_SEED` the sequence.
//! `FEROCE_FAULT` and the other settings apply.
//!
//! Two hosts, `a` and `b`. Each reliable queue pair has a share of the memory of both hosts, and
//! the model holds its expected content: [`connected`]. Unreliable queue pairs carry messages whose
//! content follows from their number: [`unreliable`]. From time to time the test destroys an object
//! while it is in use: [`trouble`].
//!
//! [`streams`] are connections over iWARP.

#[path = "../common/mod.rs"]
mod common;
mod connected;
mod random;
mod streams;
mod trouble;
mod unreliable;

use std::collections::BTreeMap;
use std::time::Duration;

use common::Host;
use connected::Pair;
use feroce::{Cqe, WcStatus};
use random::Random;
use unreliable::Messages;

/// Reliable queue pairs.
const PAIRS: usize = 4;
/// Memory of each on each host.
const SHARE: usize = common::LEN / PAIRS;

struct Soak {
    a: Host,
    b: Host,
    pairs: Vec<Pair>,
    messages: Vec<Messages>,
    random: Random,
    /// How often each kind of step was taken.
    steps: BTreeMap<&'static str, u64>,
    next_id: u64,
}

impl Soak {
    fn new(seed: u64) -> Self {
        let (a, b) = Host::pair(120);
        let pairs = (0..PAIRS).map(|i| Pair::new(&a, &b, i * SHARE, i % 2 == 1)).collect();
        let messages = vec![Messages::connected(&a, &b), Messages::datagrams(&a, &b)];
        let (random, steps) = (Random(seed | 1), BTreeMap::new());
        Self { a, b, pairs, messages, random, steps, next_id: 0 }
    }

    /// A number for a work request, never used before.
    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn step(&mut self) {
        let pair = self.random.below(PAIRS);
        let name = match self.random.below(100) {
            0..60 => self.burst(pair),
            60..70 => self.atomics(pair),
            70..80 => self.send_early(pair),
            80..94 => self.unreliable(),
            94..96 => self.window(pair),
            96..98 => self.recreate(pair),
            98 => self.deregister_target(pair),
            _ => self.deregister_source(pair),
        };
        *self.steps.entry(name).or_default() += 1;
    }

    /// Every byte of both hosts.
    fn check(&self) {
        for (i, pair) in self.pairs.iter().enumerate() {
            for (whose, host, must_be) in
                [("our", &self.a, &pair.ours), ("their", &self.b, &pair.theirs)]
            {
                if let Some(difference) = difference(&host.read(pair.base, SHARE), must_be) {
                    panic!("{whose} memory, queue pair {i}: {difference}; {:?}", pair.done);
                }
            }
        }
    }
}

/// Where memory is not what it must be, in words.
fn difference(is: &[u8], must_be: &[u8]) -> Option<String> {
    let differs = |&at: &usize| is[at] != must_be[at];
    let first = (0..is.len()).find(differs)?;
    let last = (0..is.len()).rfind(differs)?;
    let count = (first..=last).filter(differs).count();
    let [is, must_be] = [is, must_be].map(|bytes| bytes[first..].chunks(16).next());
    Some(format!("{count} bytes from {first} to {last}: {is:02x?}, must be {must_be:02x?}"))
}

/// The next completion, which must be of this request.
fn success(host: &Host, wr_id: u64) -> Cqe {
    let cqe = host.wait();
    assert_eq!((cqe.wr_id, cqe.status), (wr_id, WcStatus::Success));
    cqe
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a soak runs for a time")]
fn random_operations_leave_every_byte_where_the_model_says() {
    let variable = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let seconds = variable("FEROCE_TEST_SOAK_SECONDS").unwrap_or(3);
    let seed = variable("FEROCE_SEED").unwrap_or(0x5eed);
    println!("FEROCE_SEED={seed} FEROCE_TEST_SOAK_SECONDS={seconds}");
    let mut soak = Soak::new(seed);
    let end = std::time::Instant::now() + Duration::from_secs(seconds);
    while std::time::Instant::now() < end {
        for _ in 0..50 {
            soak.step();
        }
        soak.check();
        soak.pairs.iter_mut().for_each(|pair| pair.done.clear());
    }
    for (name, count) in &soak.steps {
        println!("{count:8} {name}");
    }
    for messages in &soak.messages {
        println!("{}", messages.summary());
        messages.check();
    }
    assert!(soak.steps.values().sum::<u64>() >= 50);
}
