//! Flows: two queue pairs that talk to each other, and what each end is going to do.

use feroce_engine::{
    AddrVec, AhId, CreatedQp, Dest, LossPolicy, QpAttr, QpCap, QpInitAttr, QpType, RecvQueue,
    SendQueue,
};
use feroce_testkit::Connection;
use feroce_train::Instant;
use feroce_wire::{Pmtu, Psn, Qkey, Qpn, Rkey};

use crate::dice::Dice;
use crate::kernel::Host;
use crate::oracle::{RecvLedger, SendLedger};
use crate::swarm::node::{Node, SRQ_DOMAIN};
use crate::swarm::step::{Recv, Step};

pub(crate) const QKEY: Qkey = Qkey(0x1234_5678);

/// Service of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Rc,
    Uc,
    Ud,
    /// From end 0 to end 1 only.
    Xrc,
}

impl Kind {
    pub(crate) fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc)
    }

    fn qp_type(self, side: usize) -> QpType {
        match (self, side) {
            (Self::Rc, _) => QpType::Rc,
            (Self::Uc, _) => QpType::Uc,
            (Self::Ud, _) => QpType::Ud,
            (Self::Xrc, 0) => QpType::XrcIni,
            (Self::Xrc, _) => QpType::XrcTgt,
        }
    }
}

/// What goes wrong on a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mishap {
    /// A request names memory that the peer did not grant.
    BadRemote,
    /// A request names memory that the local node did not register.
    BadLocal,
    /// A receive is shorter than its message.
    ShortReceive,
    /// Receives come too late for a requester that does not wait for ever.
    NoReceives,
    /// An end is moved to ERR while traffic runs.
    Error,
    /// An end goes back to RESET; later both are connected again and go on.
    Reset,
    /// An end is destroyed.
    Destroy,
    /// Memory that the peer uses is deregistered.
    Dereg,
    /// A send of an unreliable service fails; the queue pair is told to go on.
    SendError,
    /// The node of end 1 is disconnected.
    Vanish,
}

impl Mishap {
    pub(crate) const ALL: [Self; 8] = [
        Self::BadRemote,
        Self::BadLocal,
        Self::ShortReceive,
        Self::NoReceives,
        Self::Error,
        Self::Reset,
        Self::Destroy,
        Self::Dereg,
    ];
}

/// State of the queue pair of an end, as its application knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Life {
    /// It is in RTS or SQD.
    Up,
    /// It is in ERR.
    Down,
    /// It is in SQE: it receives, but does not send.
    Halted,
    /// It was reset or destroyed: nothing completes any more.
    Gone,
}

/// One end of a flow. End `i` talks to end `i ^ 1`.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) kind: Kind,
    pub(crate) node: usize,
    /// The shard of the node in which its queue pair lives.
    pub(crate) shard: usize,
    /// Which of the node's protection domains.
    pub(crate) domain: usize,
    pub(crate) mishap: Option<Mishap>,
    pub(crate) life: Life,
    pub(crate) qpn: Qpn,
    pub(crate) sq: SendQueue,
    pub(crate) rq: Option<RecvQueue>,
    /// Which shared receive queue of the node.
    pub(crate) srq: Option<usize>,
    pub(crate) sq_sig_all: bool,
    pub(crate) max_sge: usize,
    pub(crate) max_inline: usize,
    pub(crate) rd_atomic: u8,
    pub(crate) ah: Option<AhId>,
    /// Longest delay before a receive is posted, in nanoseconds.
    pub(crate) recv_delay_ns: u64,

    pub(crate) steps: Vec<Step>,
    pub(crate) next: usize,
    pub(crate) done: Vec<bool>,
    pub(crate) sends: SendLedger,
    pub(crate) recvs: Vec<Recv>,
    pub(crate) next_recv: usize,
    pub(crate) receives: RecvLedger,
    /// Steps of the peer before this one have arrived here, as far as they consume a receive.
    pub(crate) arrived: usize,
    /// The engine said that no more shared receives will be taken.
    pub(crate) last_reached: bool,
    /// Keys of the peer that were deregistered, and the first step that was posted after that.
    pub(crate) ended: Vec<(Rkey, usize)>,
    /// Running hashes of what completed: sends, receives.
    pub(crate) digests: [u64; 2],
}

/// What both ends of a flow have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowSpec {
    pub(crate) kind: Kind,
    pub(crate) nodes: [usize; 2],
    pub(crate) mishap: Option<Mishap>,
    pub(crate) pmtu: Pmtu,
    pub(crate) calm: bool,
    /// The fabric has no faults, either: no packet may be sent twice.
    pub(crate) clean: bool,
    pub(crate) steps: usize,
    pub(crate) shared_receives: f64,
}

/// Creates the two queue pairs of a flow and connects them.
pub(crate) fn connect(
    hosts: &mut [Host],
    nodes: &mut [Node],
    spec: &FlowSpec,
    dice: &mut Dice,
) -> [End; 2] {
    let mut ends = [0, 1].map(|side| {
        let number = spec.nodes[side];
        create(&mut hosts[number], &mut nodes[number], spec, side, dice)
    });
    bring_up(hosts, nodes, &mut ends, spec, Instant::ZERO, dice);
    ends
}

/// Takes both queue pairs of a flow from RESET to RTS.
pub(crate) fn bring_up(
    hosts: &mut [Host],
    nodes: &[Node],
    ends: &mut [End],
    spec: &FlowSpec,
    now: Instant,
    dice: &mut Dice,
) {
    let psns = [first_psn(dice), first_psn(dice)];
    let rnr = dice.small(1..=12);
    let finite = spec.mishap == Some(Mishap::NoReceives);
    let (mut timeout, mut retry_cnt) = (dice.small(9..=13), 7);
    let mut rnr_retry = if finite { 2 } else { 7 };
    if spec.clean {
        // Nothing is lost and every receive is in place, so no requester needs a second
        // try.
        timeout = dice.pick(&[0, timeout]);
        (retry_cnt, rnr_retry) = (dice.small(0..=7), dice.small(0..=7));
    }
    for side in 0..2 {
        let peer = &ends[side ^ 1];
        let (peer_qpn, peer_rd) = (peer.qpn, peer.rd_atomic);
        let dgid = hosts[peer.node].gid;
        let end = &mut ends[side];
        let engine = &mut hosts[end.node].shards[end.shard].engine;
        let av = AddrVec { dgid, ..AddrVec::default() };
        let mut connection = Connection {
            av,
            rq_psn: psns[side ^ 1],
            sq_psn: psns[side],
            qkey: QKEY,
            ..Connection::new(dgid, peer_qpn, spec.pmtu)
        };
        if spec.kind == Kind::Ud {
            connection.bring_up(engine, now, end.qpn);
            let pd = nodes[end.node].domains[end.domain].pd;
            end.ah = engine.create_ah(pd, av).ok();
            continue;
        }
        // More than the peer needs, sometimes; never less.
        let dest_rd = peer_rd.max(1) + if dice.chance(0.3) { 3 } else { 0 };
        connection.with = QpAttr {
            max_dest_rd_atomic: Some(dest_rd),
            min_rnr_timer: Some(rnr),
            timeout: Some(timeout),
            retry_cnt: Some(retry_cnt),
            rnr_retry: Some(rnr_retry),
            max_rd_atomic: Some(end.rd_atomic),
            ..QpAttr::default()
        };
        connection.bring_up(engine, now, end.qpn);
    }
}

/// Somewhere in the sequence space, often just before it wraps.
fn first_psn(dice: &mut Dice) -> Psn {
    let near = (1 << 24) - dice.range(1..=40);
    let psn = if dice.chance(0.4) { near } else { dice.any() };
    Psn::new(psn as u32)
}

/// Which shared receive queue of its node an end uses, if any.
fn shared_queue(spec: &FlowSpec, side: usize, dice: &mut Dice) -> Option<usize> {
    if spec.kind == Kind::Xrc {
        return (side == 1).then_some(1);
    }
    let may_share = matches!(spec.mishap, None | Some(Mishap::Error));
    (may_share && dice.chance(spec.shared_receives)).then_some(0)
}

fn create(host: &mut Host, node: &mut Node, spec: &FlowSpec, side: usize, dice: &mut Dice) -> End {
    let kind = spec.kind;
    let max_sge = dice.pick(&[1, 2, 4, 8, 32]);
    let max_inline = dice.pick(&[0, 60, 200]);
    let depth = |dice: &mut Dice| dice.pick(&[1, 2, 5, 16, 64]);
    let max_recv_wr = if spec.calm { 64.max(2 * spec.steps as u32) } else { depth(dice) };
    let srq = shared_queue(spec, side, dice);
    // Memory of a shared receive queue is of the queue's protection domain; that of XRC, too.
    let domain = if kind == Kind::Xrc && side == 1 { SRQ_DOMAIN } else { dice.size(0..=1) };
    let sq_sig_all = dice.chance(0.2);
    let init = QpInitAttr {
        qp_type: kind.qp_type(side),
        pd: node.domains[domain].pd,
        send_cq: node.send_cq(),
        recv_cq: node.recv_cq(),
        srq: srq.filter(|_| kind != Kind::Xrc).map(|i: usize| node.srqs[i].id),
        xrcd: (kind == Kind::Xrc && side == 1).then_some(node.xrcd),
        cap: QpCap {
            max_send_wr: depth(dice),
            max_recv_wr,
            max_send_sge: max_sge as u32,
            max_recv_sge: 8,
            max_inline: max_inline as u32,
        },
        sq_sig_all,
        loss: if spec.clean && dice.chance(0.2) {
            LossPolicy::Fatal
        } else {
            LossPolicy::Retransmit
        },
        congestion_control: true,
        hears_itself: true,
    };
    let shard = node.place(&init, host.shards.len());
    let CreatedQp { qpn, sq, rq } =
        host.shards[shard].engine.create_qp(init).expect("a queue pair");
    End {
        kind,
        node: spec.nodes[side],
        shard,
        domain,
        mishap: spec.mishap,
        life: Life::Up,
        qpn,
        sq,
        rq,
        srq,
        sq_sig_all,
        max_sge,
        max_inline,
        recv_delay_ns: if spec.calm { 0 } else { dice.pick(&[0, 0, 5_000, 300_000]) },
        rd_atomic: dice.pick(&[1, 2, 4, 16]),
        ah: None,
        steps: Vec::new(),
        next: 0,
        done: Vec::new(),
        sends: SendLedger::default(),
        recvs: Vec::new(),
        next_recv: 0,
        receives: RecvLedger::new(false),
        arrived: 0,
        last_reached: false,
        ended: Vec::new(),
        digests: [0; 2],
    }
}

impl End {
    /// Destroys its queue pair, of which nothing was posted.
    pub(crate) fn destroy(&self, host: &mut Host) {
        let engine = &mut host.shards[self.shard].engine;
        let ah = self.ah.map_or(Ok(()), |ah| engine.destroy_ah(ah));
        assert_eq!((engine.destroy_qp(self.qpn), ah), (Ok(()), Ok(())), "{:?}", self.kind);
    }

    /// The destination of a send of this end.
    pub(crate) fn dest(&self, peer_qpn: Qpn, peer_srq: Option<feroce_engine::SrqId>) -> Dest {
        match (self.kind, self.ah, peer_srq) {
            (Kind::Ud, Some(ah), _) => Dest::Ud { ah, qpn: peer_qpn, qkey: QKEY },
            (Kind::Xrc, _, Some(srq)) => Dest::Xrc(srq.number()),
            _ => Dest::Connected,
        }
    }

    /// A key that was deregistered before a request was posted that uses it, and that request, of
    /// those up to `index`, which succeeded.
    pub(crate) fn used_after_end(&self, index: usize) -> Option<(Rkey, usize)> {
        self.ended.iter().find_map(|&(key, from)| {
            let mut posted = from..=index;
            posted.find(|&i| self.steps[i].touches() == Some(key)).map(|i| (key, i))
        })
    }

    /// Whether the application goes on posting. What was not posted before a reset is posted
    /// when the flow works again.
    pub(crate) fn may_post(&self) -> bool {
        match self.life {
            Life::Up | Life::Halted => true,
            Life::Down => self.mishap != Some(Mishap::Reset),
            Life::Gone => false,
        }
    }

    /// Whether everything this end was going to do is posted.
    pub(crate) fn is_posted(&self) -> bool {
        self.next == self.steps.len()
    }
}
