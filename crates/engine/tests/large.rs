//! The longest message there is: 2^31 bytes.

use feroce_engine::{Data, QpType, Remote, SendOp, Sge, SgeList, WcStatus};
use feroce_mem::{Iova, Region};
use feroce_testkit::{ALL, CAPS, Pair, wr};
use feroce_train::{RxMeta, RxTrain};
use feroce_wire::{Pmtu, Rkey};

/// Carries whole trains both ways until both sides are silent; returns the packets carried.
fn run_trains(pair: &mut Pair) -> u64 {
    let mut buffer = vec![0; 70_000];
    let mut packets = 0;
    loop {
        let mut silent = true;
        for forward in [true, false] {
            let (from, to) =
                if forward { (&mut pair.a, &mut pair.b) } else { (&mut pair.b, &mut pair.a) };
            while let Some(train) = from.engine.poll_transmit(pair.now, &CAPS) {
                silent = false;
                packets += u64::from(train.count);
                let mut len = 0;
                for i in 0..train.count {
                    len += train.emit(i, &mut buffer[len..]);
                }
                let meta = RxMeta { src: train.path.src, dst: train.path.dst, ..RxMeta::default() };
                let (bytes, stride) = (&buffer[..len], train.packet_len(0));
                pair.now = pair.now.plus_nanos(1000);
                to.engine.handle_rx(
                    pair.now,
                    &RxTrain { meta, bytes, stride, trailer: 0, remote: None },
                );
            }
        }
        if silent {
            return packets;
        }
    }
}

#[test]
fn a_message_of_two_gibibytes_arrives_and_one_byte_more_is_refused() {
    let mut pair = Pair { mtu: Pmtu::B4096, ..Pair::default() };
    let (mut qa, mut qb) = pair.connect(QpType::Rc);
    // Memory that reads as zeros and forgets what is written: as long as we like.
    let (len, base) = (1_u64 << 32, 0);
    let register = |host: &mut feroce_testkit::Host| {
        let (pd, region) = (host.pd, Region::null());
        host.engine.reg_mr(pd, region, 0, len as usize, Iova::At(base), ALL).unwrap()
    };
    let (ka, kb) = (register(&mut pair.a), register(&mut pair.b));
    let half = |addr| Sge { addr, len: 1 << 30, lkey: ka };
    let longest = Data::Sges(SgeList::new(&[half(0), half(1 << 30)]));
    let remote = Remote { addr: base, rkey: Rkey(kb.0) };

    qa.sq.post(wr(1, SendOp::Write(remote), longest.clone())).unwrap();
    assert!(run_trains(&mut pair) > (1 << 31) / 4096);
    let done = pair.a.poll().unwrap();
    assert_eq!((done.wr_id, done.status), (1, WcStatus::Success));

    qa.sq.post(wr(2, SendOp::Read(remote), longest.clone())).unwrap();
    run_trains(&mut pair);
    let done = pair.a.poll().unwrap();
    assert_eq!((done.wr_id, done.status, done.byte_len), (2, WcStatus::Success, 1 << 31));

    let sges = SgeList::new(&[Sge { lkey: kb, ..half(0) }, Sge { lkey: kb, ..half(1 << 30) }]);
    let recv = feroce_engine::RecvWr { wr_id: 9, sges };
    qb.rq.as_mut().unwrap().post(recv).unwrap();
    qa.sq.post(wr(3, SendOp::Send, longest)).unwrap();
    run_trains(&mut pair);
    assert_eq!(pair.a.poll().unwrap().status, WcStatus::Success);
    let received = pair.b.poll().unwrap();
    assert_eq!((received.wr_id, received.byte_len), (9, 1 << 31));

    let one_more = Sge { addr: 0, len: 1, lkey: ka };
    let too_long = Data::Sges(SgeList::new(&[half(0), half(1 << 30), one_more]));
    qa.sq.post(wr(4, SendOp::Write(remote), too_long)).unwrap();
    run_trains(&mut pair);
    assert_eq!(pair.a.poll().unwrap().status, WcStatus::LocalLength);
}
