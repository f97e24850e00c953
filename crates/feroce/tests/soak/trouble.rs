//! Destruction and revocation of objects in use: queue pairs, memory regions, access rights.

use feroce::{Access, Bind, MwType, SendOp, SendWr, WcStatus};

use crate::common::ALL;
use crate::random::pattern;
use crate::{SHARE, Soak, success};

/// Writes that are under way when something is taken away.
const UNDER_WAY: usize = 8;
/// Their length.
const LEN: usize = 20_000;

impl Soak {
    /// Destroys both queue pairs while writes are under way. Afterwards every byte of the target
    /// is an old one or a new one, and nothing changes any more.
    pub(crate) fn recreate(&mut self, at: usize) -> &'static str {
        let (from, to) = (self.random.place(LEN), self.random.place(LEN));
        let seed = self.id() as u32;
        let pair = &mut self.pairs[at];
        let new = pattern(seed, LEN);
        pair.done.push(("write when destroyed", from, to, LEN));
        self.a.mr.write_at(pair.base + from, &new).expect("inside");
        pair.ours[from..from + LEN].copy_from_slice(&new);
        let (base, remote) = (pair.base, self.b.mr.remote(pair.base + to));
        let data = || self.a.mr.data(base + from..base + from + LEN);
        let write = |id| SendWr::new(id, SendOp::Write(remote), data());
        pair.qa().post_send((0..UNDER_WAY as u64).map(write)).expect("there is room");
        // Dropping the queue pairs may or may not drop their completions, so the test empties the
        // completion queue.
        pair.reconnect(&self.a, &self.b);
        while self.a.cq.poll_one().is_some() {}
        let now = self.b.read(base + to, LEN);
        let old = &mut pair.theirs[to..to + LEN];
        let explained =
            now.iter().zip(&*old).zip(&new).all(|((now, old), new)| now == old || now == new);
        assert!(explained, "a byte that no request wrote");
        old.copy_from_slice(&now);
        "queue pairs destroyed in use"
    }

    /// Ends the registration of the target while writes are under way.
    pub(crate) fn deregister_target(&mut self, at: usize) -> &'static str {
        let doomed = self.b.pd.alloc_mr(LEN, ALL).expect("memory");
        let ids: Vec<u64> = (0..UNDER_WAY).map(|_| self.id()).collect();
        self.pairs[at].done.push(("deregister target", 0, 0, LEN));
        let (base, remote) = (self.pairs[at].base, doomed.remote(0));
        let data = || self.a.mr.data(base..base + LEN);
        let write = |&id: &u64| SendWr::new(id, SendOp::Write(remote), data());
        let requests: Vec<SendWr> = ids.iter().map(write).collect();
        self.pairs[at].qa().post_send(requests).expect("there is room");
        drop(doomed);
        let failure = self.broken(&ids);
        assert!(failure.is_none_or(is_refusal), "{failure:?}");
        self.pairs[at].reconnect(&self.a, &self.b);
        "target deregistered in use"
    }

    /// Ends the registration of the source while writes are under way.
    pub(crate) fn deregister_source(&mut self, at: usize) -> &'static str {
        let doomed = self.a.pd.alloc_mr(LEN, ALL).expect("memory");
        let target = self.b.pd.alloc_mr(LEN, ALL).expect("memory");
        let ids: Vec<u64> = (0..UNDER_WAY).map(|_| self.id()).collect();
        self.pairs[at].done.push(("deregister source", 0, 0, LEN));
        let bytes = pattern(ids[0] as u32, LEN);
        doomed.write_at(0, &bytes).expect("inside");
        let write =
            |&id: &u64| SendWr::new(id, SendOp::Write(target.remote(0)), doomed.data(0..LEN));
        let requests: Vec<SendWr> = ids.iter().map(write).collect();
        self.pairs[at].qa().post_send(requests).expect("there is room");
        drop(doomed);
        let failure = self.broken(&ids);
        assert!(matches!(failure, None | Some(WcStatus::LocalProtection)), "{failure:?}");
        let mut now = vec![0; LEN];
        target.read_at(0, &mut now).expect("inside");
        let explained = now.iter().zip(&bytes).all(|(now, new)| *now == 0 || now == new);
        assert!(explained, "a byte that no request wrote");
        self.pairs[at].reconnect(&self.a, &self.b);
        "source deregistered in use"
    }

    /// Binds a window to a part of the memory of `b`, writes through it, and takes it away.
    pub(crate) fn window(&mut self, at: usize) -> &'static str {
        let len = 1 + self.random.len().min(SHARE - 1);
        let (to, from) = (self.random.place(len), self.random.place(len));
        let [bind_id, write_id, inv_id, late_id] = std::array::from_fn(|_| self.id());
        let mut mw = self.b.pd.alloc_mw(MwType::Two).expect("a window");
        let rkey = mw.next_rkey();
        let pair = &mut self.pairs[at];
        pair.done.push(("window", from, to, len));
        let (base, addr) = (pair.base, self.b.mr.addr() + (pair.base + to) as u64);
        let binding = Bind {
            mr: self.b.mr.lkey(),
            addr,
            len: len as u64,
            access: Access::REMOTE_WRITE,
            zero_based: false,
        };
        let bind = SendOp::BindMw { mw: mw.rkey(), new_rkey: rkey, binding };
        pair.qb().post_send([SendWr::new(bind_id, bind, feroce::Data::EMPTY)]).expect("room");
        success(&self.b, bind_id);
        mw.set_rkey(rkey);

        let remote = feroce::Remote { addr, rkey };
        let data = |len: usize| self.a.mr.data(base + from..base + from + len);
        pair.qa()
            .post_send([SendWr::new(write_id, SendOp::Write(remote), data(len))])
            .expect("room");
        pair.theirs[to..to + len].copy_from_slice(&pair.ours[from..from + len]);
        success(&self.a, write_id);

        let invalidate = SendOp::LocalInv(rkey);
        pair.qb().post_send([SendWr::new(inv_id, invalidate, feroce::Data::EMPTY)]).expect("room");
        success(&self.b, inv_id);
        pair.qa()
            .post_send([SendWr::new(late_id, SendOp::Write(remote), data(len))])
            .expect("room");
        let failure = self.broken(&[late_id]);
        assert!(failure.is_some_and(is_refusal), "{failure:?}");
        self.pairs[at].reconnect(&self.a, &self.b);
        "memory window bound, used, invalidated"
    }
}

/// Whether the peer refused a request. The responder sends one NAK and goes to the error state. If
/// that packet is lost, the requester gets no further answer.
fn is_refusal(failure: WcStatus) -> bool {
    let is_lossy = std::env::var_os("FEROCE_FAULT").is_some_and(|fault| !fault.is_empty());
    failure == WcStatus::RemoteAccess || is_lossy && failure == WcStatus::RetryExceeded
}
