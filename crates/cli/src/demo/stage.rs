//! Two adapters on this machine, and the operations that scenes run on them.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use feroce::{
    Access, AddrVec, Context, Cq, Cqe, Device, Gid, Mr, Pd, Pmtu, Psn, Qkey, Qp, QpAttr, QpCap,
    QpState, QpType, RecvWr, SendWr, Settings, Srq, WcFlags, WcOpcode, WcStatus,
};

use super::record::Recorder;
use crate::ladder::Side;
use crate::style::Ink;
use crate::words;

/// First PSN of A and of B: small, so that they are easy to follow. Normally first PSNs are random.
const FIRST_PSN: [u32; 2] = [100, 500];

/// Path MTU: small, so that messages of a few thousand bytes need several packets.
const MTU: Pmtu = Pmtu::B1024;

/// RNR NAK timer code of B: 1.28 ms.
const RNR_TIMER: u8 = 14;

/// Timeout for every wait in a scene.
const PATIENCE: Duration = Duration::from_secs(5);

/// Queue key of datagrams.
pub(super) const QKEY: Qkey = Qkey(0x1122_3344);

/// Any remote access that memory allows.
const ANY_ACCESS: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

/// One of the two hosts.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) addr: IpAddr,
    pub(super) pd: Pd,
    pub(super) cq: Cq,
    pub(super) context: Context,
}

impl Host {
    fn open(addr: IpAddr, settings: Settings) -> Result<Self, feroce::Error> {
        let context = Device::at([addr]).open_with(settings)?;
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(256)?);
        Ok(Self { addr, pd, cq, context })
    }

    /// Its address as a GID.
    pub(super) fn gid(&self) -> Gid {
        self.context.port().gids.first().copied().unwrap_or_default().gid
    }
}

/// Opens two devices on free loopback addresses, with `settings` for each.
pub(super) fn open_two(settings: [Settings; 2]) -> anyhow::Result<[Host; 2]> {
    let mut last = None;
    for i in 0..16_u8 {
        let addr = |n| IpAddr::from(Ipv4Addr::new(127, 0, 0, 2 * i + n));
        let [a, b] = settings.clone();
        match Host::open(addr(1), a).and_then(|a| Ok([a, Host::open(addr(2), b)?])) {
            Ok(hosts) => return Ok(hosts),
            Err(feroce::Error::Io(e)) if e.kind() == io::ErrorKind::AddrInUse => last = Some(e),
            Err(e) => return Err(anyhow::Error::from(e).context("cannot open two devices")),
        }
    }
    let last = last.context("no loopback address to try")?;
    Err(anyhow::Error::from(last).context(
        "UDP port 4791 is taken on every loopback address: \
         end the program that holds it (`ss -ulpn` names it), or unload the kernel module rdma_rxe",
    ))
}

/// The two hosts of the demo, with a recorder of what they do.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) a: Host,
    pub(super) b: Host,
    pub(super) recorder: Arc<Recorder>,
}

impl Stage {
    /// Opens both hosts; packets that A sends and receives are captured to `pcap`.
    pub(super) fn open(pcap: Option<&Path>) -> anyhow::Result<Self> {
        let recorder = Arc::new(Recorder::default());
        let settings = |side| -> Result<Settings, feroce::Error> {
            let mut settings = Settings::load()?;
            settings.tap = Some(recorder.tap(side));
            // Without tail probes, so that a busy machine causes no retransmissions that do not
            // belong to the scene.
            settings.engine.tail_probe = false;
            if let Some(path) = pcap {
                settings.pcap = (side == Side::Left).then(|| path.to_owned());
            }
            Ok(settings)
        };
        let [a, b] = open_two([settings(Side::Left)?, settings(Side::Right)?])?;
        Ok(Self { a, b, recorder })
    }

    pub(super) fn host(&self, side: Side) -> &Host {
        match side {
            Side::Left => &self.a,
            Side::Right => &self.b,
        }
    }
}

/// The state of a scene while it runs.
#[derive(Debug)]
pub(super) struct Play<'a> {
    pub(super) stage: &'a Stage,
    /// The checks, and whether each succeeded.
    pub(super) checks: Vec<(String, bool)>,
    /// The labels above the two lifelines, besides the addresses.
    pub(super) names: [String; 2],
    /// Print the destination QP on each arrow.
    pub(super) many_qps: bool,
}

impl<'a> Play<'a> {
    pub(super) fn new(stage: &'a Stage) -> Self {
        Self { stage, checks: Vec::new(), names: Default::default(), many_qps: false }
    }

    pub(super) fn a(&self) -> &'a Host {
        &self.stage.a
    }

    pub(super) fn b(&self) -> &'a Host {
        &self.stage.b
    }

    /// Two connected queue pairs.
    pub(super) fn connected(&mut self, service: QpType) -> anyhow::Result<(Qp, Qp)> {
        self.connected_with(service, None)
    }

    /// Two connected queue pairs; that of B takes its receives from `srq`, if there is one.
    pub(super) fn connected_with(
        &mut self,
        service: QpType,
        srq: Option<&Srq>,
    ) -> anyhow::Result<(Qp, Qp)> {
        let make = |host: &Host, srq: Option<&Srq>| {
            let cap = QpCap::new(16, 16);
            let builder = match service {
                QpType::Uc => host.pd.uc_qp(&host.cq, &host.cq, cap),
                _ => host.pd.rc_qp(&host.cq, &host.cq, cap),
            };
            match srq {
                Some(srq) => builder.srq(srq).create(),
                None => builder.create(),
            }
        };
        let (mut qa, mut qb) = (make(self.a(), None)?, make(self.b(), srq)?);
        let numbers = [(qa.qpn(), FIRST_PSN[0]), (qb.qpn(), FIRST_PSN[1])];
        for (qp, peer, own, theirs) in [
            (&mut qa, self.b(), numbers[0], numbers[1]),
            (&mut qb, self.a(), numbers[1], numbers[0]),
        ] {
            let av = AddrVec { dgid: peer.gid(), ..AddrVec::default() };
            let (psn, their_psn) = (Psn::new(own.1), Psn::new(theirs.1));
            qp.modify(&QpAttr::init(ANY_ACCESS))?;
            if service == QpType::Uc {
                qp.modify(&QpAttr::rtr_uc(av, theirs.0, their_psn, MTU))?;
                qp.modify(&QpAttr::rts_unreliable(psn))?;
            } else {
                let rtr = QpAttr::rtr(av, theirs.0, their_psn, MTU);
                qp.modify(&QpAttr { min_rnr_timer: Some(RNR_TIMER), ..rtr })?;
                qp.modify(&QpAttr::rts(psn))?;
            }
        }
        self.name(&qa, &qb);
        Ok((qa, qb))
    }

    /// A queue pair for datagrams.
    pub(super) fn datagrams(&self, side: Side) -> anyhow::Result<Qp> {
        let host = self.stage.host(side);
        let mut qp = host.pd.ud_qp(&host.cq, &host.cq, QpCap::new(16, 16)).create()?;
        let psn = FIRST_PSN[usize::from(side == Side::Right)];
        qp.modify(&QpAttr::init_ud(QKEY))?;
        qp.modify(&QpAttr::to(QpState::Rtr))?;
        qp.modify(&QpAttr::rts_unreliable(Psn::new(psn)))?;
        Ok(qp)
    }

    /// Labels the lifelines with the queue pairs.
    pub(super) fn name(&mut self, qa: &Qp, qb: &Qp) {
        self.names = [qa, qb].map(|qp| format!("QP {}", words::qpn(qp.qpn().get())));
    }

    /// Posts to a send queue.
    pub(super) fn post(
        &self,
        side: Side,
        qp: &mut Qp,
        what: &str,
        wr: SendWr,
    ) -> anyhow::Result<()> {
        self.stage.recorder.note(side, format!("post {what}"));
        Ok(qp.post_send([wr])?)
    }

    /// Posts to a receive queue.
    pub(super) fn post_recv(&self, side: Side, qp: &mut Qp, wr: RecvWr) -> anyhow::Result<()> {
        self.stage.recorder.note(side, "post receive");
        Ok(qp.post_recv([wr])?)
    }

    /// Waits for a completion of any status.
    pub(super) fn wait(&self, side: Side) -> anyhow::Result<Cqe> {
        let cq = &self.stage.host(side).cq;
        let Some(cqe) = patiently(|| cq.poll_one()) else {
            bail!("no completion within {} s", PATIENCE.as_secs());
        };
        let ink = if cqe.status == WcStatus::Success { Ink::Good } else { Ink::Bad };
        self.stage.recorder.completion(side, &cqe, format!("CQ: {}", outcome(&cqe)), ink);
        Ok(cqe)
    }

    /// Waits for a completion that must be a success.
    pub(super) fn done(&self, side: Side) -> anyhow::Result<Cqe> {
        let cqe = self.wait(side)?;
        if cqe.status != WcStatus::Success {
            bail!("completion with an error: {}", cqe.status);
        }
        Ok(cqe)
    }

    /// Records the result of a check.
    pub(super) fn check(&mut self, what: &str, is_right: bool) {
        self.checks.push((what.to_owned(), is_right));
    }
}

/// Calls `ask` until it returns a value, or until the timeout.
#[expect(clippy::disallowed_methods, reason = "nothing may hang a command")]
pub(super) fn patiently<T>(mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let start = std::time::Instant::now();
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if start.elapsed() > PATIENCE {
            return None;
        }
        std::thread::yield_now();
    }
}

/// A completion in a few words.
fn outcome(cqe: &Cqe) -> String {
    if cqe.status == WcStatus::Flushed {
        return "flushed".to_owned();
    }
    if cqe.status != WcStatus::Success {
        return cqe.status.to_string();
    }
    let done = match cqe.opcode {
        WcOpcode::Recv => format!("received {} B", cqe.byte_len),
        WcOpcode::RecvWriteImm => format!("{} B written", cqe.byte_len),
        WcOpcode::Send => "SEND done".to_owned(),
        WcOpcode::Write => "WRITE done".to_owned(),
        WcOpcode::Read => "READ done".to_owned(),
        WcOpcode::CmpSwap => "CAS done".to_owned(),
        WcOpcode::FetchAdd => "FAA done".to_owned(),
        WcOpcode::BindMw => "window bound".to_owned(),
        WcOpcode::Flush => "FLUSH done".to_owned(),
        WcOpcode::AtomicWrite => "ATOMIC WRITE done".to_owned(),
        WcOpcode::LocalInv | WcOpcode::Reg => "done".to_owned(),
    };
    if cqe.flags.contains(WcFlags::WITH_IMM) {
        format!("{done}, imm {}", cqe.imm)
    } else if cqe.flags.contains(WcFlags::WITH_INV) {
        format!("{done}, key taken back")
    } else {
        done
    }
}

/// Bytes to send: a different pattern for each `seed`.
pub(super) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(7).wrapping_add(seed)).collect()
}

/// Copies of the bytes of a region.
pub(super) fn bytes(mr: &Mr, from: usize, len: usize) -> anyhow::Result<Vec<u8>> {
    let mut out = vec![0; len];
    mr.read_at(from, &mut out)?;
    Ok(out)
}
