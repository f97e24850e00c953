//! A pair of queue pairs that no input touches: whatever happens to the others, it must work.

use std::sync::Arc;

use feroce_engine::{
    AddrVec, CqId, CqPoller, CreatedQp, Data, QpAttr, QpInitAttr, QpType, RecvQueue, RecvWr,
    Remote, SendOp, SendQueue, SendWr, Sge, SgeList, WcStatus,
};
use feroce_mem::{Iova, PdId, Region};
use feroce_testkit::ALL;
use feroce_train::{Instant, RxTrain};
use feroce_wire::{Gid, Lkey, Pmtu, Psn, Qpn, Rkey};

use crate::host::{CAPS, Host, packets};

const MEMORY: usize = 16 << 10;
const LEN: usize = 3000;

/// One end.
struct End {
    pd: PdId,
    cq: CqId,
    poller: CqPoller,
    qpn: Qpn,
    sq: SendQueue,
    rq: RecvQueue,
    region: Arc<Region>,
    lkey: Lkey,
}

impl End {
    fn new(host: &mut Host) -> Self {
        let pd = host.base.engine.alloc_pd().expect("a protection domain");
        let (cq, poller) = host.base.engine.create_cq(16).expect("a completion queue");
        let init = host.init_attr(QpType::Rc, false);
        let init = QpInitAttr { pd, send_cq: cq, recv_cq: cq, ..init };
        let CreatedQp { qpn, sq, rq } = host.base.engine.create_qp(init).expect("a queue pair");
        let region = Region::alloc(MEMORY).expect("memory");
        let lkey =
            host.base.engine.reg_mr(pd, Arc::clone(&region), 0, MEMORY, Iova::ZeroBased, ALL);
        let (rq, lkey) = (rq.expect("a receive queue"), lkey.expect("a registration"));
        Self { pd, cq, poller, qpn, sq, rq, region, lkey }
    }

    fn connect(&self, host: &mut Host, now: Instant, peer: (Gid, Qpn)) {
        let av = AddrVec { dgid: peer.0, sgid_index: 1, ..AddrVec::default() };
        let psn = Psn::new(0x00ff_fffd);
        let rtr = QpAttr::rtr(av, peer.1, psn, Pmtu::B1024);
        for attr in [QpAttr::init(ALL), rtr, QpAttr::rts(psn)] {
            host.base.engine.modify_qp(now, self.qpn, &attr).expect("a transition");
        }
    }

    fn sges(&self, addr: usize, len: usize) -> SgeList {
        SgeList::from(Sge { addr: addr as u64, len: len as u32, lkey: self.lkey })
    }

    fn read(&self, at: usize) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        self.region.read_at(at, &mut bytes).expect("in bounds");
        bytes
    }

    fn completed(&mut self) -> usize {
        let mut count = 0;
        while let Some(cqe) = self.poller.poll() {
            assert_eq!(cqe.status, WcStatus::Success, "{cqe:?}");
            count += 1;
        }
        count
    }

    fn tear_down(self, host: &mut Host) {
        host.base.engine.destroy_qp(self.qpn).expect("a queue pair");
        host.base.engine.destroy_cq(self.cq).expect("an unused completion queue");
        let dereg = host.base.engine.dereg_mr(self.lkey).expect("a registration");
        assert!(dereg.is_quiet(), "a grant outlived the work it was for");
        host.base.engine.dealloc_pd(self.pd).expect("an unused protection domain");
    }
}

/// Both ends, connected.
pub(crate) struct CleanPair {
    a: End,
    b: End,
}

impl CleanPair {
    pub(crate) fn new(a: &mut Host, b: &mut Host, now: Instant) -> Self {
        let pair = Self { a: End::new(a), b: End::new(b) };
        pair.a.connect(a, now, (b.clean_gid, pair.b.qpn));
        pair.b.connect(b, now, (a.clean_gid, pair.a.qpn));
        pair
    }

    /// The number of the queue pair at the first host.
    pub(crate) fn qpn(&self) -> Qpn {
        self.a.qpn
    }

    /// Writes, reads and sends, over a network that loses nothing; then takes itself down.
    ///
    /// # Panics
    /// If that does not succeed within a few round trips.
    pub(crate) fn must_work(mut self, a: &mut Host, b: &mut Host, mut now: Instant) {
        let bytes: [u8; LEN] = core::array::from_fn(|i| (i * 7 + i / 256) as u8);
        self.a.region.write_at(0, &bytes).expect("in bounds");
        let recv = RecvWr { wr_id: 4, sges: self.b.sges(2 * LEN, LEN) };
        self.b.rq.post(recv).expect("room for a receive");
        let remote = Remote { addr: 0, rkey: Rkey(self.b.lkey.0) };
        let data = |at| Data::Sges(self.a.sges(at, LEN));
        let wrs = [
            SendWr::new(1, SendOp::Write(remote), data(0)),
            SendWr::new(2, SendOp::Read(remote), data(LEN)),
            SendWr::new(3, SendOp::Send, data(0)),
        ];
        for wr in wrs {
            self.a.sq.post(wr).expect("room for a send");
        }
        let mut done = 0;
        for _ in 0..100 {
            now = now.plus_nanos(1000);
            carry(now, a, b);
            carry(now, b, a);
            done += self.a.completed() + self.b.completed();
            if done == 4 {
                break;
            }
        }
        assert_eq!(done, 4, "the untouched pair is stuck: {:?}", a.base.engine.counters());
        for (end, at) in [(&self.b, 0), (&self.a, LEN), (&self.b, 2 * LEN)] {
            assert_eq!(end.read(at), bytes, "the untouched pair got other bytes");
        }
        self.a.tear_down(a);
        self.b.tear_down(b);
    }
}

/// Carries everything that `from` wants sent between the clean addresses; the rest is lost.
fn carry(now: Instant, from: &mut Host, to: &mut Host) {
    for _ in 0..1000 {
        let Some(train) = from.base.engine.poll_transmit(now, &CAPS) else {
            from.base.engine.trains_read();
            return;
        };
        if train.path.dst.gid == to.clean_gid {
            for packet in packets(&train) {
                to.base.engine.handle_rx(now, &RxTrain::single(packet.meta, &packet.bytes));
            }
        }
    }
    panic!("the engine sends for ever");
}
