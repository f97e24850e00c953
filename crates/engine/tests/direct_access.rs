//! Reads and writes that a requester executes in the memory of its peer by itself: the same memory,
//! order, completions and errors as with packets.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use feroce_engine::{
    Data, DirectPosted, QpAttr, QpInitAttr, QpState, QpType, SendFlags, SendOp, SendWr, SgeList,
    WcOpcode, WcStatus,
};
use feroce_mem::{
    Access, DirectPath, DirectWrite, HostMemory, Landing, Reach, Region, Revocation,
    RevocationEpoch, Source,
};
use feroce_testkit::{Mr, Pair, TestQp, wr};
use feroce_train::{InlineBytes, LinkCaps};
use feroce_wire::{Lkey, Qpn};

/// The state that two engines on one host share: the direct accesses that one of them granted.
#[derive(Debug)]
struct House {
    region: Arc<Region>,
    direct_table: Mutex<Vec<(DirectPath, Reach)>>,
    revoked: AtomicU32,
    passed: AtomicU64,
}

impl HostMemory for House {
    fn revocation_epoch(&self) -> RevocationEpoch {
        RevocationEpoch(self.revoked.load(Ordering::Relaxed))
    }

    fn is_quiet(&self, _: Revocation) -> bool {
        true
    }

    fn revoke_from(&self, peer: Qpn) {
        self.direct_table.lock().expect("no panic").retain(|(path, _)| path.to.1 != peer);
    }

    fn revoke_answers(&self) {
        self.revoked.fetch_add(1, Ordering::Relaxed);
        self.direct_table.lock().expect("no panic").clear();
    }

    fn open(&self, path: &DirectPath, reach: &Reach) {
        assert_eq!(reach.at, self.region.addr(), "all of the region");
        self.direct_table.lock().expect("no panic").push((*path, *reach));
    }

    fn write(&self, path: &DirectPath, write: &DirectWrite<'_>) -> bool {
        let DirectWrite { va, len, source, .. } = *write;
        let direct_table = self.direct_table.lock().expect("no panic");
        let Some((_, reach)) = direct_table.iter().find(|(known, _)| known == path) else {
            return false;
        };
        let fits = va >= reach.iova && va + len as u64 <= reach.iova + reach.len as u64;
        let at = (va - reach.iova) as usize;
        let is_done = fits
            && reach.access.contains(Access::REMOTE_WRITE)
            && self.region.write_from(at, len, source, 0).is_ok();
        self.passed.fetch_add(is_done.into(), Ordering::Relaxed);
        is_done
    }

    fn read(
        &self,
        path: &DirectPath,
        va: u64,
        len: usize,
        take: &mut dyn FnMut(&dyn Source) -> bool,
    ) -> bool {
        let direct_table = self.direct_table.lock().expect("no panic");
        let Some((_, reach)) = direct_table.iter().find(|(known, _)| known == path) else {
            return false;
        };
        let fits = va >= reach.iova && va + len as u64 <= reach.iova + reach.len as u64;
        let at = (va - reach.iova) as usize;
        let is_done =
            fits && reach.access.contains(Access::REMOTE_READ) && take(&Shelf(&self.region, at));
        self.passed.fetch_add(is_done.into(), Ordering::Relaxed);
        is_done
    }

    fn is_wide(&self, path: &DirectPath, _: u64, _: usize, _: Access) -> bool {
        self.direct_table.lock().expect("no panic").iter().any(|(known, _)| known == path)
    }

    fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }
}

/// Memory from some place on.
#[derive(Debug)]
struct Shelf<'a>(&'a Region, usize);

impl Source for Shelf<'_> {
    fn fetch(&self, offset: usize, landing: &mut Landing<'_>) -> bool {
        let len = landing.len();
        self.0.land(self.1 + offset, len, landing).is_ok()
    }
}

/// The view of the other engine, which grants no direct access.
#[derive(Debug)]
struct Neighbour(Arc<House>);

impl HostMemory for Neighbour {
    fn revocation_epoch(&self) -> RevocationEpoch {
        self.0.revocation_epoch()
    }

    fn is_quiet(&self, _: Revocation) -> bool {
        true
    }

    fn revoke_from(&self, peer: Qpn) {
        self.0.revoke_from(peer);
    }

    fn revoke_answers(&self) {}

    fn write(&self, path: &DirectPath, write: &DirectWrite<'_>) -> bool {
        self.0.write(path, write)
    }

    fn read(
        &self,
        path: &DirectPath,
        va: u64,
        len: usize,
        take: &mut dyn FnMut(&dyn Source) -> bool,
    ) -> bool {
        self.0.read(path, va, len, take)
    }

    fn is_wide(&self, path: &DirectPath, va: u64, len: usize, what: Access) -> bool {
        self.0.is_wide(path, va, len, what)
    }

    fn open(&self, _: &DirectPath, _: &Reach) {}

    fn passed(&self) -> u64 {
        self.0.passed()
    }
}

/// Two engines on one host, connected, after a first write, which opened direct access in the
/// second.
fn neighbours(init: impl FnOnce(&mut QpInitAttr)) -> (Pair, TestQp, TestQp, Arc<House>) {
    neighbours_with(init, QpAttr::default())
}

fn neighbours_with(
    init: impl FnOnce(&mut QpInitAttr),
    with: QpAttr,
) -> (Pair, TestQp, TestQp, Arc<House>) {
    let mut pair = Pair::default();
    let house = Arc::new(House {
        region: Arc::clone(&pair.b.region),
        direct_table: Mutex::default(),
        revoked: AtomicU32::new(0),
        passed: AtomicU64::new(0),
    });
    pair.a.engine.set_host_memory(Arc::new(Neighbour(Arc::clone(&house))));
    pair.b.engine.set_host_memory(Arc::<House>::clone(&house));
    let (mut ia, ib) = (pair.a.init_attr(QpType::Rc), pair.b.init_attr(QpType::Rc));
    init(&mut ia);
    let (mut qa, qb) = pair.connect_with(ia, ib, with);
    write(&mut pair, &mut qa, 0, 8, WcStatus::Success);
    assert_eq!(house.passed(), 0, "there was no direct yet");
    assert_eq!(house.direct_table.lock().expect("no panic").len(), 1);
    (pair, qa, qb, house)
}

/// Writes to the other host through the queue, and waits for the outcome.
fn write(pair: &mut Pair, qa: &mut TestQp, at: u64, len: u32, expected: WcStatus) {
    let bytes = pair.a.fill(at as usize, len as usize, at as u8);
    let op = SendOp::Write(pair.b.remote(at));
    qa.sq.post(wr(at, op, pair.a.data(at, len))).expect("posted");
    pair.run();
    let done = pair.a.poll().expect("complete");
    assert_eq!((done.wr_id, done.status, done.opcode), (at, expected, WcOpcode::Write));
    if expected == WcStatus::Success {
        assert_eq!(pair.b.read(at as usize, len as usize), bytes);
    }
}

#[test]
fn after_the_first_write_none_needs_packets() {
    let (mut pair, mut qa, _qb, house) = neighbours(|_| {});
    let (a, b) = (pair.a.engine.counters(), pair.b.engine.counters());
    for (i, len) in [1, 8, 9, 1023, 1024, 70_001].into_iter().enumerate() {
        let at = 100_000 + 100_000 * i as u64;
        write(&mut pair, &mut qa, at, len, WcStatus::Success);
        assert_eq!(house.passed(), i as u64 + 1);
    }
    let (sent, received) = (pair.a.engine.counters(), pair.b.engine.counters());
    assert_eq!(sent.sent_pkts, a.sent_pkts, "no packet");
    assert_eq!((sent.rdma_sends - a.rdma_sends, received.rdma_recvs - b.rdma_recvs), (6, 6));
}

#[test]
fn gathered_and_inline_bytes_pass_and_only_signalled_requests_report() {
    let (mut pair, mut qa, _qb, house) = neighbours(|_| {});
    let whole = pair.a.fill(5000, 300, 9);
    let sges = SgeList::from_iter([
        pair.a.sge(5000, 7),
        pair.a.sge(5007, 0),
        pair.a.sge(5007, 250),
        pair.a.sge(5257, 43),
    ]);
    let to = SendOp::Write(pair.b.remote(777));
    let quiet = SendWr { flags: SendFlags::empty(), ..wr(1, to, Data::Sges(sges)) };
    qa.sq.post(quiet).expect("posted");
    let to = SendOp::Write(pair.b.remote(2000));
    qa.sq.post(wr(2, to, Data::Inline(InlineBytes::new(b"inline")))).expect("posted");
    pair.run();
    assert_eq!(house.passed(), 2);
    assert_eq!(pair.b.read(777, 300), whole);
    assert_eq!(pair.b.read(2000, 6), b"inline");
    assert_eq!(pair.a.poll_all().iter().map(|cqe| cqe.wr_id).collect::<Vec<_>>(), [2]);
}

#[test]
fn reads_pass_as_writes_do() {
    let (mut pair, mut qa, _qb, house) = neighbours(|_| {});
    let bytes = pair.b.fill(3000, 50_000, 4);
    let sges = SgeList::from_iter([pair.a.sge(100, 7), pair.a.sge(60_000, 49_993)]);
    let read = SendOp::Read(pair.b.remote(3000));
    qa.sq.post(wr(1, read, Data::Sges(sges))).expect("posted");
    pair.run();
    let done = pair.a.poll().expect("complete");
    assert_eq!((done.wr_id, done.status, done.opcode), (1, WcStatus::Success, WcOpcode::Read));
    assert_eq!((done.byte_len, house.passed()), (50_000, 1));
    assert_eq!([pair.a.read(100, 7), pair.a.read(60_000, 49_993)].concat(), bytes);

    let short = wr(2, read, pair.a.data(0, 8));
    assert!(pair.a.engine.try_direct(|| pair.now, qa.qpn, &short));
    let done = pair.a.poll().expect("complete");
    assert_eq!((done.wr_id, done.byte_len, done.opcode), (2, 8, WcOpcode::Read));
    assert_eq!((pair.a.read(0, 8), house.passed()), (bytes[..8].to_vec(), 2));

    let mut wrong = pair.a.sge(0, 8);
    wrong.lkey = Lkey(wrong.lkey.0 ^ 0x5500);
    qa.sq.post(wr(3, read, Data::Sges(SgeList::from(wrong)))).expect("posted");
    pair.run();
    assert_eq!(pair.a.poll().expect("complete").status, WcStatus::LocalProtection);
    assert_eq!(house.passed(), 2);
}

/// Where a queue pair may not have reads outstanding, or its peer takes none, direct accesses
/// change nothing.
#[test]
fn a_read_needs_its_resource_as_on_the_wire() {
    for ours in [true, false] {
        let (zero, some) = (Some(0), Some(4));
        let with = match ours {
            true => QpAttr { max_rd_atomic: zero, max_dest_rd_atomic: some, ..QpAttr::default() },
            false => QpAttr { max_rd_atomic: some, max_dest_rd_atomic: zero, ..QpAttr::default() },
        };
        let (mut pair, mut qa, _qb, house) = neighbours_with(|_| {}, with);
        let read = SendOp::Read(pair.b.remote(0));
        qa.sq.post(wr(1, read, pair.a.data(0, 8))).expect("posted");
        pair.run();
        let status = pair.a.poll().expect("complete").status;
        let expected =
            if ours { WcStatus::LocalQpOperation } else { WcStatus::RemoteInvalidRequest };
        assert_eq!((status, house.passed()), (expected, 0));
    }
}

/// A direct access does not overtake earlier requests: it sees the memory that they leave.
#[test]
fn nothing_overtakes_what_is_under_way() {
    let (mut pair, mut qa, mut qb, house) = neighbours(|_| {});
    pair.a.fill(0, 64, 1);
    let recv = pair.b.recv(9, 500, 64);
    qb.rq.as_mut().expect("receives").post(recv).expect("posted");
    qa.sq.post(wr(1, SendOp::Send, pair.a.data(0, 64))).expect("posted");
    qa.sq.post(wr(2, SendOp::Write(pair.b.remote(500)), pair.a.data(64, 64))).expect("posted");
    let first = pair.a.transmit(pair.now);
    assert_eq!(house.passed(), 0, "the send is not acknowledged");
    assert_eq!(first.len(), 2, "both are on their way");
    for packet in first {
        pair.b.receive(pair.now, &packet);
    }
    pair.run();
    assert_eq!(house.passed(), 0);
    assert_eq!(pair.b.read(500, 64), pair.a.read(64, 64), "the write came last");
    assert_eq!(pair.a.poll_all().len(), 2);
    write(&mut pair, &mut qa, 600, 8, WcStatus::Success);
    assert_eq!(house.passed(), 1, "now there is nothing before it");
}

/// Otherwise a consumer that always has requests under way would never use direct access.
#[test]
fn long_writes_that_follow_others_wait_until_they_can_pass() {
    let (mut pair, mut qa, _qb, house) = neighbours(|_| {});
    let long = |pair: &Pair, id: u64, op: SendOp| wr(id, op, pair.a.data(0, 32 << 10));
    let op = SendOp::Write(pair.b.remote(0));
    // Before the requester has direct access, the writes go one after another as packets.
    let direct_table = std::mem::take(&mut *house.direct_table.lock().expect("no panic"));
    for id in 1..=2 {
        qa.sq.post(long(&pair, id, op)).expect("posted");
    }
    let under_way = pair.a.transmit(pair.now);
    *house.direct_table.lock().expect("no panic") = direct_table;
    for id in 3..=10 {
        qa.sq.post(long(&pair, id, op)).expect("posted");
    }
    assert!(pair.a.transmit(pair.now).is_empty(), "they wait for the first two");
    for packet in under_way {
        pair.b.receive(pair.now, &packet);
    }
    pair.run();
    let ids: Vec<u64> = pair.a.poll_all().iter().map(|done| done.wr_id).collect();
    assert_eq!((ids, house.passed()), ((1..=10).collect(), 8));
}

/// A queue pair yields after some of its long messages, so that others do not wait for all of them.
#[test]
fn others_have_their_turn_between_long_messages() {
    let (mut pair, mut qa, _qb, house) = neighbours(|_| {});
    let len = 400 << 10;
    for id in 1..=7 {
        let op = SendOp::Write(pair.b.remote(0));
        qa.sq.post(wr(id, op, pair.a.data(0, len))).expect("posted");
    }
    for (turn, passed) in [3, 6, 7].into_iter().enumerate() {
        assert!(pair.a.transmit(pair.now).is_empty());
        assert_eq!(house.passed(), passed, "after turn {turn}");
    }
    assert_eq!(pair.a.poll_all().len(), 7);
}

/// The requests before it are unsignalled, so their packets requested no acknowledgement.
#[test]
fn what_waits_for_a_direct_access_asks_for_the_answers_that_it_needs() {
    let (mut pair, mut qa, _qb, house) = neighbours(|_| {});
    let direct_table = std::mem::take(&mut *house.direct_table.lock().expect("no panic"));
    let op = SendOp::Write(pair.b.remote(0));
    for id in 1..=2 {
        let quiet = wr(id, op, pair.a.data(0, 32 << 10));
        qa.sq.post(SendWr { flags: SendFlags::empty(), ..quiet }).expect("posted");
        if id == 1 {
            let under_way = pair.a.transmit(pair.now);
            *house.direct_table.lock().expect("no panic") = direct_table.clone();
            for packet in under_way {
                pair.b.receive(pair.now, &packet);
            }
        }
    }
    pair.run();
    // The requester requests the acknowledgement now, because the second write waits for it.
    pair.wait(1);
    pair.run();
    assert_eq!((qa.sq.outstanding(), house.passed()), (0, 1));
}

/// If it waited, the requests after it would have to wait as well.
#[test]
fn who_follows_what_cannot_pass_does_not_wait() {
    let (mut pair, mut qa, mut qb, house) = neighbours(|_| {});
    let recv = pair.b.recv(9, 0, 64);
    qb.rq.as_mut().expect("receives").post(recv).expect("posted");
    let before = pair.a.engine.counters().rdma_sends;
    qa.sq.post(wr(1, SendOp::Send, pair.a.data(0, 64))).expect("posted");
    let op = SendOp::Write(pair.b.remote(1000));
    qa.sq.post(wr(2, op, pair.a.data(0, 32 << 10))).expect("posted");
    pair.a.transmit(pair.now);
    assert_eq!(house.passed(), 0);
    assert_eq!(pair.a.engine.counters().rdma_sends - before, 2, "both are on their way");
}

#[test]
fn a_right_that_ends_shuts_every_direct_access() {
    let (mut pair, mut qa, _qb, house) = neighbours(|_| {});
    write(&mut pair, &mut qa, 100, 8, WcStatus::Success);
    assert_eq!(house.passed(), 1);
    let before = pair.b.read(200, 8);
    assert!(pair.b.engine.dereg_mr(pair.b.lkey).expect("ended").is_quiet());
    write(&mut pair, &mut qa, 200, 8, WcStatus::RemoteAccess);
    assert_eq!((house.passed(), pair.b.read(200, 8)), (1, before));
}

#[test]
fn a_queue_pair_that_stops_shuts_its_direct_accesses() {
    let (mut pair, mut qa, qb, house) = neighbours(|_| {});
    let error = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
    pair.b.modify(pair.now, qb.qpn, &error);
    qa.sq.post(wr(5, SendOp::Write(pair.b.remote(0)), pair.a.data(0, 8))).expect("posted");
    for _ in 0..100 {
        pair.run();
        pair.wait(1_000_000_000);
    }
    assert_eq!(pair.a.poll().expect("complete").status, WcStatus::RetryExceeded);
    assert_eq!(house.passed(), 0);
}

#[test]
fn access_that_is_taken_away_shuts_the_direct_accesses() {
    let (mut pair, mut qa, qb, house) = neighbours(|_| {});
    let none = QpAttr { access: Some(Access::empty()), ..QpAttr::default() };
    pair.b.modify(pair.now, qb.qpn, &none);
    write(&mut pair, &mut qa, 8, 8, WcStatus::RemoteInvalidRequest);
    assert_eq!(house.passed(), 0);
}

/// Errors are those of packets, and nothing is written.
#[test]
fn whatever_is_wrong_is_found_on_the_wire() {
    let end = feroce_testkit::MEMORY as u64;
    let (mut pair, mut qa, _qb, house) = neighbours(|_| {});
    write(&mut pair, &mut qa, end - 4, 4, WcStatus::Success);
    assert_eq!(house.passed(), 1);
    qa.sq.post(wr(1, SendOp::Write(pair.b.remote(end - 4)), pair.a.data(0, 5))).expect("posted");
    pair.run();
    assert_eq!(pair.a.poll().expect("complete").status, WcStatus::RemoteAccess, "beyond the end");

    let (mut pair, mut qa, _qb, house) = neighbours(|_| {});
    pair.b.fill(0, 64, 3);
    let before = pair.b.read(0, 64);
    let mut wrong = pair.a.sge(0, 8);
    wrong.lkey = Lkey(wrong.lkey.0 ^ 0x5500);
    let sges = SgeList::from_iter([pair.a.sge(0, 8), wrong]);
    qa.sq.post(wr(1, SendOp::Write(pair.b.remote(0)), Data::Sges(sges))).expect("posted");
    pair.run();
    assert_eq!(pair.a.poll().expect("complete").status, WcStatus::LocalProtection);
    assert_eq!((house.passed(), pair.b.read(0, 64)), (0, before));
}

#[test]
fn a_request_may_pass_instead_of_being_posted() {
    let (mut pair, mut qa, mut qb, house) = neighbours(|init| init.sq_sig_all = true);
    let request = |pair: &Pair, id: u64| SendWr {
        flags: SendFlags::empty(),
        ..wr(id, SendOp::Write(pair.b.remote(300)), pair.a.data(0, 16))
    };
    assert!(!qa.sq.may_go_direct(), "none has passed");
    write(&mut pair, &mut qa, 40, 8, WcStatus::Success);
    assert!(qa.sq.may_go_direct());
    let bytes = pair.a.fill(0, 16, 8);
    assert!(pair.a.engine.try_direct(|| pair.now, qa.qpn, &request(&pair, 1)));
    assert_eq!((house.passed(), pair.b.read(300, 16)), (2, bytes));
    let done = pair.a.poll().expect("complete");
    assert_eq!((done.wr_id, done.status, done.opcode), (1, WcStatus::Success, WcOpcode::Write));

    let send = wr(2, SendOp::Send, pair.a.data(0, 16));
    assert!(!pair.a.engine.try_direct(|| pair.now, qa.qpn, &send), "a send needs a receive");
    assert!(!qa.sq.may_go_direct(), "none is tried while none would pass");
    let recv = pair.b.recv(9, 500, 64);
    qb.rq.as_mut().expect("receives").post(recv).expect("posted");
    qa.sq.post(send).expect("posted");
    assert!(!pair.a.engine.try_direct(|| pair.now, qa.qpn, &request(&pair, 3)), "one is before it");
    pair.run();
    assert_eq!(pair.a.poll().expect("complete").wr_id, 2);
    write(&mut pair, &mut qa, 48, 8, WcStatus::Success);
    assert_eq!(house.passed(), 3);
}

#[test]
fn posted_requests_pass_up_to_the_first_that_does_not() {
    let (mut pair, mut qa, mut qb, house) = neighbours(|_| {});
    write(&mut pair, &mut qa, 40, 8, WcStatus::Success);
    let bytes = pair.a.fill(0, 256, 9);
    let to = |pair: &Pair, id: u64, flags| {
        let op = SendOp::Write(pair.b.remote(1000 + 4 * id));
        SendWr { flags, ..wr(id, op, pair.a.data(4 * id, 4)) }
    };
    let (told, quiet) = (SendFlags::SIGNALED, SendFlags::empty());
    let ids = |pair: &mut Pair| -> Vec<u64> {
        std::iter::from_fn(|| pair.a.poll()).map(|cqe| cqe.wr_id).collect()
    };
    // More than go together, and a READ of what the first ones wrote.
    for id in 0..20 {
        qa.sq.stage(to(&pair, id, if id % 5 == 0 { told } else { quiet })).expect("staged");
    }
    let read = SendOp::Read(pair.b.remote(1000));
    qa.sq.stage(wr(20, read, pair.a.data(2000, 80))).expect("staged");
    qa.sq.stage(to(&pair, 21, quiet)).expect("staged");
    qa.sq.stage(to(&pair, 22, told)).expect("staged");
    qa.sq.show();
    assert_eq!(pair.a.engine.try_direct_posted(|| pair.now, qa.qpn), DirectPosted::All);
    assert!(qa.sq.may_go_direct());
    assert_eq!(ids(&mut pair), [0, 5, 10, 15, 20, 22]);
    assert_eq!(pair.a.read(2000, 80), bytes[..80]);
    assert_eq!(pair.b.read(1084, 8), bytes[84..92]);
    assert_eq!(house.passed(), 24);

    // A SEND, and what is behind it, is left to the queue.
    qb.rq.as_mut().expect("receives").post(pair.b.recv(9, 500, 64)).expect("posted");
    qa.sq.stage(to(&pair, 1, told)).expect("staged");
    qa.sq.stage(wr(2, SendOp::Send, pair.a.data(0, 16))).expect("staged");
    qa.sq.stage(to(&pair, 3, told)).expect("staged");
    qa.sq.show();
    assert_eq!(pair.a.engine.try_direct_posted(|| pair.now, qa.qpn), DirectPosted::UpToOne);
    assert!(!qa.sq.may_go_direct());
    assert_eq!((ids(&mut pair), house.passed()), (vec![1], 25));
    qa.sq.ring();
    pair.run();
    assert_eq!(ids(&mut pair), [2, 3]);

    // Nothing passes what is under way.
    qb.rq.as_mut().expect("receives").post(pair.b.recv(9, 500, 64)).expect("posted");
    qa.sq.post(wr(4, SendOp::Send, pair.a.data(0, 16))).expect("posted");
    pair.a.engine.poll_transmit(pair.now, &LinkCaps { max_packets: 1, max_bytes: 4096 });
    qa.sq.stage(to(&pair, 5, told)).expect("staged");
    qa.sq.show();
    assert_eq!(pair.a.engine.try_direct_posted(|| pair.now, qa.qpn), DirectPosted::UpToOne);
    assert_eq!(ids(&mut pair), []);
}

#[test]
fn a_list_passes_up_to_the_first_request_that_fails_a_check() {
    let (mut pair, mut qa, _qb, house) = neighbours(|_| {});
    write(&mut pair, &mut qa, 40, 8, WcStatus::Success);
    // The requests name two keys in turn, and the seventh one a key that does not exist.
    let (pd, region, access) = (pair.a.pd, Arc::clone(&pair.a.region), Access::LOCAL_WRITE);
    let other = Mr::register(&mut pair.a.engine, pd, &region, (0, 4096), Some(0), access);
    let bytes = pair.a.fill(0, 80, 5);
    for id in 0..10 {
        let mut sge = pair.a.sge(8 * id, 8);
        sge.lkey = match id {
            6 => Lkey(sge.lkey.0 ^ 0x5500),
            _ if id % 2 == 1 => other.lkey(),
            _ => sge.lkey,
        };
        let op = SendOp::Write(pair.b.remote(1000 + 8 * id));
        qa.sq.stage(wr(id, op, Data::Sges(SgeList::from(sge)))).expect("staged");
    }
    qa.sq.show();
    let before = pair.b.read(1048, 32);
    assert_eq!(pair.a.engine.try_direct_posted(|| pair.now, qa.qpn), DirectPosted::UpToOne);
    assert_eq!(house.passed(), 7);
    qa.sq.ring();
    pair.run();
    let done: Vec<_> = pair.a.poll_all().iter().map(|cqe| (cqe.wr_id, cqe.status)).collect();
    let failed =
        [WcStatus::LocalProtection, WcStatus::Flushed, WcStatus::Flushed, WcStatus::Flushed];
    let passed = (0..6).map(|id| (id, WcStatus::Success));
    assert!(done.into_iter().eq(passed.chain((6..).zip(failed))));
    assert_eq!((pair.b.read(1000, 48), pair.b.read(1048, 32)), (bytes[..48].to_vec(), before));
}

#[test]
fn a_list_of_all_short_lengths_passes() {
    let (mut pair, mut qa, _qb, house) = neighbours(|_| {});
    write(&mut pair, &mut qa, 40, 8, WcStatus::Success);
    let (bytes, lens) = (pair.a.fill(1, 4000, 7), [1, 2, 7, 8, 9, 63, 64, 65, 500, 16 << 10]);
    for (id, len) in (0..).zip(lens) {
        let data = match id % 3 {
            2 if len < 500 => Data::Inline(InlineBytes::new(&bytes[..len as usize])),
            _ => pair.a.data(1, len),
        };
        let op = SendOp::Write(pair.b.remote(0x2_0001 + 0x1000 * id));
        qa.sq.stage(wr(id, op, data)).expect("staged");
    }
    qa.sq.show();
    assert_eq!(pair.a.engine.try_direct_posted(|| pair.now, qa.qpn), DirectPosted::All);
    assert_eq!((house.passed(), pair.a.poll_all().len()), (11, 10));
    for (id, len) in lens.into_iter().enumerate() {
        let (len, at) = ((len as usize).min(4000), 0x2_0001 + 0x1000 * id);
        assert_eq!(pair.b.read(at, len), bytes[..len], "{len} bytes");
    }
}

#[test]
fn a_list_that_overruns_its_completion_queue_stops_the_queue_pair() {
    let (mut pair, mut qa, _qb, _house) = neighbours(|_| {});
    write(&mut pair, &mut qa, 40, 8, WcStatus::Success);
    let cq = pair.a.cq;
    pair.a.engine.resize_cq(cq, &mut pair.a.poller, 2).expect("empty");
    for id in 0..4 {
        let op = SendOp::Write(pair.b.remote(1000));
        qa.sq.stage(wr(id, op, pair.a.data(0, 8))).expect("staged");
    }
    qa.sq.show();
    pair.a.engine.try_direct_posted(|| pair.now, qa.qpn);
    assert_eq!(pair.a.poll_all().iter().map(|cqe| cqe.wr_id).collect::<Vec<_>>(), [0, 1]);
    assert_eq!((qa.sq.state(), pair.a.engine.counters().cq_overrun), (QpState::Err, 1));
}

#[test]
fn after_a_megabyte_others_have_the_engine() {
    let (mut pair, mut qa, _qb, _house) = neighbours(|init| init.cap.max_send_wr = 128);
    write(&mut pair, &mut qa, 40, 8, WcStatus::Success);
    const LEN: u32 = 16 << 10;
    for id in 0..100 {
        let op = SendOp::Write(pair.b.remote(0));
        qa.sq.stage(wr(id, op, pair.a.data(0, LEN))).expect("staged");
    }
    qa.sq.show();
    assert_eq!(pair.a.engine.try_direct_posted(|| pair.now, qa.qpn), DirectPosted::Some);
    let first: Vec<_> = std::iter::from_fn(|| pair.a.poll()).collect();
    assert_eq!(first.len(), 64, "a megabyte");
    assert_eq!(pair.a.engine.try_direct_posted(|| pair.now, qa.qpn), DirectPosted::All);
    assert_eq!(std::iter::from_fn(|| pair.a.poll()).count(), 36);
}
