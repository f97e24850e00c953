//! A received train of a long write has the same effect as its packets one by one (I-8), also if
//! some of them are lost, damaged, marked or duplicated.

use feroce_engine::{Counters, Cqe, QpState};
use feroce_testkit::script::{MTU, reth, with};
use feroce_testkit::{PEER_PSN, Packet, Scripted};
use feroce_train::{Ecn, RxTrain};
use feroce_wire::Op;

/// Hands packets over as trains: one for each run of equal length, with or without a trailer.
fn deliver_together(script: &mut Scripted, packets: &[Packet], trailer: usize) {
    let mut rest = packets;
    while let Some(first) = rest.first() {
        let stride = first.bytes.len();
        let is_like = |p: &Packet| p.meta == first.meta && p.bytes.len() == stride;
        let mut count = rest.iter().take_while(|p| is_like(p)).count();
        // The last may be shorter.
        let next = rest.get(count);
        count += usize::from(next.is_some_and(|p| p.meta == first.meta && p.bytes.len() < stride));
        let (together, others) = rest.split_at(count);
        let mut bytes = Vec::new();
        for packet in together {
            bytes.extend(&packet.bytes);
            bytes.extend(vec![0xee; trailer]);
        }
        let (meta, stride) = (first.meta, stride + trailer);
        let train = RxTrain { meta, bytes: &bytes, stride, trailer, remote: None };
        script.host.engine.handle_rx(script.now, &train);
        rest = others;
    }
}

/// Everything that can be observed of an adapter from outside.
fn seen_of(script: &mut Scripted) -> (Vec<Vec<u8>>, Vec<Cqe>, QpState, String) {
    let sent = script.host.transmit(script.now).into_iter().map(|p| p.bytes).collect();
    let engine = &script.host.engine;
    // Packets that arrive as one train defer the acknowledgement only once.
    let counters = Counters { ack_deferred: 0, ..engine.counters() };
    let counted = format!("{counters:?} {:?}", engine.drops());
    let counted = format!("{counted} {:?}", script.events());
    (sent, script.host.poll_all(), script.state(), counted)
}

/// The packets of a write.
fn packets_of_a_write(script: &Scripted, rng: &mut fastrand::Rng, from: u32) -> Vec<Packet> {
    let (packets, last) = (rng.u32(1..12), rng.usize(1..=MTU));
    let declared = (packets - 1) * MTU as u32 + last as u32;
    let mut all = Vec::new();
    for i in 0..packets {
        let op = match (i, packets - 1 - i) {
            (0, 0) => Op::WriteOnly,
            (0, _) => Op::WriteFirst,
            (_, 0) => Op::WriteLast,
            _ => Op::WriteMiddle,
        };
        let data = vec![rng.u8(..); if i + 1 == packets { last } else { MTU }];
        let rest = match op.starts() {
            true => with(reth(8, script.rkey(), declared), &data),
            false => data,
        };
        all.push(script.packet(op, from + i, rng.u32(..6) == 0, &rest));
    }
    all
}

/// Disturbs packets at random: the sender made them wrong, or the network marks, loses or
/// duplicates them.
fn disturbed(packets: &[Packet], rng: &mut fastrand::Rng) -> Vec<Packet> {
    let mut all = Vec::new();
    for packet in packets {
        let mut packet = packet.clone();
        let len = packet.bytes.len();
        match rng.u32(..200) {
            0 => packet.meta.ecn = Ecn::Congested,
            1 => packet.meta.src = packet.meta.dst,
            // Partition, reserved bits, version, padding, opcode.
            2 => packet.bytes[2] ^= 0x10,
            3 => packet.bytes[4] ^= 1,
            4 => packet.bytes[1] ^= 1,
            5 => packet.bytes[1] ^= 0x10,
            6 => packet.bytes[0] ^= 1,
            7 => packet.bytes.truncate(rng.usize(..len)),
            // The length that the RETH of the first packet declares, or its key.
            8 if len > 28 => packet.bytes[26] ^= 4,
            9 if len > 28 => packet.bytes[22] ^= 1,
            _ => {}
        }
        let times = match rng.u32(..40) {
            0 => 0,
            1 => 2,
            _ => 1,
        };
        all.extend(std::iter::repeat_n(packet, times));
    }
    all
}

#[test]
fn together_or_one_by_one_is_the_same() {
    let mut written = 0;
    for seed in 0..2000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut together, mut alone) = (Scripted::rc(), Scripted::rc());
        let mut psn = PEER_PSN;
        for _ in 0..4 {
            let packets = packets_of_a_write(&alone, &mut rng, psn);
            let mut sent = disturbed(&packets, &mut rng);
            // Then the sender retransmits what is missing.
            for _ in 0..2 {
                deliver_together(&mut together, &sent, *rng.choice(&[0, 4]).unwrap());
                for packet in &sent {
                    alone.host.receive(alone.now, packet);
                }
                let (one, other) = (seen_of(&mut together), seen_of(&mut alone));
                assert_eq!(one, other, "seed {seed}");
                let memory = [&together, &alone].map(|script| script.host.read(0, 16 * MTU));
                assert!(memory[0] == memory[1], "seed {seed}: the memory differs");
                let (attr, _) = alone.host.engine.query_qp(alone.qp.qpn).unwrap();
                let expected = attr.rq_psn.unwrap().get();
                sent = packets[(expected - psn) as usize..].to_vec();
            }
            if alone.state() != QpState::Rts {
                break;
            }
            psn += packets.len() as u32;
            written += 1;
        }
    }
    assert!(written > 4000, "most writes go well in the end: {written}");
}
