//! portd: receives at the addresses of a host for processes of all users.

use std::collections::{BTreeMap, btree_map};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use feroce_link::port::{PortListener, PortSocket, Received, Sent};
use feroce_link::{
    Carrier, Checker, Control, IcrcPolicy, LinkCounters, Logger, UdpConfig, UdpLink,
};
use feroce_train::{Instant, RxTrain};
use feroce_wire::Gid;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::ledger::{Given, Ledger, Service};
use super::message::{Address, Answer, Prefixes, Request};
use super::{NAMES, is_link_local, name};
use crate::demux::{self, Target};
use crate::distribute::split;
use crate::record;

/// Connections of one user: leases, and claims of services.
const MAX_OF_USER: usize = 1024;
/// Leases of one user, so that no user can take all prefixes.
const MAX_LEASES_OF_USER: usize = 128;
/// Bytes that may wait for a process. The kernel keeps them, so a user whose processes receive
/// nothing takes this much for each lease.
const ROOM: usize = 1 << 20;
/// How long a prefix is kept from other users after its process has ended: peers may still send to
/// that process, and what they send is not for other users. Peers give up earlier than this. For as
/// long, portd keeps prefixes and services that the portd before it had given out: their processes
/// ask for them again as soon as they run.
const REST_NS: u64 = 120_000_000_000;
/// Trains to receive from a socket before other sockets have their turn.
const BUDGET: usize = 32;
/// How often portd receives what a process that has ended may have sent; each time [`BUDGET`].
const LAST_ROUNDS: usize = 64;
/// The longest request.
const MAX_REQUEST: usize = 1024;

/// The epoll data of the listener. Connections count up from here.
const LISTENER: u64 = 0;
/// The epoll data of the sockets without an interface; those of an interface add its index.
const FIRST_WIRE: u64 = 1 << 63;

/// What a connection is for.
#[derive(Debug)]
enum Role {
    New,
    Lease(u8),
    Claim(Service),
}

/// A connection.
#[derive(Debug)]
struct Conn {
    socket: PortSocket,
    user: u32,
    role: Role,
}

/// A process with a lease.
#[derive(Debug)]
struct Guest {
    conn: u64,
    user: u32,
    addresses: Vec<Address>,
}

/// The sockets for the link-local addresses of one interface, or for all other addresses.
#[derive(Debug)]
struct Wire {
    link: UdpLink,
    checker: Checker,
}

/// Who gets a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum To {
    /// The process with this prefix.
    One(u8),
    /// Every process at the address.
    All,
    NoProcess,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    forwarded: u64,
    lost: u64,
    no_process: u64,
}

/// Receives at the addresses of a host, and passes to each process what is for its queue pairs.
///
/// The caller waits until [`Portd::wait_fd`] is readable and then calls [`Portd::turn`].
#[derive(Debug)]
pub struct Portd {
    listener: PortListener,
    /// The listener is known to the epoll instance. It is not while descriptors are lacking.
    listens: bool,
    epoll: Epoll,
    config: UdpConfig,
    /// The addresses to receive at; `None`: all that processes ask for.
    only: Option<Vec<Gid>>,
    /// By the index of the interface.
    wires: BTreeMap<u32, Wire>,
    conns: BTreeMap<u64, Conn>,
    next_conn: u64,
    guests: BTreeMap<u8, Guest>,
    /// The process, by prefix, that listens for a service, and the connection of its claim.
    services: BTreeMap<Service, (u8, u64)>,
    /// The last users of prefixes that are free, and since when.
    left: BTreeMap<u8, (u32, Instant)>,
    /// The users of services that the portd before this one had given out, and that no process has
    /// claimed since.
    kept: BTreeMap<Service, u32>,
    /// What the next portd has to know; `None` if that cannot be written.
    ledger: Option<Ledger>,
    record: Vec<u8>,
    counters: Counters,
    log: Logger,
}

impl Portd {
    /// Becomes the portd of this network namespace for all addresses of the host, or for some.
    /// Sockets are opened when a process asks for an address. What it gives out is written down
    /// below `root` (`/dev/shm`, except in tests), for a portd that follows this one.
    pub fn new(config: UdpConfig, only: Option<Vec<Gid>>, root: &Path) -> io::Result<Self> {
        let listener = listen()?;
        let (ledger, given) = match Ledger::open(root) {
            Ok((ledger, given)) => (Some(ledger), given),
            Err(e) => {
                warn_of_ledger(&config.log, &e);
                (None, Given::default())
            }
        };
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        Ok(Self {
            listener,
            listens: true,
            epoll,
            log: config.log.clone(),
            config,
            only,
            wires: BTreeMap::new(),
            conns: BTreeMap::new(),
            next_conn: LISTENER + 1,
            guests: BTreeMap::new(),
            services: BTreeMap::new(),
            left: given.prefixes.into_iter().map(|(p, user)| (p, (user, Instant::ZERO))).collect(),
            kept: given.services,
            ledger,
            record: Vec::new(),
            counters: Counters::default(),
        })
    }

    /// Readable when [`Portd::turn`] has something to do.
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// Handles requests and packets that have arrived. It never blocks.
    pub fn turn(&mut self, now: Instant) -> io::Result<()> {
        let mut events = [EpollEvent::empty(); 64];
        let count = self.epoll.wait(&mut events, EpollTimeout::ZERO)?;
        for event in &events[..count] {
            match event.data() {
                LISTENER => self.accept(),
                wire if wire >= FIRST_WIRE => {
                    self.receive(now, (wire - FIRST_WIRE) as u32);
                }
                conn => self.hear(now, conn),
            }
        }
        Ok(())
    }

    /// What portd did so far.
    pub fn counters(&self) -> LinkCounters {
        let Counters { forwarded, lost, no_process } = self.counters;
        let checked = self.wires.values().flat_map(|wire| wire.checker.counters());
        let bad = checked.map(|(_, count)| count).sum();
        let (leases, services) = (self.guests.len() as u64, self.services.len() as u64);
        vec![
            ("leases", leases),
            ("services", services),
            ("forwarded", forwarded),
            ("lost", lost),
            ("no_process", no_process),
            ("rx_icrc_encapsulated", bad),
        ]
    }

    fn accept(&mut self) {
        loop {
            let socket = match self.listener.accept() {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(e) => {
                    self.log.warn(format_args!("cannot accept a connection: {e}"));
                    // Until a connection ends, the next attempt would fail as well.
                    self.listens = self.epoll.delete(&self.listener).is_err();
                    return;
                }
            };
            let Ok(user) = socket.peer_user() else { continue };
            if self.conns.values().filter(|conn| conn.user == user).count() >= MAX_OF_USER {
                continue;
            }
            let id = self.next_conn;
            if self.epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, id)).is_ok() {
                self.next_conn += 1;
                self.conns.insert(id, Conn { socket, user, role: Role::New });
            }
        }
    }

    /// Handles what a process has sent.
    fn hear(&mut self, now: Instant, id: u64) {
        let mut bytes = [0; MAX_REQUEST];
        // Another event of the same turn may have ended it.
        let Some(conn) = self.conns.get(&id) else { return };
        let request = match conn.socket.receive(&mut bytes) {
            Received::Message(len) => Request::parse(&bytes[..len]),
            Received::Nothing => return,
            Received::Gone => {
                self.announce_end(now, id);
                return self.end(now, id);
            }
        };
        let user = conn.user;
        let answer = match (request, &conn.role) {
            (Some(Request::Lease { prefix, addresses }), Role::New) => {
                self.lease(now, id, user, prefix, addresses)
            }
            (Some(Request::Lease { prefix, addresses }), Role::Lease(own)) if *own == prefix => {
                self.move_to(prefix, addresses)
            }
            (Some(Request::Claim { prefix, address, service }), Role::New) => {
                self.claim(now, id, user, prefix, (address, service))
            }
            _ => Answer::Refused("not a request of this version of feroce".into()),
        };
        let is_heard = self.conns.get(&id).map(|conn| conn.socket.send(&answer.emit()));
        if is_heard != Some(Sent::Done) || matches!(answer, Answer::Refused(_)) {
            self.end(now, id);
        }
    }

    fn lease(
        &mut self,
        now: Instant,
        conn: u64,
        user: u32,
        prefix: u8,
        addresses: Vec<Address>,
    ) -> Answer {
        self.forget(now);
        if prefix == 0 || !self.is_free_for(user, prefix) {
            return Answer::Taken(self.taken_for(user));
        }
        if self.guests.values().filter(|guest| guest.user == user).count() >= MAX_LEASES_OF_USER {
            return Answer::Refused(format!(
                "user {user} has {MAX_LEASES_OF_USER} devices open already"
            ));
        }
        self.left.remove(&prefix);
        self.write(|ledger| ledger.set_prefix(prefix, Some(user)));
        self.guests.insert(prefix, Guest { conn, user, addresses: Vec::new() });
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.role = Role::Lease(prefix);
            conn.socket.set_room(ROOM);
        }
        self.move_to(prefix, addresses)
    }

    /// Gives free what was kept for long enough.
    fn forget(&mut self, now: Instant) {
        let is_over = |since: Instant| now.nanos_since(since) >= REST_NS;
        for (prefix, _) in self.left.extract_if(.., |_, (_, since)| is_over(*since)) {
            if let Some(ledger) = &mut self.ledger {
                // At worst the next portd keeps it for a while.
                let _ = ledger.set_prefix(prefix, None);
            }
        }
        if is_over(Instant::ZERO) {
            for service in std::mem::take(&mut self.kept).into_keys() {
                self.write(|ledger| ledger.set_service(service, None));
            }
        }
    }

    /// Writes down what the next portd has to know.
    fn write(&mut self, f: impl FnOnce(&mut Ledger) -> io::Result<()>) {
        if let Some(Err(e)) = self.ledger.as_mut().map(f) {
            warn_of_ledger(&self.log, &e);
            // One warning is enough. The next portd gets what was written until now.
            self.ledger = None;
        }
    }

    fn is_free_for(&self, user: u32, prefix: u8) -> bool {
        let rests = self.left.get(&prefix).is_some_and(|(last, _)| *last != user);
        !rests && !self.guests.contains_key(&prefix)
    }

    fn taken_for(&self, user: u32) -> Prefixes {
        let mut taken = Prefixes::default();
        for prefix in (0..=u8::MAX).filter(|prefix| !self.is_free_for(user, *prefix)) {
            taken[usize::from(prefix / 8)] |= 1 << (prefix % 8);
        }
        taken
    }

    /// Receives at other addresses for a process.
    fn move_to(&mut self, prefix: u8, addresses: Vec<Address>) -> Answer {
        let mut refused = Vec::new();
        let mut served = Vec::new();
        for address in addresses {
            match self.listen_at(address) {
                Ok(()) => served.push(address),
                Err(e) => {
                    self.log.debug(format_args!("not receiving at {}: {e}", address.0));
                    refused.push(address.0);
                }
            }
        }
        if let Some(guest) = self.guests.get_mut(&prefix) {
            guest.addresses = served;
        }
        let guests = &self.guests;
        let is_lost = |(at, _): &Service, (owner, _): &(u8, u64)| {
            *owner == prefix && !guests.get(owner).is_some_and(|g| g.addresses.contains(at))
        };
        let lost: Vec<_> = self.services.extract_if(.., |at, owner| is_lost(at, owner)).collect();
        self.write_off(lost.into_iter().map(|(service, _)| service));
        self.stop_where_unused();
        Answer::Leased { refused }
    }

    fn write_off(&mut self, services: impl Iterator<Item = Service>) {
        for service in services {
            self.write(|ledger| ledger.set_service(service, None));
        }
    }

    fn claim(
        &mut self,
        now: Instant,
        conn: u64,
        user: u32,
        prefix: u8,
        service: Service,
    ) -> Answer {
        self.forget(now);
        let guest = self.guests.get(&prefix).filter(|guest| guest.user == user);
        if !guest.is_some_and(|guest| guest.addresses.contains(&service.0)) {
            return Answer::Refused(format!("no device of user {user} is at {}", service.0.0));
        }
        if self.kept.get(&service).is_some_and(|last| *last != user) {
            return Answer::InUse;
        }
        match self.services.entry(service) {
            btree_map::Entry::Occupied(_) => return Answer::InUse,
            btree_map::Entry::Vacant(place) => place.insert((prefix, conn)),
        };
        self.kept.remove(&service);
        self.write(|ledger| ledger.set_service(service, Some(user)));
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.role = Role::Claim(service);
        }
        Answer::Claimed
    }

    /// Tells the processes of other users that a process has closed its lease, or was killed, so
    /// that they end their connections with it. Those of its own user learn it from their registry.
    fn announce_end(&mut self, now: Instant, id: u64) {
        let Some(Conn { role: Role::Lease(prefix), user, .. }) = self.conns.get(&id) else {
            return;
        };
        let (prefix, user) = (*prefix, *user);
        // What it has sent comes first.
        for scope in self.wires.keys().copied().collect::<Vec<_>>() {
            (0..LAST_ROUNDS).any(|_| self.receive(now, scope) < BUDGET);
        }
        let Some(gone) = self.guests.get(&prefix) else { return };
        let addresses = gone.addresses.iter().map(|(gid, _)| *gid).collect();
        let news = Answer::Departed { prefix, addresses }.emit();
        for guest in self.guests.values().filter(|guest| guest.user != user) {
            let sent = self.conns.get(&guest.conn).map(|conn| conn.socket.send(&news));
            self.counters.lost += u64::from(sent != Some(Sent::Done));
        }
    }

    /// Ends a connection, and what it stands for.
    fn end(&mut self, now: Instant, id: u64) {
        let Some(conn) = self.conns.remove(&id) else { return };
        match conn.role {
            Role::New => {}
            Role::Lease(prefix) => {
                self.guests.remove(&prefix);
                self.left.insert(prefix, (conn.user, now));
                let is_its = |_: &Service, (owner, _): &mut (u8, u64)| *owner == prefix;
                let lost: Vec<_> = self.services.extract_if(.., is_its).collect();
                self.write_off(lost.into_iter().map(|(service, _)| service));
                self.stop_where_unused();
            }
            // The process may have claimed it again by another connection.
            Role::Claim(service) => {
                if self.services.get(&service).is_some_and(|(_, by)| *by == id) {
                    self.services.remove(&service);
                    self.write(|ledger| ledger.set_service(service, None));
                }
            }
        }
        drop(conn);
        if !self.listens {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, LISTENER);
            self.listens = self.epoll.add(&self.listener, event).is_ok();
        }
    }

    /// Receives at an address, unless portd does already.
    fn listen_at(&mut self, (gid, scope): Address) -> io::Result<()> {
        // A socket at the unspecified address would keep portd from all others.
        let is_one = !gid.to_ip().is_unspecified() && !gid.is_multicast();
        let is_excluded = self.only.as_ref().is_some_and(|only| !only.contains(&gid));
        if !is_one || is_excluded || (scope != 0 && !is_link_local(gid)) {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        if !self.wires.contains_key(&scope) {
            self.add_wire(scope)?;
        }
        let Some(wire) = self.wires.get_mut(&scope) else { return Ok(()) };
        let addresses: Vec<Gid> = wire.link.addresses().chain([gid]).collect();
        wire.link.control(Control::Addresses(&addresses))
    }

    fn add_wire(&mut self, scope: u32) -> io::Result<()> {
        let interface = (scope != 0).then(|| (String::new(), scope));
        let config = UdpConfig { interface, listen: true, flows: 1, ..self.config.clone() };
        let (link, checker) = (UdpLink::new(config, &[])?, Checker::new(IcrcPolicy::default()));
        let event = EpollEvent::new(EpollFlags::EPOLLIN, FIRST_WIRE + u64::from(scope));
        self.epoll.add(link.wait_fd(), event)?;
        self.wires.insert(scope, Wire { link, checker });
        Ok(())
    }

    /// Closes the sockets of addresses that no process has.
    fn stop_where_unused(&mut self) {
        self.wires.retain(|scope, wire| {
            let is_used = |gid: &Gid| {
                self.guests.values().any(|guest| guest.addresses.contains(&(*gid, *scope)))
            };
            let used: Vec<Gid> = wire.link.addresses().filter(is_used).collect();
            // Closing sockets does not fail.
            let _ = wire.link.control(Control::Addresses(&used));
            !used.is_empty()
        });
    }

    /// Receives packets, and passes them to the processes that they are for. Returns how many
    /// trains there were.
    fn receive(&mut self, now: Instant, scope: u32) -> usize {
        // A request of the same turn may have closed them.
        let Some(Wire { link, checker }) = self.wires.get_mut(&scope) else { return 0 };
        let (guests, services) = (&self.guests, &self.services);
        let (conns, record, counters) = (&self.conns, &mut self.record, &mut self.counters);
        let mut deliver = |train: &RxTrain<'_>| {
            let at = (train.meta.dst.gid, scope);
            let is_at = |guest: &Guest| guest.addresses.contains(&at);
            let here = || guests.iter().filter(|(_, guest)| is_at(guest)).map(|(p, _)| *p);
            let recipient = |_: &(), packet: &[u8]| {
                let named = match demux::of_packet(packet) {
                    Target::Slot(slot) => match guests.get(&(slot + 1)) {
                        Some(guest) if is_at(guest) => return To::One(slot + 1),
                        _ => return To::NoProcess,
                    },
                    Target::Service(service) => {
                        services.get(&(at, service)).map(|(owner, _)| *owner)
                    }
                    Target::All => return To::All,
                    Target::Any => None,
                };
                // Any process can answer that there is no such service.
                named.or_else(|| here().next()).map_or(To::NoProcess, To::One)
            };
            split(train, &mut (), recipient, |(), part, to| {
                let to: Vec<u8> = match to {
                    To::One(prefix) => vec![prefix],
                    To::All => here().collect(),
                    To::NoProcess => return counters.no_process += 1,
                };
                record.resize(record::META + part.bytes.len(), 0);
                record::write_received(part, record);
                for guest in to.iter().filter_map(|prefix| guests.get(prefix)) {
                    let sent = conns.get(&guest.conn).map(|conn| conn.socket.send(record));
                    match sent {
                        Some(Sent::Done) => counters.forwarded += 1,
                        Some(Sent::Full | Sent::Gone) | None => counters.lost += 1,
                    }
                }
            });
        };
        let received = link.receive(now, BUDGET, &mut |train| checker.pass(train, &mut deliver));
        received.unwrap_or_else(|e| {
            self.log.warn(format_args!("cannot receive: {e}"));
            0
        })
    }
}

#[cold]
fn warn_of_ledger(log: &Logger, e: &io::Error) {
    log.warn(format_args!(
        "cannot write down which user has what, so that other users may take it while portd is \
         started again: {e}"
    ));
}

/// Listens at the first name that is free. There must be no other portd.
fn listen() -> io::Result<PortListener> {
    let own = nix::unistd::geteuid().as_raw();
    let mut first = None;
    for i in 0..NAMES {
        match PortListener::bind(&name(i)) {
            Ok(listener) => {
                first.get_or_insert(listener);
            }
            Err(e) if e.kind() != io::ErrorKind::AddrInUse => return Err(e),
            Err(e) => {
                let user = PortSocket::connect(&name(i)).and_then(|socket| socket.peer_user());
                // Another one of this user, or of root, would be asked in place of this one.
                if let Ok(user) = user
                    && (user == own || user == 0)
                {
                    let text = format!("user {user} runs feroce portd for all users already: {e}");
                    return Err(feroce_link::annotate(e, text));
                }
            }
        }
    }
    let taken = "other users have taken all names of portd: `ss -xlp | grep feroce-portd` lists \
                 their processes";
    first.ok_or_else(|| io::Error::new(io::ErrorKind::AddrInUse, taken))
}
