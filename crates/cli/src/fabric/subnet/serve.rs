//! The process of an InfiniBand fabric: sockets and the clock around a subnet and its programs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

use anyhow::Context as _;
use feroce_link::port::{MAX_MESSAGE, PortListener, Received, Sent};
use feroce_subnet::{
    Change as PortChange, FileId, Net, Output, PortRef, Programs, SendError, Subnet, TrunkMessage,
    UserMad,
};
use feroce_train::Instant;
use feroce_umad::{Answer, Request};
use feroce_wire::mad::MadHeader;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::addresses::Addresses;
use super::answer::{Sources, answer, describe};
use super::conn::{Conn, ConnId, Reregistrations, Role, Watched};
use super::data::Processes;
use super::issm::IsSm;
use super::linger::Linger;
use super::mail::Mail;
use super::manager::Manager;
use super::meeting::{Meeting, PartArgs};
use super::members::{Member, Members};
use super::report::{self, SubnetStatus};
use super::taps::Taps;
use crate::fabric::admission::Admission;
use crate::fabric::control::{self, Change, Command, Order, Reply};
use crate::fabric::pace::monotonic_ns;
use crate::fabric::place::Place;
use crate::stop;
use joined::Parts;

/// What an event of the epoll instance is about, beside connections.
const LISTENER: u64 = 0;
const ORDERS: u64 = 1;
const OPENED: u64 = 2;
const FIRST_CONN: u64 = 3;
/// Files of subnet managers: this bit, the node, and the port in the lowest byte.
const HELD: u64 = 1 << 63;
/// Connections to other parts: this bit, and the part.
const TRUNK: u64 = 1 << 62;

/// Events that one call reports; more wait for the next.
const MAX_READY: usize = 64;
/// Messages of a connection that one turn takes.
const MAX_MESSAGES: usize = 64;
/// Messages with packets of a connection that one turn takes.
const MAX_PACKET_MESSAGES: usize = 4;
/// Ports that have waited for so long for each other are shown as a circle.
const STUCK: Duration = Duration::from_millis(50);
/// The longest sleep: an interrupt of the user is noticed after it.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(in super::super) struct Server {
    name: String,
    subnet: Subnet,
    programs: Programs,
    processes: Processes,
    taps: Taps,
    members: Members,
    addresses: Addresses,
    reregistrations: Reregistrations,
    started_ns: u64,
    epoll: Epoll,
    linger: Linger,
    /// Connections whose rings the process looks at.
    mail: Mail,
    listener: PortListener,
    admission: Admission,
    wake: Arc<EventFd>,
    orders: Receiver<Order>,
    issm: IsSm,
    parts: Parts,
    conns: BTreeMap<ConnId, Conn>,
    next_conn: ConnId,
    files: BTreeMap<FileId, ConnId>,
    buffer: Vec<u8>,
    message: Vec<u8>,
    /// Something has happened that may have changed an adapter.
    is_touched: bool,
    /// Connections with packets to read, after those of management.
    unread: Vec<ConnId>,
    /// Memberships in groups that have ended, and their connections.
    leaving: Vec<(ConnId, Member)>,
    /// The command that ended it: its connection closes when the process has cleaned up.
    ended_by: Option<SyncSender<Vec<u8>>>,
}

impl Server {
    /// A fabric, or the part of one that `part` names.
    pub(in super::super) fn new(
        place: &Place,
        net: &Net,
        prefix: [u8; 2],
        part: Option<&PartArgs>,
    ) -> anyhow::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let readable = |data| EpollEvent::new(EpollFlags::EPOLLIN, data);
        let subnet = match part {
            Some(args) => Subnet::of_part(net, args.part),
            None => Subnet::new(net),
        };
        let issm = IsSm::new(&place.issm(), &subnet)?;
        epoll.add(&issm, readable(OPENED))?;
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        epoll.add(&*wake, readable(ORDERS))?;
        let path = place.subnet_socket();
        let listener = PortListener::bind(&path).with_context(|| path.display().to_string())?;
        epoll.add(&listener, readable(LISTENER))?;
        let orders = control::listen(&place.control_socket(), &wake)?;
        let parts = match part {
            Some(args) => Parts::new(net, args, Meeting::new(args, net, prefix, &wake)?),
            None => Parts::default(),
        };
        Ok(Self {
            name: place.name().to_owned(),
            programs: Programs::new(),
            processes: Processes::new(&subnet),
            subnet,
            taps: Taps::default(),
            members: Members::default(),
            addresses: Addresses::new(net, prefix),
            reregistrations: Reregistrations::new(),
            started_ns: monotonic_ns(),
            epoll,
            linger: Linger::default(),
            mail: Mail::default(),
            listener,
            admission: Admission::default(),
            wake,
            orders,
            issm,
            parts,
            conns: BTreeMap::new(),
            next_conn: FIRST_CONN,
            files: BTreeMap::new(),
            buffer: vec![0; MAX_MESSAGE],
            message: Vec::with_capacity(MAX_MESSAGE),
            is_touched: false,
            unread: Vec::new(),
            leaving: Vec::new(),
            ended_by: None,
        })
    }

    /// Runs until a command or a signal ends it.
    pub(in super::super) fn run(&mut self) -> anyhow::Result<()> {
        self.run_until(|_| Ok(false))
    }

    /// Runs until all hosts can send, or `check` fails.
    pub(in super::super) fn bring_up(&mut self, manager: &mut Manager) -> anyhow::Result<()> {
        self.run_until(|server| {
            manager.check()?;
            Ok(report::is_up(&server.subnet))
        })
    }

    fn run_until(
        &mut self,
        mut is_over: impl FnMut(&Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        while self.ended_by.is_none() && !stop::requested() && !is_over(self)? {
            self.turn()?;
        }
        Ok(())
    }

    /// Runs until the subnet manager has ended: it says goodbye to the fabric.
    pub(in super::super) fn end(&mut self, mut manager: Manager) -> anyhow::Result<()> {
        manager.ask_to_end();
        while !manager.has_ended() {
            self.turn()?;
        }
        Ok(())
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        self.wait()?;
        self.meet()?;
        self.obey();
        self.leave_groups()?;
        let now = now();
        if self.subnet.poll_timeout().is_some_and(|at| at <= now) {
            self.is_touched = true;
            self.subnet.handle_timeout(now);
        }
        if self.programs.poll_timeout().is_some_and(|at| at <= now) {
            self.is_touched = true;
            self.programs.handle_timeout(now, &mut self.subnet);
        }
        self.settle(now)?;
        self.taps.show(&mut self.subnet);
        if std::mem::take(&mut self.is_touched) {
            self.show_changes()?;
        }
        // Agents come first, so that a subnet manager has its answers although programs keep the
        // fabric busy.
        for id in std::mem::take(&mut self.unread) {
            self.read_packets(id, MAX_PACKET_MESSAGES)?;
        }
        self.processes.handle_timeout(now, &mut self.subnet);
        self.hand_out(now)?;
        self.flush_trunks()
    }

    /// Waits for something to do, and takes what programs have sent.
    fn wait(&mut self) -> anyhow::Result<()> {
        let mut events = [EpollEvent::empty(); MAX_READY];
        let timeout = self.timeout();
        let mut mail = self.mail.of(&mut self.conns, &mut self.unread);
        let ready = match self.linger.wait(&self.epoll, &mut events, timeout, &mut mail) {
            Err(Errno::EINTR) => 0,
            other => other?,
        };
        for event in &events[..ready] {
            match event.data() {
                LISTENER => self.accept()?,
                ORDERS => {
                    let _ = self.wake.read();
                }
                OPENED => self.begin_managers()?,
                held if held & HELD != 0 => self.end_manager(port_of(held))?,
                trunk if trunk & TRUNK != 0 => self.read_trunk((trunk & !TRUNK) as usize)?,
                conn => match self.conns.get(&conn).map(|conn| &conn.role) {
                    Some(Role::Attached(_)) => {
                        self.linger.extend();
                        self.take_ready(conn, event.events())?;
                    }
                    _ => {
                        self.is_touched = true;
                        self.read(conn)?;
                        self.flush(conn)?;
                    }
                },
            }
        }
        Ok(())
    }

    fn timeout(&self) -> EpollTimeout {
        let next = [
            self.subnet.poll_timeout(),
            self.programs.poll_timeout(),
            self.processes.traffic.poll_timeout(&self.subnet),
        ];
        let next = next.into_iter().flatten().min();
        let wait = next.map_or(LOOK, |at| Duration::from_nanos(at.nanos_since(now())));
        // A millisecond is the unit; a deadline must have passed when it is looked at.
        let millis = wait.min(LOOK).as_nanos().div_ceil(1_000_000) as u16;
        EpollTimeout::from(millis)
    }

    fn accept(&mut self) -> anyhow::Result<()> {
        let Self { admission, epoll, listener, conns, .. } = self;
        while let Some(socket) = admission.accept(epoll, listener, conns.len())? {
            let id = self.next_conn;
            self.next_conn += 1;
            epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, id))?;
            conns.insert(id, Conn::new(socket));
        }
        Ok(())
    }

    /// The length of the next message of a connection, which is in the buffer then; none if there
    /// is no message, or no connection any more.
    fn receive(&mut self, id: ConnId) -> Option<usize> {
        match self.conns.get_mut(&id)?.receive(&mut self.buffer) {
            Received::Message(len) => Some(len),
            Received::Nothing => None,
            Received::Gone => {
                self.close(id);
                None
            }
        }
    }

    fn read(&mut self, id: ConnId) -> anyhow::Result<()> {
        for _ in 0..MAX_MESSAGES {
            let Some(len) = self.receive(id) else { return Ok(()) };
            let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
            let message = self.buffer.get(..len).unwrap_or_default();
            let file = match &conn.role {
                Role::New => {
                    let request = Request::parse(message);
                    self.answer(id, request);
                    // What follows may be packets.
                    return Ok(());
                }
                Role::Open(file) => *file,
                // A program that watches or holds something has nothing to say.
                Role::Attached(_) | Role::Watch(_) | Role::Claim | Role::Member => return Ok(()),
            };
            let whole = conn.joiner.take(message);
            if let Some(mad) = whole.and_then(|bytes| UserMad::parse(&bytes)) {
                self.send(id, file, mad);
                self.settle(now())?;
            }
        }
        Ok(())
    }

    /// Tells programs that watch adapters what has changed there.
    fn show_changes(&mut self) -> anyhow::Result<()> {
        let mut stale = Vec::new();
        for (id, conn) in &self.conns {
            if let Role::Watch(watched) = &conn.role
                && !conn.is_full
                && watched.is_stale(&self.subnet, &self.reregistrations)
            {
                stale.push((*id, watched.node));
            }
        }
        for (id, node) in stale {
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            let (subnet, addresses) = (&self.subnet, &self.addresses);
            let adapter = describe(subnet, node, addresses, &self.issm, &self.reregistrations);
            match conn.socket.send(&Answer::Adapter(adapter).emit()) {
                Sent::Done => {
                    let watched = Watched::new(&self.subnet, &self.reregistrations, node);
                    conn.role = Role::Watch(watched);
                }
                Sent::Full => self.set_full(id, true)?,
                Sent::Gone => self.close(id),
            }
        }
        Ok(())
    }

    fn answer(&mut self, id: ConnId, request: Option<Request>) {
        let (said, role) = match request {
            Some(request) => {
                let sources = Sources {
                    subnet: &self.subnet,
                    programs: &mut self.programs,
                    processes: &mut self.processes,
                    members: &mut self.members,
                    addresses: &self.addresses,
                    issm: &self.issm,
                    reregistrations: &self.reregistrations,
                };
                answer(id, request, sources)
            }
            None => (Answer::Refused(Errno::EPROTO as u32), None),
        };
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.socket.send(&said.emit());
        match role {
            Some(role) => {
                if let Role::Open(file) = role {
                    self.files.insert(file, id);
                }
                conn.role = role;
            }
            None => self.close(id),
        }
    }

    /// A program sends a datagram. A request that cannot be sent comes back at once.
    fn send(&mut self, id: ConnId, file: FileId, mad: UserMad) {
        let failed = UserMad {
            data: mad.data[..mad.data.len().min(MadHeader::LEN)].to_vec(),
            ..mad.clone()
        };
        let why = match self.programs.send(now(), &mut self.subnet, file, mad) {
            Ok(()) => return,
            Err(SendError::TooMany) => Errno::ENOMEM,
            Err(_) => Errno::EINVAL,
        };
        if let Some(conn) = self.conns.get_mut(&id).filter(|_| failed.timeout_ms != 0) {
            conn.queue(&UserMad { status: why as u32, ..failed });
        }
    }

    /// A program has closed its connection, or has ended.
    fn close(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.remove(&id) {
            let _ = self.epoll.delete(&conn.socket);
            self.admission.resume(&self.epoll, &self.listener, LISTENER);
            match conn.role {
                Role::Open(file) => {
                    self.files.remove(&file);
                    self.programs.close(file);
                }
                Role::Attached(_) => self.processes.close(now(), id, &mut self.subnet),
                Role::Claim => self.processes.release(id),
                Role::Member => self.leaving.extend(self.members.remove(id).map(|it| (id, it))),
                Role::New | Role::Watch(_) => {}
            }
        }
    }

    /// Hands out what the subnet has for programs.
    fn settle(&mut self, now: Instant) -> anyhow::Result<()> {
        while let Some(output) = self.subnet.poll_output() {
            match output {
                Output::Received(at, packet) => {
                    self.programs.handle(now, &mut self.subnet, at, packet);
                }
                Output::Changed(at, PortChange::Reregister) => {
                    *self.reregistrations.entry(at).or_default() += 1;
                }
                Output::Changed(..) => {}
                Output::Leaves(at, packet, hops) => {
                    let hops = u8::try_from(hops).unwrap_or(u8::MAX);
                    self.say(at, &TrunkMessage::Datagram(at, hops, packet));
                }
                Output::Signal(at, signal) => self.say(at, &TrunkMessage::Signal(at, signal)),
            }
        }
        let mut ready = Vec::new();
        while let Some((file, mad)) = self.programs.poll_delivery() {
            let Some(id) = self.files.get(&file) else { continue };
            if let Some(conn) = self.conns.get_mut(id) {
                conn.queue(&mad);
                ready.push(*id);
            }
        }
        ready.dedup();
        ready.into_iter().try_for_each(|id| self.flush(id))
    }

    fn flush(&mut self, id: ConnId) -> anyhow::Result<()> {
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        let Some(whole) = conn.flush() else {
            self.close(id);
            return Ok(());
        };
        let is_full = conn.has_more();
        if let Role::Open(file) = conn.role {
            (0..whole).for_each(|_| self.programs.taken(file));
        }
        self.set_full(id, is_full)
    }

    /// Waits for room in a connection, or no longer.
    fn set_full(&mut self, id: ConnId, is_full: bool) -> anyhow::Result<()> {
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.is_full != is_full) else {
            return Ok(());
        };
        if !conn.is_socket() {
            // The process makes the socket readable when there is room.
            return Ok(());
        }
        conn.is_full = is_full;
        let room = if is_full { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
        let mut event = EpollEvent::new(EpollFlags::EPOLLIN | room, id);
        Ok(self.epoll.modify(&conn.socket, &mut event)?)
    }

    /// Subnet managers have begun to run.
    fn begin_managers(&mut self) -> anyhow::Result<()> {
        self.is_touched = true;
        for at in self.issm.opened() {
            if let Some(file) = self.issm.holder(at) {
                let data = HELD | (at.node as u64) << 8 | u64::from(at.port);
                self.epoll.add(file, EpollEvent::new(EpollFlags::empty(), data))?;
            }
            self.subnet.set_is_sm(now(), at, true);
        }
        self.settle(now())
    }

    /// A subnet manager has ended.
    fn end_manager(&mut self, at: PortRef) -> anyhow::Result<()> {
        if let Some(file) = self.issm.holder(at) {
            let _ = self.epoll.delete(file);
        }
        self.is_touched = true;
        self.issm.release(at);
        self.subnet.set_is_sm(now(), at, false);
        self.settle(now())
    }

    /// Ports of switches that wait for each other's credits.
    fn circle(&self) -> Vec<String> {
        let traffic = &self.processes.traffic;
        let circle = traffic.find_circle(now(), &self.subnet, STUCK.as_nanos() as u64);
        circle.into_iter().map(|at| report::port_name(&self.subnet, at)).collect()
    }

    /// Follows commands.
    fn obey(&mut self) {
        while let Ok(Order { command, reply, packets }) = self.orders.try_recv() {
            let answer = match command {
                Command::Status => {
                    let seconds = (monotonic_ns() - self.started_ns) as f64 / 1e9;
                    let sources = (&self.subnet, &self.addresses);
                    let users = (&self.programs, &self.processes);
                    let status = SubnetStatus::new(&self.name, seconds, sources, users);
                    let status = SubnetStatus { circle: self.circle(), ..status };
                    let status = self.with_parts(status);
                    Reply::Subnet(Box::new(status))
                }
                Command::Link { port, change } => self.change(&port, change),
                Command::Pcap { port } => match report::find_port(&self.subnet, &port) {
                    Some(at) => {
                        self.taps.begin(&mut self.subnet, at, packets);
                        Reply::Done
                    }
                    None => self.no_port(&port),
                },
                Command::Down => {
                    self.ended_by = Some(packets);
                    Reply::Done
                }
            };
            let _ = reply.send(answer);
        }
    }

    fn change(&mut self, name: &str, change: Change) -> Reply {
        let Some(at) = report::find_port(&self.subnet, name) else {
            return self.no_port(name);
        };
        let is_up = match change {
            Change::Up => true,
            Change::Down => false,
            Change::Rate(bps) => {
                self.processes.set_rate(now(), at, bps, &mut self.subnet);
                return Reply::Done;
            }
            Change::Loss(_) => {
                let why = "links of InfiniBand lose no packets: take them `down`, or give a `rate`";
                return Reply::Refused(why.into());
            }
        };
        self.is_touched = true;
        self.subnet.set_link(now(), at, is_up);
        Reply::Done
    }
}

fn port_of(held: u64) -> PortRef {
    PortRef { node: ((held & !HELD) >> 8) as usize, port: held as u8 }
}

fn now() -> Instant {
    Instant::from_nanos(monotonic_ns())
}

mod joined;
mod packets;
#[cfg(test)]
mod tests;
