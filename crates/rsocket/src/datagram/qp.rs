//! The queue pair of a datagram socket at one address of this host, with its memory.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use feroce::cm::UDP_QKEY;
use feroce::{
    Access, AddrVec, Ah, CompChannel, Context, Cq, Cqe, Errno, Gid, Mr, Notify, Pd, QpCap, Qpn,
    Receiver, SendFlags, SendOp, SendWr, Sender, TransportKind, WcStatus,
};

use crate::ManagerFn;
use crate::protocol::Header;
use crate::settings::Settings;

/// Most bytes of a datagram with its header, as in librdmacm.
pub(super) const MAX_LEN: usize = 2048;

/// Bytes of the GRH, which precedes every datagram that a UD queue pair receives.
const GRH: usize = 40;

/// The bit of a work request's id that marks a receive.
const RECEIVE: u64 = 1 << 32;

/// A UD queue pair at one address of this host.
#[derive(Debug)]
pub(super) struct DatagramQp {
    /// The address and port of the socket here.
    pub(super) local: SocketAddr,
    pub(super) qpn: Qpn,
    context: Context,
    pd: Pd,
    cq: Cq,
    sender: Sender,
    receiver: Receiver,
    outgoing: Mr,
    incoming: Mr,
    /// Slots of `outgoing` without a datagram in flight.
    free: Vec<usize>,
    slots: usize,
}

/// The queue pair that a datagram goes to.
#[derive(Debug)]
pub(super) struct Target {
    ah: Ah,
    pub(super) qpn: Qpn,
}

impl DatagramQp {
    /// Makes one at an address of this host.
    pub(super) fn new(
        local: SocketAddr,
        settings: &Settings,
        manager: ManagerFn,
    ) -> Result<Self, Errno> {
        let context = manager().context_for(local.ip())?;
        if context.attr().transport == TransportKind::Iwarp {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let depth = |bytes: u32, most: u16| (bytes as usize / MAX_LEN).clamp(1, most.into());
        let slots = depth(settings.send_bytes, settings.send_depth);
        let receives = depth(settings.recv_bytes, settings.recv_depth);
        let pd = context.alloc_pd()?;
        let cq = context.create_cq((slots + receives) as u32)?;
        let cap = QpCap::new(slots as u32, receives as u32);
        let mut qp = pd.ud_qp(&cq, &cq, cap).signal_all().create()?;
        qp.activate(UDP_QKEY)?;
        let qpn = qp.qpn();
        let (_, sender, receiver) = qp.split();
        let mut made = Self {
            local,
            qpn,
            outgoing: pd.alloc_mr(slots * MAX_LEN, Access::LOCAL_WRITE)?,
            incoming: pd.alloc_mr(receives * (GRH + MAX_LEN), Access::LOCAL_WRITE)?,
            free: (0..slots).collect(),
            slots,
            receiver: receiver.ok_or(Errno::INVALID)?,
            context,
            pd,
            cq,
            sender,
        };
        (0..receives).for_each(|slot| made.receive_into(slot));
        Ok(made)
    }

    /// Whether this is the inherited copy in a child of the process that made it.
    pub(super) fn is_cut_off(&self) -> bool {
        self.context.is_cut_off()
    }

    /// The destination of datagrams to a queue pair at a peer's address.
    pub(super) fn target(&self, peer: IpAddr, qpn: Qpn) -> Result<Target, Errno> {
        let (ours, dgid) = (gid(self.local.ip()), gid(peer));
        let sgid_index = self.context.port().gid_index(ours);
        let sgid_index = sgid_index.ok_or(Errno(libc::EADDRNOTAVAIL))?;
        let ah = self.pd.create_ah(AddrVec { dgid, sgid_index, ..AddrVec::default() })?;
        Ok(Target { ah, qpn })
    }

    /// Most bytes of a datagram that fits into one packet with its header.
    pub(super) fn max_payload(&self) -> usize {
        let mut header = [0; Header::MOST];
        self.context.port().active_mtu.bytes().min(MAX_LEN) - Header(self.local).emit(&mut header)
    }

    /// Whether another datagram can be sent now.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether no datagram is in flight.
    pub(super) fn is_done(&self) -> bool {
        self.free.len() == self.slots
    }

    pub(super) fn channel(&self) -> &CompChannel {
        self.cq.channel()
    }

    /// Requests an event on the channel for the next completion.
    pub(super) fn arm(&self) {
        while self.cq.channel().try_event().is_some() {}
        self.cq.notify(Notify::Next);
    }

    /// Sends a datagram; false if all slots are in flight.
    pub(super) fn send(&mut self, to: &Target, parts: &[&[u8]]) -> Result<bool, Errno> {
        let Some(slot) = self.free.pop() else { return Ok(false) };
        let start = slot * MAX_LEN;
        let mut header = [0; Header::MOST];
        let mut end = start + Header(self.local).emit(&mut header);
        self.outgoing.write_at(start, &header[..end - start])?;
        for part in parts {
            // The caller has checked the length against `max_payload`.
            self.outgoing.write_at(end, part)?;
            end += part.len();
        }
        let wr = SendWr {
            wr_id: slot as u64,
            op: SendOp::Send,
            data: self.outgoing.data(start..end),
            flags: SendFlags::SIGNALED,
            dest: to.ah.dest(to.qpn, UDP_QKEY),
        };
        self.sender.post([wr]).inspect_err(|_| self.free.push(slot))?;
        Ok(true)
    }

    /// The bytes of a slot of `incoming`.
    fn slot(slot: usize) -> Range<usize> {
        slot * (GRH + MAX_LEN)..(slot + 1) * (GRH + MAX_LEN)
    }

    fn receive_into(&mut self, slot: usize) {
        let wr = self.incoming.recv(RECEIVE | slot as u64, Self::slot(slot));
        // The receive queue has one entry per slot, and this slot is not in it.
        let posted = self.receiver.post([wr]);
        debug_assert!(posted.is_ok(), "{posted:?}");
    }

    /// Takes completions, and calls `take` with each datagram and its sender. Returns whether there
    /// were completions.
    pub(super) fn progress(&mut self, mut take: impl FnMut(SocketAddr, &[u8])) -> bool {
        let mut next = self.cq.poll_one();
        let any = next.is_some();
        while let Some(cqe) = next {
            let slot = (cqe.wr_id & !RECEIVE) as usize;
            if cqe.wr_id & RECEIVE != 0 {
                self.on_datagram(&cqe, slot, &mut take);
                self.receive_into(slot);
            } else {
                self.free.push(slot);
            }
            next = self.cq.take_one();
        }
        any
    }

    fn on_datagram(&self, cqe: &Cqe, slot: usize, take: &mut impl FnMut(SocketAddr, &[u8])) {
        let len = (cqe.byte_len as usize).saturating_sub(GRH);
        let mut bytes = [0; MAX_LEN];
        let Some(bytes) = bytes.get_mut(..len) else { return };
        let read = self.incoming.read_at(Self::slot(slot).start + GRH, bytes);
        if cqe.status == WcStatus::Success
            && read.is_ok()
            && let Some((Header(from), datagram)) = Header::parse(bytes)
        {
            take(from, datagram);
        }
    }
}

/// The GID of an IP address.
fn gid(ip: IpAddr) -> Gid {
    match ip {
        IpAddr::V4(ip) => Gid::from_ipv4(ip.octets()),
        IpAddr::V6(ip) => Gid(ip.octets()),
    }
}
