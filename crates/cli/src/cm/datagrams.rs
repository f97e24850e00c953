//! A queue pair for datagrams on an id, as udaddy and mckey need it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use feroce::cm::{CmId, UDP_QKEY, UdParam};
use feroce::wire::{Grh, GrhView, Ipv4};
use feroce::{
    Access, AddrVec, Ah, Cq, Cqe, Gid, Imm, Mr, Notify, Pd, Qp, QpCap, Qpn, SendOp, SendWr,
    WcOpcode, WcStatus,
};

use super::end::{Ended, NAP_MS};
use crate::stop;

/// How long to wait for the next completion before a datagram counts as lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// The destination of datagrams.
#[derive(Debug)]
struct Peer {
    ah: Ah,
    qpn: Qpn,
}

/// A datagram queue pair with its memory. One buffer serves all sends and receives; a received
/// datagram stands behind its GRH.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: CmId,
    qp: Qp,
    cq: Cq,
    pd: Pd,
    memory: Mr,
    size: usize,
    count: u32,
    peer: Option<Peer>,
    /// Datagrams received, and sends completed.
    pub(super) received: u32,
    pub(super) sent: u32,
}

impl Node {
    /// Creates it for `count` datagrams of `size` bytes each way. `hears_itself`: it also receives
    /// the datagrams that it sends to a group of which it is a member.
    pub(super) fn new(id: CmId, count: u32, size: u32, hears_itself: bool) -> anyhow::Result<Self> {
        let context = id.context().context("the id has no device")?;
        let mtu = context.port().active_mtu.bytes();
        ensure!(size as usize <= mtu, "a datagram of {size} bytes is longer than the MTU of {mtu}");
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(2 * count.max(1))?);
        let mut builder = pd.ud_qp(&cq, &cq, QpCap::new(count.max(1), count.max(1)));
        if !hears_itself {
            builder = builder.without_own_multicasts();
        }
        let qp = builder.create()?;
        id.use_qp(&qp)?;
        let size = size as usize;
        let memory = pd.alloc_mr(Grh::LEN + size, Access::LOCAL_WRITE)?;
        let (peer, received, sent) = (None, 0, 0);
        Ok(Self { id, qp, cq, pd, memory, size, count, peer, received, sent })
    }

    pub(super) fn post_receives(&mut self) -> anyhow::Result<()> {
        let receives = (0..self.count).map(|_| self.memory.recv(0, 0..Grh::LEN + self.size));
        Ok(self.qp.post_recv(receives)?)
    }

    /// Sets the destination that the connection manager resolved.
    pub(super) fn address(&mut self, ud: &UdParam) -> anyhow::Result<()> {
        self.peer = Some(Peer { ah: self.pd.create_ah(ud.av)?, qpn: ud.qpn });
        Ok(())
    }

    /// Sets the sender of a received datagram as the destination; its immediate data is the QPN.
    fn address_sender(&mut self, cqe: &Cqe) -> anyhow::Result<()> {
        let mut header = [0; Grh::LEN];
        self.memory.read_at(0, &mut header)?;
        let (dgid, own) = ends_of(&header).context("a datagram without a header")?;
        let sgid_index = self.pd.context().port().gid_index(own).unwrap_or(0);
        let av = AddrVec { dgid, sgid_index, ..AddrVec::default() };
        let ah = self.pd.create_ah(av)?;
        self.peer = Some(Peer { ah, qpn: Qpn::new(cqe.imm.0) });
        Ok(())
    }

    /// Sends all datagrams. The immediate data is the number of our queue pair.
    pub(super) fn send(&mut self) -> anyhow::Result<()> {
        let peer = self.peer.as_ref().context("the address of the peer is not known yet")?;
        let imm = Imm(self.qp.qpn().get());
        let data = || self.memory.data(Grh::LEN..Grh::LEN + self.size);
        let dest = peer.ah.dest(peer.qpn, UDP_QKEY);
        let wr = || SendWr { dest, ..SendWr::new(1, SendOp::SendImm(imm), data()) };
        Ok(self.qp.post_send((0..self.count).map(|_| wr()))?)
    }

    /// Waits for the first datagram, without a timeout.
    pub(super) fn first_receive(&mut self) -> anyhow::Result<()> {
        while self.received == 0 {
            self.take(None)?;
        }
        Ok(())
    }

    /// Waits for the remaining datagrams, with a timeout for each.
    pub(super) fn finish_receives(&mut self) -> anyhow::Result<()> {
        while self.received < self.count {
            self.take(Some(PATIENCE))?;
        }
        Ok(())
    }

    pub(super) fn finish_sends(&mut self) -> anyhow::Result<()> {
        while self.sent < self.count {
            self.take(Some(PATIENCE))?;
        }
        Ok(())
    }

    fn take(&mut self, patience: Option<Duration>) -> anyhow::Result<()> {
        let cqe = self.completion(patience)?;
        if cqe.opcode != WcOpcode::Recv {
            self.sent += 1;
            return Ok(());
        }
        self.received += 1;
        if self.peer.is_none() {
            self.address_sender(&cqe)?;
        }
        Ok(())
    }

    fn completion(&mut self, patience: Option<Duration>) -> anyhow::Result<Cqe> {
        let since = Instant::now();
        loop {
            self.cq.notify(Notify::Next);
            if let Some(cqe) = self.cq.poll_one() {
                let status = cqe.status;
                ensure!(status == WcStatus::Success, "a datagram failed: {status}");
                return Ok(cqe);
            }
            if stop::requested() {
                return Err(Ended::Interrupted.into());
            }
            if patience.is_some_and(|patience| since.elapsed() > patience) {
                bail!(
                    "{} of {} datagrams came, then nothing for {} s: they may get lost",
                    self.received,
                    self.count,
                    since.elapsed().as_secs()
                );
            }
            self.cq.channel().wait(Some(NAP_MS))?;
        }
    }
}

/// The GIDs in the header of a datagram: that of the sender, and ours (annex A17).
fn ends_of(header: &[u8]) -> Option<(Gid, Gid)> {
    let is_ipv4 = header.get(..Grh::IPV4_AT)?.iter().all(|byte| *byte == 0);
    if is_ipv4 && let Ok((ip, _)) = Ipv4::parse(&header[Grh::IPV4_AT..]) {
        return Some((Gid::from_ipv4(ip.src), Gid::from_ipv4(ip.dst)));
    }
    let grh = GrhView::new_checked(header).ok()?;
    Some((grh.sgid(), grh.dgid()))
}
