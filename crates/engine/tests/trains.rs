//! A received train has the same effect as its packets one by one (I-8).

use feroce_engine::{AsyncEvent, QpAttr, QpState};
use feroce_testkit::script::{reth, said, with};
use feroce_testkit::{PEER_PSN, Packet, Scripted};
use feroce_train::{Ecn, RxTrain};
use feroce_wire::{Op, Rkey, Syndrome};

const P: u32 = PEER_PSN;

/// The observable state after packets were delivered.
#[derive(PartialEq, Debug)]
struct Outcome {
    memory: Vec<u8>,
    answers: Vec<(u32, Syndrome, u32)>,
    state: QpState,
    events: Vec<AsyncEvent>,
    counters: Vec<u64>,
    drops: String,
}

/// Delivers packets of one length together or one by one; answers are looked at afterwards.
fn outcome(packets: impl Fn(&Scripted) -> Vec<Packet>, together: bool) -> Outcome {
    let mut script = Scripted::rc_with(QpAttr::default());
    let packets = packets(&script);
    let (meta, stride) = (packets[0].meta, packets[0].bytes.len());
    let bytes: Vec<u8> = packets.into_iter().flat_map(|p| p.bytes).collect();
    let pieces: Vec<&[u8]> = match together {
        true => vec![&bytes],
        false => bytes.chunks(stride).collect(),
    };
    for bytes in pieces {
        let train = RxTrain { meta, bytes, stride, trailer: 0, remote: None };
        script.host.engine.handle_rx(script.now, &train);
    }
    let mut answers = script.host.transmit(script.now);
    answers.retain(|packet| packet.op() == Op::Acknowledge);
    let (counters, drops) = (script.host.engine.counters(), *script.host.engine.drops());
    Outcome {
        memory: script.host.read(0, 200),
        answers: said(&answers),
        state: script.state(),
        events: script.events(),
        counters: vec![
            counters.rcvd_pkts,
            counters.rcvd_bytes,
            counters.rdma_recvs,
            counters.out_of_seq_request,
            counters.duplicate_request,
            counters.np_ecn_marked_roce_packets,
        ],
        drops: format!("{drops:?}"),
    }
}

/// Delivers both ways, and returns what both left behind.
fn alike(packets: impl Fn(&Scripted) -> Vec<Packet>) -> Outcome {
    let together = outcome(&packets, true);
    assert_eq!(together, outcome(&packets, false));
    together
}

/// A write of eight times `i`, to where only it writes.
fn write(script: &Scripted, rkey: Rkey, i: u32, ack_req: bool) -> Packet {
    let head = reth(u64::from(i) * 10, rkey, 8);
    script.packet(Op::WriteOnly, P + i, ack_req, &with(head, &[i as u8 + 1; 8]))
}

#[test]
fn short_writes() {
    let seen = alike(|s| (0..6).map(|i| write(s, s.rkey(), i, i % 3 == 1)).collect());
    assert_eq!(seen.memory[50..58], [6; 8]);
    assert_eq!(seen.counters[..3], [6, 6 * 36, 6]);
    // One acknowledgement answers the last packet that requested one, and covers those behind it.
    assert_eq!(seen.answers.iter().map(|a| a.0).collect::<Vec<_>>(), [P + 5]);
}

#[test]
fn what_comes_behind_a_refusal_is_not_executed() {
    let seen = alike(|s| {
        let rkey = |i| if i == 2 { Rkey(0xbad) } else { s.rkey() };
        (0..5).map(|i| write(s, rkey(i), i, true)).collect()
    });
    assert_eq!(seen.state, QpState::Err);
    assert_eq!((&seen.memory[10..18], &seen.memory[30..38]), (&[2; 8][..], &[0; 8][..]));
}

#[test]
fn a_gap_is_reported_once() {
    let seen = alike(|s| [0, 2, 3, 1, 1].map(|i| write(s, s.rkey(), i, true)).into());
    assert_eq!((seen.counters[3], seen.counters[4]), (2, 1));
}

#[test]
fn others_stand_between_them() {
    let seen = alike(|s| {
        let mut packets: Vec<Packet> = (0..6).map(|i| write(s, s.rkey(), i, true)).collect();
        // To an unused queue pair number, of another version, of another partition, of an unknown
        // operation.
        packets[1].bytes[7] ^= 1;
        packets[2].bytes[1] |= 1;
        packets[3].bytes[3] ^= 1;
        packets[4].bytes[0] = 0x1f;
        packets
    });
    assert_eq!(seen.counters[..3], [6, 6 * 36, 1]);
}

#[test]
fn congestion_is_counted_for_each() {
    let seen = alike(|s| {
        let mut packets: Vec<Packet> = (0..3).map(|i| write(s, s.rkey(), i, true)).collect();
        packets[0].meta.ecn = Ecn::Congested;
        packets
    });
    assert_eq!(seen.counters[5], 3);
}
