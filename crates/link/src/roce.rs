//! RoCE on an interface: RoCEv2 by UDP, and RoCEv1 by a packet socket where the process may have
//! one. The framing of a train's path says which of them it takes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use feroce_train::{Framing, Instant, LinkCaps, Path, RxMeta, RxTrain, Single, Train};
use feroce_wire::Gid;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use crate::{Carrier, Control, EtherLink, LinkCounters, SharedPort, UdpLink};

/// Calls in a row, and trains, with which only the link is asked that had the last packet. To ask
/// the other takes as long as a packet does, and most devices use one of the two at a time.
const MAX_STREAK: usize = 64;

/// A link over UDP sockets, and over a packet socket beside them.
#[derive(Debug)]
pub struct RoceLink {
    udp: UdpLink,
    beside: Option<Beside>,
}

/// RoCEv1 beside RoCEv2.
#[derive(Debug)]
struct Beside {
    ether: EtherLink,
    /// Ready when one of the two is.
    epoll: Epoll,
    /// The last packet arrived here.
    was_last: bool,
    /// Calls and trains since both were asked.
    streak: usize,
}

impl RoceLink {
    /// Joins the two; `ether` has the addresses of `udp` from now on.
    pub fn new(udp: UdpLink, ether: Option<EtherLink>) -> io::Result<Self> {
        let join = |mut ether: EtherLink| {
            let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            epoll.add(udp.wait_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
            epoll.add(ether.wait_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 1))?;
            let addresses: Vec<Gid> = udp.addresses().collect();
            ether.control(Control::Addresses(&addresses))?;
            Ok::<_, io::Error>(Beside { ether, epoll, was_last: false, streak: 0 })
        };
        let beside = ether.map(join).transpose()?;
        Ok(Self { udp, beside })
    }

    fn of(&mut self, framing: Framing) -> &mut dyn Carrier {
        match &mut self.beside {
            Some(beside) if framing == Framing::RoceV1 => &mut beside.ether,
            _ => &mut self.udp,
        }
    }
}

impl From<UdpLink> for RoceLink {
    fn from(udp: UdpLink) -> Self {
        Self { udp, beside: None }
    }
}

impl Carrier for RoceLink {
    fn caps(&self) -> LinkCaps {
        self.udp.caps()
    }

    fn headers(&self, path: &Path) -> RxMeta {
        match &self.beside {
            Some(beside) if path.framing == Framing::RoceV1 => beside.ether.headers(path),
            _ => self.udp.headers(path),
        }
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        match &self.beside {
            Some(beside) => beside.epoll.0.as_fd(),
            None => self.udp.wait_fd(),
        }
    }

    fn counters(&self) -> LinkCounters {
        let mut counters = self.udp.counters();
        counters.extend(self.beside.iter().flat_map(|beside| beside.ether.counters()));
        counters
    }

    fn send(&mut self, now: Instant, trains: &[Train]) -> io::Result<usize> {
        if self.beside.is_none() {
            return self.udp.send(now, trains);
        }
        let mut taken = 0;
        for run in trains.chunk_by(|a, b| a.path.framing == b.path.framing) {
            let sent = self.of(run[0].path.framing).send(now, run)?;
            taken += sent;
            if sent < run.len() {
                break;
            }
        }
        Ok(taken)
    }

    #[inline]
    fn send_single(&mut self, packet: Single<'_>) -> bool {
        match &mut self.beside {
            Some(beside) if packet.path.framing == Framing::RoceV1 => {
                beside.ether.send_single(packet)
            }
            _ => self.udp.send_single(packet),
        }
    }

    fn receive(
        &mut self,
        now: Instant,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> io::Result<usize> {
        let Some(beside) = &mut self.beside else { return self.udp.receive(now, budget, sink) };
        beside.streak += 1;
        if beside.streak <= MAX_STREAK {
            let taken = match beside.was_last {
                true => beside.ether.receive(now, budget, sink),
                false => self.udp.receive(now, budget, sink),
            }?;
            beside.streak += taken;
            return Ok(taken);
        }
        beside.streak = 0;
        // Each gets half of the budget at least.
        let by_udp = self.udp.receive(now, budget.div_ceil(2), sink)?;
        let by_ether = beside.ether.receive(now, (budget - by_udp).max(1), sink)?;
        if by_udp + by_ether > 0 {
            beside.was_last = by_ether > by_udp;
        }
        Ok(by_udp + by_ether)
    }

    fn arm(&mut self, now: Instant) -> bool {
        let is_armed = self.udp.arm(now);
        self.beside.as_mut().is_none_or(|beside| {
            // A thread that wakes asks both.
            beside.streak = MAX_STREAK;
            beside.ether.arm(now)
        }) && is_armed
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let ether = self.beside.as_ref().and_then(|beside| beside.ether.poll_timeout());
        self.udp.poll_timeout().into_iter().chain(ether).min()
    }

    fn control(&mut self, control: Control<'_>) -> io::Result<()> {
        let Some(Beside { ether, .. }) = &mut self.beside else {
            return self.udp.control(control);
        };
        match control {
            // A GID does not say in which framing its group is used.
            Control::Join(group) => {
                let joined = self.udp.control(control);
                // On a port without IPv6, a group of IPv6 is one of RoCEv1 alone.
                let has_v6 = self.udp.addresses().any(|address| address.as_ipv4().is_none());
                if has_v6 || group.as_ipv4().is_some() {
                    joined?;
                }
                ether.control(control)
            }
            Control::Addresses(_) => {
                self.udp.control(control)?;
                let addresses: Vec<Gid> = self.udp.addresses().collect();
                ether.control(Control::Addresses(&addresses))
            }
            Control::Leave(_) | Control::Exit | Control::Fork => {
                self.udp.control(control)?;
                ether.control(control)
            }
        }
    }
}

impl SharedPort for RoceLink {
    fn listen(&mut self, addr: Gid) -> io::Result<()> {
        self.udp.listen(addr)
    }

    fn stop_listening(&mut self, addr: Gid) {
        self.udp.stop_listening(addr);
    }

    fn receiver(&self, addr: Gid) -> Option<BorrowedFd<'_>> {
        self.udp.receiver(addr)
    }

    fn borrow_receiver(&mut self, addr: Gid, socket: OwnedFd) -> bool {
        self.udp.borrow_receiver(addr, socket)
    }

    fn is_steered(&self, addr: Gid) -> bool {
        self.udp.is_steered(addr)
    }

    #[inline]
    fn is_watching(&self) -> bool {
        self.beside.is_some() || self.udp.is_watching()
    }
}
