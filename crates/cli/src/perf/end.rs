//! One end of a measurement: a device, its queue pairs, and memory for their messages.
//!
//! The memory is one region. Each queue pair has a slot for the messages that it sends and, after
//! all of those, a slot for messages that it receives or that the peer writes. Both sides have the
//! same layout.

use std::iter;
use std::net::{IpAddr, UdpSocket};

use anyhow::{Context as _, bail, ensure};
use feroce::{
    Access, AddrVec, Ah, AtomicCap, CompChannel, Context, Counters, Cq, Cqe, Data, Dest, Device,
    Gid, InlineBytes, Iova, Lid, Mr, Notify, Pd, Pmtu, Psn, Qkey, Qp, QpAttr, QpCap, Qpn, Region,
    Remote, Rkey, SendFlags, SendOp, SendWr, TransportKind, WcStatus,
};

use super::by_cm::Ids;
use super::side::{Ends, Message, QpEnd, Side};
use super::spec::{AtomicKind, Memory, Op, Service, Spec};
use crate::backend;
use crate::cm::Target;
use crate::size::filled;

/// Bytes of the GRH in front of a received datagram.
const GRH: usize = 40;
/// The key of our datagram queue pairs.
const QKEY: Qkey = Qkey(0x1ced_c0de);

/// The device and address of an end.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) device: Device,
    /// Which of its addresses, if not the first.
    gid_index: Option<u16>,
}

impl Place {
    /// The place that the user named.
    pub(crate) fn named(name: &str, gid_index: Option<u16>) -> anyhow::Result<Self> {
        Ok(Self { device: Device::named(name)?, gid_index })
    }

    /// The first device.
    pub(crate) fn first(gid_index: Option<u16>) -> anyhow::Result<Self> {
        let device = Device::list()?.into_iter().next().context("there is no device")?;
        Ok(Self { device, gid_index })
    }

    /// The device of an end whose TCP connection is at this address.
    pub(crate) fn reached_at(ip: IpAddr) -> anyhow::Result<Self> {
        match backend::is_first_used(ip)? {
            true => Self::first(None),
            false => Self::at(ip),
        }
    }

    /// The device that has this address.
    pub(crate) fn at(ip: IpAddr) -> anyhow::Result<Self> {
        let bare = Device::at([ip]);
        if ip.is_loopback() {
            if backend::are_given()? && !backend::is_in_subnet()? {
                return Self::first(None);
            }
        } else {
            let wanted = bare.gids().first().copied();
            for device in Device::list()? {
                if let Some(i) = device.gids().iter().position(|gid| Some(*gid) == wanted) {
                    return Ok(Self { device, gid_index: Some(u16::try_from(i)?) });
                }
            }
        }
        Ok(Self { device: bare, gid_index: None })
    }

    /// The same device, with another of its addresses if the user chose one.
    pub(crate) fn with_index(self, gid_index: Option<u16>) -> Self {
        Self { gid_index: gid_index.or(self.gid_index), ..self }
    }

    /// The place from which this machine reaches `peer`. It may have the same address as the peer,
    /// because processes share addresses.
    pub(crate) fn toward(peer: IpAddr) -> anyhow::Result<Self> {
        let any: IpAddr = match peer {
            IpAddr::V4(_) => [0; 4].into(),
            IpAddr::V6(_) => [0; 16].into(),
        };
        let probe = UdpSocket::bind((any, 0))?;
        probe.connect((peer, 9)).with_context(|| format!("no way to {peer}"))?;
        Self::reached_at(probe.local_addr()?.ip())
    }
}

/// One end.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) context: Context,
    pd: Pd,
    channel: CompChannel,
    pub(crate) send_cq: Cq,
    pub(crate) recv_cq: Cq,
    /// The ids of the queue pairs, if the connection manager connects them. They are dropped first.
    ids: Option<Ids>,
    pub(crate) qps: Vec<Qp>,
    pub(crate) mr: Mr,
    pub(crate) spec: Spec,
    /// Path MTU in use.
    pub(crate) mtu: Pmtu,
    slot: usize,
    gid_index: u16,
    /// Whether the user chose a GID, so that packets on InfiniBand have a GRH.
    has_grh: bool,
    /// The memory of the peer, once connected.
    remote: Remote,
    /// For datagrams: the address handle of the peer, and its queue pairs.
    ah: Option<Ah>,
    peers: Vec<QpEnd>,
    /// What the adapter had counted before the measurement.
    pub(crate) before: Counters,
}

impl End {
    /// A measurement begins. The peer may send as soon as it hears that this end is ready, so this
    /// comes first.
    pub(crate) fn begin(&mut self) {
        self.before = self.context.counters();
    }

    /// Opens the device, with an end for each thread.
    pub(crate) fn open_all(place: &Place, spec: &Spec) -> anyhow::Result<Vec<Self>> {
        let context = place.device.open().context("cannot open the device")?;
        let of_thread = Spec { qps: spec.qps / spec.threads, ..spec.clone() };
        let ends = (0..spec.threads).map(|_| Self::open(&context, place, &of_thread));
        let mut ends = ends.collect::<anyhow::Result<Vec<Self>>>()?;
        // A device gives its shards queue pairs in turn. So each thread has those of one shard if
        // there are as many shards as threads.
        for _ in 0..of_thread.qps {
            ends.iter_mut().try_for_each(Self::add_qp)?;
        }
        Ok(ends)
    }

    /// Creates the completion queues and the memory.
    fn open(context: &Context, place: &Place, spec: &Spec) -> anyhow::Result<Self> {
        let port = context.port();
        let mut mtu = port.active_mtu;
        if let Some(bytes) = spec.mtu {
            let asked = Pmtu::from_bytes(bytes as usize)
                .with_context(|| format!("-m {bytes}: 256, 512, 1024, 2048 or 4096"))?;
            ensure!(asked <= mtu, "-m {bytes}: the port takes at most {}", mtu.bytes());
            mtu = asked;
        }
        let mut spec = spec.clone();
        if context.attr().transport == TransportKind::Iwarp {
            spec.fit_iwarp(context.attr().atomic_cap != AtomicCap::None)?;
        }
        spec.fit_datagrams(mtu.bytes())?;
        let ids = if spec.by_cm { Some(Ids::new(context)?) } else { None };
        let channel = context.create_comp_channel()?;
        let send_cq = context.create_cq_with(spec.tx_depth * spec.qps + 16, &channel)?;
        let recv_cq = context.create_cq_with(spec.rx_depth * spec.qps + 16, &channel)?;
        let pd = context.alloc_pd()?;
        let slot = (spec.max_size() + GRH).next_multiple_of(4096);
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let len = 2 * slot * spec.qps as usize;
        let mr = match spec.memory {
            Memory::Shareable => pd.alloc_mr(len, access)?,
            Memory::Ordinary => pd.register(Region::alloc(len)?, Iova::Natural, access)?,
        };
        // Write every page before the measurement: ordinary pages that were never written all map
        // to the kernel's one zero page, which stays in the cache and is cheaper to copy than data.
        let bytes = filled(0x5a, slot)?;
        for i in 0..spec.qps as usize {
            mr.write_at(i * slot, &bytes)?;
        }
        Ok(Self {
            context: context.clone(),
            pd,
            channel,
            send_cq,
            recv_cq,
            ids,
            qps: Vec::new(),
            mr,
            spec,
            mtu,
            slot,
            gid_index: place.gid_index.unwrap_or_else(|| port.first_gid()),
            has_grh: place.gid_index.is_some(),
            remote: Remote::default(),
            ah: None,
            peers: Vec::new(),
            before: Counters::default(),
        })
    }

    /// Creates a queue pair.
    fn add_qp(&mut self) -> anyhow::Result<()> {
        let Self { pd, send_cq, recv_cq, spec, .. } = self;
        let cap = QpCap {
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: spec.inline,
            ..QpCap::new(spec.tx_depth + 1, spec.rx_depth)
        };
        let builder = match spec.service {
            Service::Rc => pd.rc_qp(send_cq, recv_cq, cap),
            Service::Uc => pd.uc_qp(send_cq, recv_cq, cap),
            Service::Ud => pd.ud_qp(send_cq, recv_cq, cap),
        };
        self.qps.push(builder.create().context("cannot make a queue pair")?);
        Ok(())
    }

    /// What the peer must know to connect.
    pub(crate) fn ends(&self) -> anyhow::Result<Ends> {
        let mut qps = Vec::new();
        let (mut gid, lid) = (Gid::default(), backend::lid(&self.context.port())?);
        for qp in &self.qps {
            let end = qp.endpoint_at(self.gid_index)?;
            gid = end.gid;
            qps.push(QpEnd { qpn: end.qpn.get(), psn: end.psn.get() });
        }
        let Remote { addr, rkey } = self.mr.remote(0);
        let (gid, lid, mtu) = (gid.0, lid.0, self.mtu.bytes());
        Ok(Ends { gid, lid, mtu, addr, rkey: rkey.0, qps, port: None })
    }

    /// As [`End::ends`], for a server: listens if the connection manager connects.
    pub(crate) fn offer(&mut self) -> anyhow::Result<Ends> {
        let mut ends = self.ends()?;
        if let Some(ids) = &mut self.ids {
            let at = (Gid(ends.gid).to_ip(), 0).into();
            ends.port = Some(ids.listen(at, self.qps.len())?);
        }
        Ok(ends)
    }

    /// Accepts the connections of the client, if the connection manager connects. Returns what the
    /// client said meanwhile.
    pub(crate) fn accept(&mut self, side: &mut Side) -> anyhow::Result<Option<Message>> {
        match &mut self.ids {
            Some(ids) => ids.accept(&self.qps, side),
            None => Ok(None),
        }
    }

    /// Connects to the peer and posts receives.
    pub(crate) fn connect(&mut self, peer: &Ends) -> anyhow::Result<()> {
        ensure!(peer.qps.len() == self.qps.len(), "the other side has another number of QPs");
        let their_mtu = Pmtu::from_bytes(peer.mtu).context("the other side has no such MTU")?;
        self.mtu = self.mtu.min(their_mtu);
        self.spec.fit_datagrams(self.mtu.bytes())?;
        self.remote = Remote { addr: peer.addr, rkey: Rkey(peer.rkey) };
        match &mut self.ids {
            None => self.modify(peer)?,
            Some(ids) => {
                if let Some(port) = peer.port {
                    let to = (Gid(peer.gid).to_ip(), port).into();
                    let own = self.qps.first().context("there is a queue pair")?;
                    let from = own.endpoint_at(self.gid_index)?.gid.to_ip();
                    ids.connect(&self.qps, Target { from: Some((from, 0).into()), to })?;
                }
            }
        }
        self.peers.clone_from(&peer.qps);
        if self.spec.takes_receives() {
            for i in 0..self.qps.len() {
                self.post_receives(i, u64::from(self.spec.rx_depth))?;
            }
        }
        Ok(())
    }

    /// Brings the queue pairs up.
    fn modify(&mut self, peer: &Ends) -> anyhow::Result<()> {
        let own_lid = backend::lid(&self.context.port())?;
        ensure!(
            (own_lid.0 == 0) == (peer.lid == 0),
            "one side is in an InfiniBand subnet and the other is not"
        );
        // A peer in our subnet needs no GRH, unless the user chose a GID.
        let dgid = if peer.lid == 0 || self.has_grh { Gid(peer.gid) } else { Gid::ZERO };
        let (sgid_index, dlid) = (self.gid_index, Lid(peer.lid));
        let av = AddrVec { dgid, sgid_index, dlid, ..AddrVec::default() };
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        for (i, (qp, to)) in self.qps.iter_mut().zip(&peer.qps).enumerate() {
            // Each queue pair has its own flow label, and so its own UDP source port.
            let av = AddrVec { flow_label: 0x100 + i as u32, ..av };
            let (qpn, psn) = (Qpn::new(to.qpn), Psn::new(to.psn));
            let own = qp.endpoint_at(self.gid_index)?.psn;
            match self.spec.service {
                Service::Ud => qp.activate(QKEY)?,
                Service::Uc => {
                    qp.modify(&QpAttr::init(Access::REMOTE_WRITE))?;
                    qp.modify(&QpAttr::rtr_uc(av, qpn, psn, self.mtu))?;
                    qp.modify(&QpAttr::rts_unreliable(own))?;
                }
                Service::Rc => {
                    qp.modify(&QpAttr::init(access))?;
                    qp.modify(&QpAttr::rtr(av, qpn, psn, self.mtu))?;
                    let timeout = Some(self.spec.qp_timeout);
                    qp.modify(&QpAttr { timeout, ..QpAttr::rts(own) })?;
                }
            }
        }
        if self.spec.service == Service::Ud {
            self.ah = Some(self.pd.create_ah(av)?);
        }
        Ok(())
    }

    /// Offset of the slot from which queue pair `i` sends.
    pub(crate) fn out_at(&self, i: usize) -> usize {
        i * self.slot
    }

    /// Offset of the slot into which queue pair `i` receives.
    pub(crate) fn in_at(&self, i: usize) -> usize {
        (self.spec.qps as usize + i) * self.slot
    }

    /// Posts `n` receives on queue pair `i`.
    pub(crate) fn post_receives(&mut self, i: usize, n: u64) -> anyhow::Result<()> {
        let at = self.in_at(i);
        let len = self.spec.max_size() + if self.spec.service == Service::Ud { GRH } else { 0 };
        let mr = &self.mr;
        let receives = (0..n).map(|_| mr.recv(i as u64, at..at + len));
        self.qps[i].post_recv(receives).context("cannot post a receive")
    }

    /// The work request for the next message of queue pair `i`.
    pub(crate) fn request(&self, i: usize, wr_id: u64, size: usize, signaled: bool) -> SendWr {
        let out = self.out_at(i);
        let remote = |at: usize| Remote { addr: self.remote.addr + at as u64, ..self.remote };
        let target = remote(self.in_at(i));
        let op = match (self.spec.op, self.spec.atomic) {
            (Op::Write, _) => SendOp::Write(target),
            (Op::Read, _) => SendOp::Read(remote(out)),
            (Op::Send, _) => SendOp::Send,
            (Op::Atomic, AtomicKind::FetchAdd) => SendOp::FetchAdd { remote: target, add: 1 },
            (Op::Atomic, AtomicKind::CmpSwap) => {
                SendOp::CmpSwap { remote: target, compare: 0, swap: 0 }
            }
        };
        let dest = match (&self.ah, self.peers.get(i)) {
            (Some(ah), Some(peer)) => ah.dest(Qpn::new(peer.qpn), QKEY),
            _ => Dest::Connected,
        };
        let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        SendWr { wr_id, op, data: self.payload(i, size), flags, dest }
    }

    /// Fails for a completion that is not a success, with a hint at the cause.
    pub(crate) fn check(&self, cqe: &Cqe) -> anyhow::Result<()> {
        if cqe.status == WcStatus::Success {
            return Ok(());
        }
        // A flushed completion follows one that failed; look for the status of that one.
        let rest = iter::from_fn(|| self.send_cq.poll_one()).map(|cqe| cqe.status);
        let mut all = iter::once(cqe.status).chain(rest);
        let cause = all.find(|status| !matches!(status, WcStatus::Success | WcStatus::Flushed));
        match cause.unwrap_or(cqe.status) {
            status @ WcStatus::RetryExceeded => {
                bail!(
                    "the other side does not answer ({status:?}): is it still there? If TCP \
                     reaches it, is UDP port 4791 filtered? (`feroce doctor HOST` tries it)"
                )
            }
            WcStatus::Flushed if self.spec.iwarp => {
                bail!("the connection has ended: is the other side still there?")
            }
            status => bail!("a work request failed: {status}"),
        }
    }

    /// The data that queue pair `i` sends.
    pub(crate) fn payload(&self, i: usize, size: usize) -> Data {
        let at = self.out_at(i);
        if size > self.spec.inline as usize {
            return self.mr.data(at..at + size);
        }
        let mut bytes = [0; 256];
        if let Some(bytes) = bytes.get_mut(..size)
            && self.mr.read_at(at, bytes).is_ok()
        {
            return Data::Inline(InlineBytes::new(bytes));
        }
        let mut bytes = vec![0; size];
        // The slot is as long as the longest message.
        let _ = self.mr.read_at(at, &mut bytes);
        Data::Inline(InlineBytes::new(&bytes))
    }
}

/// How a loop waits when there is no completion: it spins, or sleeps if the user asked for events.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    armed: bool,
}

impl Idle {
    /// A completion or message has arrived.
    pub(crate) fn reset(&mut self) {
        self.armed = false;
    }

    /// Nothing has arrived. The first call arms the CQs and returns, so that the caller polls once
    /// more: completions that arrived before the CQs were armed raise no event. The second call
    /// sleeps.
    pub(crate) fn pause(&mut self, end: &End) -> anyhow::Result<()> {
        if !end.spec.events {
            // The adapter yields the processor by itself after a number of empty polls.
            return Ok(());
        }
        if self.armed {
            self.armed = false;
            end.channel.wait(Some(50))?;
        } else {
            self.armed = true;
            end.send_cq.notify(Notify::Next);
            end.recv_cq.notify(Notify::Next);
        }
        Ok(())
    }
}
