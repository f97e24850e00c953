//! One end of a pingpong: its queues, and the exchange of messages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use feroce::{
    AddrVec, Ah, Cq, Cqe, Dest, Notify, Pd, Psn, Qkey, Qp, QpAttr, QpCap, QpState, SendOp, SendWr,
    Srq, WcStatus,
};

use super::exchange::Address;
use super::memory::{GRH, Layout, Memory};
use super::place::Place;
use super::report::{Outcome, Role};
use super::{Kind, Plan};

/// Queue key of the datagram program.
const QKEY: Qkey = Qkey(0x1111_1111);

/// Work request ids, which tell what a completion belongs to. The low half of that of a receive is
/// its buffer.
const RECV: u64 = 1 << 32;
const SEND: u64 = 2 << 32;

/// Empty polls after which a thread sleeps even without `--events`.
const SPINS: u32 = 2000;

/// Interval at which a sleeping thread checks whether to stop, in milliseconds.
const NAP_MS: u16 = 50;

/// A queue pair and the completions that it waits for.
#[derive(Debug)]
struct Lane {
    qp: Qp,
    psn: Psn,
    /// Where datagrams go.
    dest: Dest,
    /// Keeps the address handle alive while datagrams use it.
    ah: Option<Ah>,
    send_pending: bool,
    recv_pending: bool,
}

/// One end, ready to exchange messages once it is connected.
#[derive(Debug)]
pub(super) struct Session {
    plan: Plan,
    role: Role,
    place: Place,
    lanes: Vec<Lane>,
    by_qpn: BTreeMap<u32, usize>,
    srq: Option<Srq>,
    cq: Cq,
    memory: Memory,
    pd: Pd,
    /// Receives that are posted.
    posted: u32,
    outcome: Outcome,
}

impl Session {
    /// Creates everything that does not depend on the peer, and posts the receives.
    pub(super) fn new(plan: &Plan, role: Role, place: Place) -> anyhow::Result<Self> {
        plan.check_port(&place.context.port())?;
        let pd = place.context.alloc_pd()?;
        let cq = place.context.create_cq(plan.rx_depth.saturating_add(plan.num_qp))?;
        let srq = match plan.kind {
            Kind::Srq => Some(pd.create_srq(plan.rx_depth, 1)?),
            _ => None,
        };
        let mut session = Self {
            memory: Memory::new(&pd, layout(plan, role))?,
            plan: plan.clone(),
            role,
            place,
            lanes: Vec::new(),
            by_qpn: BTreeMap::new(),
            srq,
            cq,
            pd,
            posted: 0,
            outcome: Outcome::default(),
        };
        for _ in 0..plan.num_qp {
            session.add_lane()?;
        }
        session.post_receives()?;
        if plan.events {
            session.cq.notify(Notify::Next);
        }
        Ok(session)
    }

    fn add_lane(&mut self) -> anyhow::Result<()> {
        let receives = if self.srq.is_some() { 0 } else { self.plan.rx_depth };
        let cap =
            QpCap { max_send_sge: 1, max_recv_sge: 1, max_inline: 0, ..QpCap::new(1, receives) };
        let builder = match self.plan.kind {
            Kind::Rc | Kind::Srq => self.pd.rc_qp(&self.cq, &self.cq, cap),
            Kind::Uc => self.pd.uc_qp(&self.cq, &self.cq, cap),
            Kind::Ud => self.pd.ud_qp(&self.cq, &self.cq, cap),
        };
        let builder = match &self.srq {
            Some(srq) => builder.srq(srq),
            None => builder,
        };
        let mut qp = builder.create().context("cannot create a queue pair")?;
        let init = match self.plan.kind {
            Kind::Ud => QpAttr::init_ud(QKEY),
            _ => QpAttr::init(feroce::Access::empty()),
        };
        qp.modify(&init)?;
        let psn = qp.endpoint_at(self.place.gid_index)?.psn;
        self.by_qpn.insert(qp.qpn().get(), self.lanes.len());
        let dest = Dest::Connected;
        let lane = Lane { qp, psn, dest, ah: None, send_pending: false, recv_pending: true };
        self.lanes.push(lane);
        Ok(())
    }

    /// The addresses to send to the peer.
    pub(super) fn addresses(&self) -> Vec<Address> {
        let address = |lane: &Lane| Address {
            lid: self.place.lid.0,
            qpn: lane.qp.qpn(),
            psn: lane.psn,
            gid: self.place.gid,
        };
        self.lanes.iter().map(address).collect()
    }

    /// The device and the address in use.
    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Connects every queue pair to its counterpart.
    pub(super) fn connect(&mut self, peers: &[Address]) -> anyhow::Result<()> {
        for (i, peer) in peers.iter().enumerate().take(self.lanes.len()) {
            let way = self.place.way_to(peer).with_context(|| match i {
                0 => "cannot reach the peer".to_owned(),
                _ => format!("the peer has only {i} queue pairs: give both ends the same -q"),
            })?;
            self.connect_lane(i, peer, AddrVec { sl: self.plan.sl, ..way })?;
        }
        Ok(())
    }

    fn connect_lane(&mut self, i: usize, peer: &Address, av: AddrVec) -> anyhow::Result<()> {
        let lane = &mut self.lanes[i];
        let mtu = self.plan.mtu;
        match self.plan.kind {
            Kind::Rc | Kind::Srq => {
                let rtr = QpAttr::rtr(av, peer.qpn, peer.psn, mtu);
                lane.qp.modify(&QpAttr { max_dest_rd_atomic: Some(1), ..rtr })?;
                lane.qp.modify(&QpAttr { max_rd_atomic: Some(1), ..QpAttr::rts(lane.psn) })?;
            }
            Kind::Uc => {
                lane.qp.modify(&QpAttr::rtr_uc(av, peer.qpn, peer.psn, mtu))?;
                lane.qp.modify(&QpAttr::rts_unreliable(lane.psn))?;
            }
            Kind::Ud => {
                lane.qp.modify(&QpAttr::to(QpState::Rtr))?;
                lane.qp.modify(&QpAttr::rts_unreliable(lane.psn))?;
                let ah = self.pd.create_ah(av)?;
                lane.dest = ah.dest(peer.qpn, QKEY);
                lane.ah = Some(ah);
            }
        }
        Ok(())
    }

    /// Exchanges messages until each direction has carried the requested number, or `stop` is set.
    pub(super) fn exchange(mut self, stop: &Arc<AtomicBool>) -> anyhow::Result<(Self, Outcome)> {
        let begin = Instant::now();
        if self.role == Role::Client {
            for i in 0..self.lanes.len() {
                self.post_send(i)?;
            }
        }
        // Capacity for all completions of the CQ: a CQ event is raised only for completions that
        // arrive after it was armed, so each poll must take all that are there.
        let mut completions: Vec<Cqe> = Vec::with_capacity(self.cq.depth());
        let iters = self.plan.iters;
        while self.outcome.received < iters || self.outcome.sent < iters {
            if stop.load(Ordering::Relaxed) {
                self.outcome.interrupted = true;
                break;
            }
            self.wait(&mut completions, stop)?;
            for cqe in completions.drain(..) {
                self.handle(&cqe)?;
            }
        }
        self.outcome.seconds = begin.elapsed().as_secs_f64();
        if self.plan.check && self.role == Role::Server && !self.outcome.interrupted {
            self.outcome.invalid_pages = self.memory.invalid_pages()?;
        }
        let outcome = std::mem::take(&mut self.outcome);
        Ok((self, outcome))
    }

    /// Waits for completions, or until `stop` is set.
    fn wait(&self, into: &mut Vec<Cqe>, stop: &AtomicBool) -> anyhow::Result<()> {
        if !self.plan.events {
            for spin in 0..SPINS {
                if self.cq.poll(into) > 0 {
                    return Ok(());
                }
                match spin % 64 {
                    63 => std::thread::yield_now(),
                    _ => std::hint::spin_loop(),
                }
            }
            self.cq.notify(Notify::Next);
            // A completion that arrived before the CQ was armed raises no event.
            if self.cq.poll(into) > 0 {
                return Ok(());
            }
        }
        let since = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            if self.cq.channel().wait(Some(NAP_MS))?.is_some() {
                self.cq.notify(Notify::Next);
            }
            if self.cq.poll(into) > 0 {
                return Ok(());
            }
            if self.plan.patience.is_some_and(|patience| since.elapsed() > patience) {
                bail!(self.describe_silence());
            }
        }
        Ok(())
    }

    fn describe_silence(&self) -> String {
        let (sent, received) = (self.outcome.sent, self.outcome.received);
        let seconds = self.plan.patience.unwrap_or(Duration::ZERO).as_secs();
        let why = match self.plan.kind {
            Kind::Rc | Kind::Srq => "the peer is gone",
            Kind::Uc | Kind::Ud => "a message was lost, which this service does not mend",
        };
        format!(
            "nothing came for {seconds} s after {sent} sent and {received} received of {}: \
             probably {why}",
            self.plan.iters
        )
    }

    fn handle(&mut self, cqe: &Cqe) -> anyhow::Result<()> {
        if cqe.status != WcStatus::Success {
            bail!(describe_status(cqe));
        }
        let i = *self.by_qpn.get(&cqe.qpn.get()).context("a completion of no queue pair")?;
        if cqe.wr_id & RECV != 0 {
            self.outcome.received += 1;
            self.posted -= 1;
            self.lanes[i].recv_pending = false;
            self.handle_message(cqe)?;
        } else {
            self.outcome.sent += 1;
            self.lanes[i].send_pending = false;
        }
        let lane = &self.lanes[i];
        if self.outcome.sent < self.plan.iters && !lane.send_pending && !lane.recv_pending {
            self.post_send(i)?;
        }
        Ok(())
    }

    fn handle_message(&mut self, cqe: &Cqe) -> anyhow::Result<()> {
        let slot = cqe.wr_id & (RECV - 1);
        if self.plan.check && self.role == Role::Client && !self.memory.is_echo(slot)? {
            self.outcome.wrong_echoes += 1;
        }
        self.memory.release(slot);
        if self.plan.timestamps {
            self.outcome.ticks.add(cqe.timestamp.as_nanos());
        }
        // Every queue pair needs a receive at all times.
        if self.posted <= self.plan.num_qp {
            self.post_receives()?;
        }
        Ok(())
    }

    fn post_receives(&mut self) -> anyhow::Result<()> {
        while self.posted < self.plan.rx_depth {
            let wr = self.memory.receive(RECV);
            match &self.srq {
                Some(srq) => srq.post_recv([wr]),
                None => self.lanes[0].qp.post_recv([wr]),
            }
            .with_context(|| format!("cannot post receive {}", self.posted))?;
            self.posted += 1;
        }
        Ok(())
    }

    fn post_send(&mut self, i: usize) -> anyhow::Result<()> {
        if self.plan.check && self.role == Role::Client {
            self.memory.fill()?;
        }
        let lane = &mut self.lanes[i];
        let mut wr = SendWr::new(SEND, SendOp::Send, self.memory.outgoing());
        wr.dest = lane.dest;
        lane.qp.post_send([wr]).context("cannot post a send")?;
        (lane.send_pending, lane.recv_pending) = (true, true);
        Ok(())
    }
}

fn layout(plan: &Plan, role: Role) -> Layout {
    let is_checked = plan.check && role == Role::Client;
    let is_shared = plan.kind == Kind::Srq;
    Layout {
        size: plan.size as usize,
        headroom: if plan.kind == Kind::Ud { GRH } else { 0 },
        slots: match (is_checked, is_shared) {
            (true, true) => plan.rx_depth as usize,
            (true, false) => 2,
            (false, _) => 1,
        },
        exclusive: is_checked && is_shared,
        echo: role == Role::Server,
        // Queue pairs with an SRQ send from one buffer at the same time, so its contents must not
        // change.
        vary: !is_shared,
    }
}

fn describe_status(cqe: &Cqe) -> String {
    let what = if cqe.wr_id & RECV != 0 { "receive" } else { "send" };
    let hint = match cqe.status {
        WcStatus::RetryExceeded => {
            ": the peer does not answer, though TCP reaches it: is UDP port 4791 filtered? \
             (`feroce doctor HOST` tries it)"
        }
        WcStatus::RnrRetryExceeded => ": the peer posts no receives",
        WcStatus::RemoteInvalidRequest | WcStatus::LocalLength => {
            ": give both ends the same -s and -m"
        }
        _ => "",
    };
    let code = cqe.status as u32;
    format!("a {what} on QPN 0x{:06x} failed: {} ({code}){hint}", cqe.qpn.get(), cqe.status)
}
