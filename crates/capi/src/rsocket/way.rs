//! A queue pair for the datagrams of one address, with its memory.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use feroce::cm::UDP_QKEY;
use feroce::{
    Access, AddrVec, Ah, CompChannel, Context, Cq, Cqe, Gid, Mr, Notify, Pd, QpCap, Qpn, Receiver,
    SendFlags, SendOp, SendWr, Sender, WcStatus,
};

use super::protocol::Header;
use super::settings::Settings;
use crate::errno::Errno;
use crate::rdmacm::devices;

/// Bytes of a datagram with its header, as the original has them.
pub(super) const MOST: usize = 2048;

/// Bytes before every datagram that a queue pair receives.
const GRH: usize = 40;

/// Marks the numbers of receives.
const RECEIVE: u64 = 1 << 32;

/// A way to other sockets.
#[derive(Debug)]
pub(super) struct Way {
    /// Our address on it.
    pub(super) local: SocketAddr,
    pub(super) qpn: Qpn,
    context: Context,
    pd: Pd,
    cq: Cq,
    sender: Sender,
    receiver: Receiver,
    outgoing: Mr,
    incoming: Mr,
    /// Places for datagrams that are not in flight.
    free: Vec<usize>,
    places: usize,
}

/// Where a datagram goes.
#[derive(Debug)]
pub(super) struct Target {
    ah: Ah,
    pub(super) qpn: Qpn,
}

impl Way {
    /// Makes one at an address of this host.
    pub(super) fn new(local: SocketAddr, settings: &Settings) -> Result<Self, Errno> {
        let context = devices::manager().context_for(local.ip())?;
        let depth = |bytes: u32, most: u16| (bytes as usize / MOST).clamp(1, most.into());
        let places = depth(settings.send_bytes, settings.send_depth);
        let receives = depth(settings.recv_bytes, settings.recv_depth);
        let pd = context.alloc_pd()?;
        let cq = context.create_cq((places + receives) as u32)?;
        let cap = QpCap::new(places as u32, receives as u32);
        let mut qp = pd.ud_qp(&cq, &cq, cap).signal_all().create()?;
        qp.activate(UDP_QKEY)?;
        let qpn = qp.qpn();
        let (_, sender, receiver) = qp.split();
        let mut made = Self {
            local,
            qpn,
            outgoing: pd.alloc_mr(places * MOST, Access::LOCAL_WRITE)?,
            incoming: pd.alloc_mr(receives * (GRH + MOST), Access::LOCAL_WRITE)?,
            free: (0..places).collect(),
            places,
            receiver: receiver.ok_or(Errno::INVALID)?,
            context,
            pd,
            cq,
            sender,
        };
        (0..receives).for_each(|place| made.receive_into(place));
        Ok(made)
    }

    /// Whether this is the copy in a child of the process that made it.
    pub(super) fn is_cut_off(&self) -> bool {
        self.context.is_cut_off()
    }

    /// How to reach a queue pair at a peer's address.
    pub(super) fn target(&self, peer: IpAddr, qpn: Qpn) -> Result<Target, Errno> {
        let (ours, dgid) = (gid(self.local.ip()), gid(peer));
        let index = self.context.port().gids.iter().position(|gid| *gid == ours);
        let sgid_index = index.and_then(|index| u16::try_from(index).ok());
        let sgid_index = sgid_index.ok_or(Errno(libc::EADDRNOTAVAIL))?;
        let ah = self.pd.create_ah(AddrVec { dgid, sgid_index, ..AddrVec::default() })?;
        Ok(Target { ah, qpn })
    }

    /// Longest datagram that fits into a packet.
    pub(super) fn most(&self) -> usize {
        let mut header = [0; Header::MOST];
        self.context.port().active_mtu.bytes().min(MOST) - Header(self.local).emit(&mut header)
    }

    /// Whether there is room for another datagram.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether nothing is in flight.
    pub(super) fn is_done(&self) -> bool {
        self.free.len() == self.places
    }

    pub(super) fn channel(&self) -> &CompChannel {
        self.cq.channel()
    }

    /// Asks to be told of the next completion.
    pub(super) fn arm(&self) {
        while self.cq.channel().try_event().is_some() {}
        self.cq.notify(Notify::Next);
    }

    /// Sends a datagram; false if there is no room for it now.
    pub(super) fn send(&mut self, to: &Target, parts: &[&[u8]]) -> Result<bool, Errno> {
        let Some(place) = self.free.pop() else { return Ok(false) };
        let start = place * MOST;
        let mut header = [0; Header::MOST];
        let mut end = start + Header(self.local).emit(&mut header);
        self.outgoing.write_at(start, &header[..end - start])?;
        for part in parts {
            // The length was checked before.
            self.outgoing.write_at(end, part)?;
            end += part.len();
        }
        let wr = SendWr {
            wr_id: place as u64,
            op: SendOp::Send,
            data: self.outgoing.data(start..end),
            flags: SendFlags::SIGNALED,
            dest: to.ah.dest(to.qpn, UDP_QKEY),
        };
        self.sender.post([wr]).inspect_err(|_| self.free.push(place))?;
        Ok(true)
    }

    fn place(place: usize) -> Range<usize> {
        place * (GRH + MOST)..(place + 1) * (GRH + MOST)
    }

    fn receive_into(&mut self, place: usize) {
        let wr = self.incoming.recv(RECEIVE | place as u64, Self::place(place));
        // There is room: it was taken from the queue just now, or was never in it.
        let posted = self.receiver.post([wr]);
        debug_assert!(posted.is_ok(), "{posted:?}");
    }

    /// Takes what has completed, and gives datagrams to `take`. True if there was something.
    pub(super) fn progress(&mut self, mut take: impl FnMut(SocketAddr, &[u8])) -> bool {
        let mut next = self.cq.poll_one();
        let any = next.is_some();
        while let Some(cqe) = next {
            let place = (cqe.wr_id & !RECEIVE) as usize;
            if cqe.wr_id & RECEIVE != 0 {
                self.on_datagram(&cqe, place, &mut take);
                self.receive_into(place);
            } else {
                self.free.push(place);
            }
            next = self.cq.take_one();
        }
        any
    }

    fn on_datagram(&self, cqe: &Cqe, place: usize, take: &mut impl FnMut(SocketAddr, &[u8])) {
        let len = (cqe.byte_len as usize).saturating_sub(GRH);
        let mut bytes = [0; MOST];
        let Some(bytes) = bytes.get_mut(..len) else { return };
        let read = self.incoming.read_at(Self::place(place).start + GRH, bytes);
        if cqe.status == WcStatus::Success
            && read.is_ok()
            && let Some((Header(from), datagram)) = Header::parse(bytes)
        {
            take(from, datagram);
        }
    }
}

/// An address as a port knows it.
fn gid(ip: IpAddr) -> Gid {
    match ip {
        IpAddr::V4(ip) => Gid::from_ipv4(ip.octets()),
        IpAddr::V6(ip) => Gid(ip.octets()),
    }
}
