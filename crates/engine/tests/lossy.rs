//! The cost of long writes on a path that loses packets at a fixed rate, however few are sent.

use feroce_engine::{QpType, SendOp, WcStatus};
use feroce_testkit::{Packet, Pair, TestQp, wr};
use feroce_train::Instant;
use feroce_wire::Pmtu;

/// How long a packet takes from one to the other.
const ONE_WAY_NS: u64 = 30_000;
const MESSAGE: u32 = 256 << 10;
const PACKETS_PER_MESSAGE: u64 = 64;
const MESSAGES: u64 = 200;

/// Loses one of so many packets.
struct Wire {
    every: u64,
    seen: u64,
    lost: u64,
}

impl Wire {
    fn new(every: u64) -> Self {
        Self { every, seen: 0, lost: 0 }
    }

    fn carry(&mut self, packets: Vec<Packet>, mut receive: impl FnMut(&Packet)) {
        for packet in packets {
            self.seen += 1;
            if self.seen.is_multiple_of(self.every) {
                self.lost += 1;
            } else {
                receive(&packet);
            }
        }
    }
}

/// What it took to write all messages.
#[derive(Debug)]
struct Cost {
    elapsed_ns: u64,
    lost: u64,
    again: u64,
}

fn write_all(pair: &mut Pair, qp: &mut TestQp, every: u64) -> Cost {
    let (mut there, mut back) = (Wire::new(every), Wire::new(every));
    let (data, remote) = (pair.a.data(0, MESSAGE), pair.b.remote(0));
    for id in 0..MESSAGES {
        qp.sq.post(wr(id, SendOp::Write(remote), data.clone())).expect("a queue as long");
    }
    let (start, mut done) = (pair.now, 0);
    while done < MESSAGES {
        let (from_a, from_b) = (pair.a.transmit(pair.now), pair.b.transmit(pair.now));
        if from_a.is_empty() && from_b.is_empty() {
            let due = [&pair.a, &pair.b].into_iter().filter_map(|host| host.engine.poll_timeout());
            let wait = due.map(|at: Instant| at.nanos_since(pair.now)).min();
            pair.wait(wait.expect("an engine has a deadline"));
            continue;
        }
        pair.now = pair.now.plus_nanos(ONE_WAY_NS);
        there.carry(from_a, |packet| pair.b.receive(pair.now, packet));
        back.carry(from_b, |packet| pair.a.receive(pair.now, packet));
        for cqe in pair.a.poll_all() {
            assert_eq!(cqe.status, WcStatus::Success);
            done += 1;
        }
    }
    let (elapsed_ns, lost) = (pair.now.nanos_since(start), there.lost + back.lost);
    Cost { elapsed_ns, lost, again: there.seen - MESSAGES * PACKETS_PER_MESSAGE }
}

fn pair() -> (Pair, TestQp) {
    let mut pair = Pair { mtu: Pmtu::B4096, ..Pair::default() };
    let (qp, _) = pair.connect(QpType::Rc);
    (pair, qp)
}

#[test]
fn one_lost_packet_in_a_hundred_leaves_the_path_in_use() {
    let (mut pair, mut qp) = pair();
    let cost = write_all(&mut pair, &mut qp, 100);
    // With 256 KiB in flight all the time, it would take 14 ms.
    assert!(cost.elapsed_ns < 40_000_000, "{cost:?}");
    // Of what is behind a lost packet, next to nothing is sent again.
    assert!(cost.again < 2 * cost.lost, "{cost:?}");
}
