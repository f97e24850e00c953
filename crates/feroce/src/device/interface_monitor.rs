//! Following the interface of a device: its link, its MTU and its addresses.
//!
//! The kernel announces every change on a routing socket (rtnetlink). The driver thread does not
//! parse the announcements. It takes each as a reason to query the interface again, and passes what
//! differs from before to the engine and to the link. Therefore neither the order of announcements
//! nor the loss of one matters.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use feroce_engine::Engine;
use feroce_link::{Carrier, Control, Logger};
use feroce_train::{Framing, GidEntry};
use feroce_wire::{Gid, Pmtu};
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};

use super::{gid_of, gid_rank, path_mtu_of};
use crate::sys;

/// Announcements to subscribe to.
const GROUPS: u32 =
    (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR) as u32;

/// Receives announcements that an interface may have changed.
#[derive(Debug)]
pub(crate) struct InterfaceMonitor {
    socket: OwnedFd,
    interface: String,
    /// Addresses have GIDs of RoCEv1, too.
    has_v1: bool,
}

impl InterfaceMonitor {
    /// Listens for changes of an interface.
    pub(crate) fn new(interface: &str, has_v1: bool) -> io::Result<Self> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::NetlinkRoute,
        )?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
        Ok(Self { socket, interface: interface.to_owned(), has_v1 })
    }

    /// Readable when the interface may have changed.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes the announcements and queries the interface.
    pub(crate) fn look(&self) -> io::Result<Interface> {
        let mut ignored = [0; 8192];
        loop {
            match recv(self.socket.as_raw_fd(), &mut ignored, MsgFlags::empty()) {
                // If the kernel had to drop announcements, the interface has changed, too.
                Ok(_) | Err(Errno::EINTR | Errno::ENOBUFS) => {}
                Err(Errno::EAGAIN) => break,
                Err(e) => return Err(e.into()),
            }
        }
        Interface::look(&self.interface, self.has_v1)
    }
}

/// The current state of an interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Interface {
    /// It can carry packets.
    is_up: bool,
    /// The greatest path MTU that it carries; unknown if it is gone.
    mtu: Option<Pmtu>,
    /// Its addresses, best first.
    addresses: Vec<Gid>,
    /// They have GIDs of RoCEv1, too.
    has_v1: bool,
}

impl Interface {
    /// An interface that is gone is down and has no addresses.
    fn look(name: &str, has_v1: bool) -> io::Result<Self> {
        let mtu = sys::interface_mtu(name).ok().map(path_mtu_of);
        let mut found = Self { is_up: false, mtu, addresses: Vec::new(), has_v1 };
        for entry in getifaddrs()?.filter(|e| e.interface_name == name) {
            found.is_up =
                entry.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING);
            found.addresses.extend(entry.address.as_ref().and_then(gid_of));
        }
        found.addresses.sort_by_key(|gid| gid_rank(*gid));
        Ok(found)
    }

    /// Applies the state to the engine and the link. Addresses that stay keep their index in the
    /// table; a removed address leaves a hole, which the next new address fills. Returns false if
    /// the port of an address is in use, perhaps by a process that has just ended: the caller
    /// should try again.
    pub(crate) fn apply(
        &self,
        engine: &mut Engine,
        link: &mut dyn Carrier,
        is_up: &mut bool,
        log: &Logger,
    ) -> bool {
        let mut is_complete = true;
        let mut table = engine.gids().to_vec();
        for entry in &mut table {
            if !self.addresses.contains(&entry.gid) {
                *entry = GidEntry::default();
            }
        }
        let mut bound = bound_by(&table);
        if let Err(e) = link.control(Control::Addresses(&bound)) {
            log.warn(format_args!("addresses: {e}"));
        }
        for &gid in &self.addresses {
            if !bound.contains(&gid) {
                match add(&mut bound, gid, link, log) {
                    Added::Done => {
                        put(&mut table, GidEntry::roce_v2(gid));
                        if self.has_v1 {
                            put(&mut table, GidEntry::roce_v1(gid));
                        }
                    }
                    Added::NotYet => {}
                    Added::InUse => is_complete = false,
                }
            }
        }
        for (i, entry) in (0..).zip(table) {
            engine.set_gid(i, entry);
        }
        let old_mtu = engine.config().port_mtu;
        let mtu = self.mtu.unwrap_or(old_mtu);
        engine.set_port_mtu(mtu);
        if *is_up != self.is_up || (self.is_up && mtu != old_mtu) {
            *is_up = self.is_up;
            engine.set_port_active(self.is_up);
        }
        is_complete
    }
}

/// The addresses in a table.
fn bound_by(table: &[GidEntry]) -> Vec<Gid> {
    let entries = table.iter().filter(|entry| entry.framing == Framing::RoceV2);
    entries.map(|entry| entry.gid).collect()
}

/// Puts an entry in the first hole of the table, or at its end.
fn put(table: &mut Vec<GidEntry>, entry: GidEntry) {
    match table.iter_mut().find(|entry| entry.is_empty()) {
        Some(hole) => *hole = entry,
        None => table.push(entry),
    }
}

/// What became of a new address.
enum Added {
    Done,
    /// The kernel announces it again when it can be bound.
    NotYet,
    /// Its port is in use.
    InUse,
}

/// Adds an address to the link, if the link can bind it.
fn add(bound: &mut Vec<Gid>, gid: Gid, link: &mut dyn Carrier, log: &Logger) -> Added {
    bound.push(gid);
    let Err(e) = link.control(Control::Addresses(bound)) else { return Added::Done };
    // An IPv6 address cannot be bound during duplicate address detection; the kernel sends another
    // announcement when that is done.
    log.debug(format_args!("{gid} is not usable yet: {e}"));
    bound.pop();
    if e.kind() == io::ErrorKind::AddrInUse { Added::InUse } else { Added::NotYet }
}

#[cfg(test)]
mod tests {
    use feroce_engine::{AsyncEvent, Config, Event};
    use feroce_link::{UdpConfig, UdpLink};
    use feroce_train::{Instant, LinkCaps, Path, RxMeta, RxTrain, Single, Train};

    use super::*;

    /// Has every address but one.
    struct Picky {
        inner: UdpLink,
        refused: Gid,
        addresses: Vec<Gid>,
    }

    impl Carrier for Picky {
        fn caps(&self) -> LinkCaps {
            self.inner.caps()
        }

        fn headers(&self, path: &Path) -> RxMeta {
            self.inner.headers(path)
        }

        fn send(&mut self, now: Instant, trains: &[Train]) -> io::Result<usize> {
            self.inner.send(now, trains)
        }

        fn send_single(&mut self, packet: Single<'_>) -> bool {
            self.inner.send_single(packet)
        }

        fn arm(&mut self, now: Instant) -> bool {
            self.inner.arm(now)
        }

        fn poll_timeout(&self) -> Option<Instant> {
            self.inner.poll_timeout()
        }

        fn receive(
            &mut self,
            now: Instant,
            budget: usize,
            sink: &mut dyn FnMut(&RxTrain<'_>),
        ) -> io::Result<usize> {
            self.inner.receive(now, budget, sink)
        }

        fn wait_fd(&self) -> BorrowedFd<'_> {
            self.inner.wait_fd()
        }

        fn control(&mut self, control: Control<'_>) -> io::Result<()> {
            let Control::Addresses(addresses) = control else {
                return self.inner.control(control);
            };
            if addresses.contains(&self.refused) {
                return Err(io::ErrorKind::AddrNotAvailable.into());
            }
            self.addresses = addresses.to_vec();
            Ok(())
        }

        fn counters(&self) -> feroce_link::LinkCounters {
            self.inner.counters()
        }
    }

    fn gid(last: u8) -> Gid {
        Gid::from_ipv4([192, 0, 2, last])
    }

    fn events(engine: &mut Engine) -> Vec<AsyncEvent> {
        let next = || match engine.poll_event()? {
            Event::Async(event) => Some(event),
            Event::Completion(_) | Event::Poller(_) => None,
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn indices_are_stable_and_holes_are_filled() {
        let inner = UdpLink::new(UdpConfig::default(), &[]).unwrap();
        let mut link = Picky { inner, refused: gid(9), addresses: Vec::new() };
        let mut engine = Engine::new(Config::default());
        let mut is_up = true;
        let mut show = |is_up_now, last: &[u8]| {
            let addresses = last.iter().map(|&n| gid(n)).collect();
            let now = Interface { is_up: is_up_now, mtu: None, addresses, has_v1: false };
            now.apply(&mut engine, &mut link, &mut is_up, &Logger::default());
            let table: Vec<Gid> = engine.gids().iter().map(|entry| entry.gid).collect();
            (events(&mut engine), table, link.addresses.clone())
        };
        let change = |index, gid| AsyncEvent::GidChange { index, gid };

        let (seen, table, bound) = show(true, &[1, 2, 9]);
        assert_eq!(seen, [change(0, gid(1)), change(1, gid(2))]);
        assert_eq!((&table, &bound), (&vec![gid(1), gid(2)], &vec![gid(1), gid(2)]));

        let (seen, table, _) = show(false, &[2]);
        assert_eq!(seen, [change(0, Gid::ZERO), AsyncEvent::PortError]);
        assert_eq!(table, [Gid::ZERO, gid(2)]);

        let (seen, table, _) = show(true, &[2, 3, 4]);
        assert_eq!(seen, [change(0, gid(3)), change(2, gid(4)), AsyncEvent::PortActive]);
        assert_eq!(table, [gid(3), gid(2), gid(4)]);

        assert_eq!(show(true, &[2, 3, 4]).0, []);
    }

    #[test]
    fn an_address_has_an_entry_for_each_framing() {
        let inner = UdpLink::new(UdpConfig::default(), &[]).unwrap();
        let mut link = Picky { inner, refused: gid(9), addresses: Vec::new() };
        let mut engine = Engine::new(Config::default());
        let (v1, v2) = (|n| GidEntry::roce_v1(gid(n)), |n| GidEntry::roce_v2(gid(n)));
        // As a device that is opened has it.
        for (i, entry) in (0..).zip([v2(1), v2(2), v1(1), v1(2)]) {
            engine.set_gid(i, entry);
        }
        let mut show = |last: &[u8]| {
            let addresses = last.iter().map(|&n| gid(n)).collect();
            let now = Interface { is_up: true, mtu: None, addresses, has_v1: true };
            now.apply(&mut engine, &mut link, &mut true, &Logger::default());
            (engine.gids().to_vec(), link.addresses.iter().filter(|g| !g.is_zero()).count())
        };
        let hole = GidEntry::default();
        assert_eq!(show(&[1, 2]), (vec![v2(1), v2(2), v1(1), v1(2)], 2));
        assert_eq!(show(&[2]), (vec![hole, v2(2), hole, v1(2)], 1));
        assert_eq!(show(&[2, 3, 9]), (vec![v2(3), v2(2), v1(3), v1(2)], 2));
        assert_eq!(show(&[4, 2, 3]).0[4..], [v2(4), v1(4)]);
    }

    #[test]
    fn a_new_mtu_is_announced_while_the_port_is_up_and_with_it_otherwise() {
        let mut link = UdpLink::new(UdpConfig::default(), &[]).unwrap();
        let mut engine = Engine::new(Config::default());
        let mut is_up = true;
        let mut show = |is_up_now, mtu| {
            let (addresses, has_v1) = (Vec::new(), false);
            let now = Interface { is_up: is_up_now, mtu, addresses, has_v1 };
            now.apply(&mut engine, &mut link, &mut is_up, &Logger::default());
            (events(&mut engine), engine.config().port_mtu)
        };
        assert_eq!(show(true, Some(Pmtu::B4096)), (vec![], Pmtu::B4096));
        let (active, error) = (vec![AsyncEvent::PortActive], vec![AsyncEvent::PortError]);
        assert_eq!(show(true, Some(Pmtu::B1024)), (active.clone(), Pmtu::B1024));
        assert_eq!(show(false, None), (error, Pmtu::B1024));
        assert_eq!(show(false, Some(Pmtu::B2048)), (vec![], Pmtu::B2048));
        assert_eq!(show(true, Some(Pmtu::B2048)), (active, Pmtu::B2048));
    }
}
