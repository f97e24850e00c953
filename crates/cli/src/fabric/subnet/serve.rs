//! The process of an InfiniBand fabric: sockets and the clock around a subnet and its programs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

use anyhow::Context as _;
use feroce_link::port::{MAX_MESSAGE, PortListener, Received};
use feroce_subnet::{FileId, Net, Output, PortRef, Programs, SendError, Subnet, UserMad};
use feroce_train::Instant;
use feroce_umad::{Answer, Request};
use feroce_wire::mad::MadHeader;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::answer::answer;
use super::conn::Conn;
use super::issm::IsSm;
use super::manager::Manager;
use super::report::{self, SubnetStatus};
use crate::fabric::control::{self, Change, Command, Order, Reply};
use crate::fabric::pace::monotonic_ns;
use crate::fabric::place::Place;
use crate::stop;

/// What an event of the epoll instance is about, beside connections.
const LISTENER: u64 = 0;
const ORDERS: u64 = 1;
const OPENED: u64 = 2;
const FIRST_CONN: u64 = 3;
/// Files of subnet managers: this bit, the node, and the port in the lowest byte.
const HELD: u64 = 1 << 63;

/// Events that one call reports; more wait for the next.
const MAX_READY: usize = 64;
/// Messages of a connection that one turn takes.
const MAX_MESSAGES: usize = 64;
/// The longest sleep: an interrupt of the user is noticed after it.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(in super::super) struct Server {
    name: String,
    subnet: Subnet,
    programs: Programs,
    started_ns: u64,
    epoll: Epoll,
    listener: PortListener,
    wake: Arc<EventFd>,
    orders: Receiver<Order>,
    issm: IsSm,
    conns: BTreeMap<u64, Conn>,
    next_conn: u64,
    files: BTreeMap<FileId, u64>,
    buffer: Vec<u8>,
    /// The command that ended it: its connection closes when the process has cleaned up.
    ended_by: Option<SyncSender<Vec<u8>>>,
}

impl Server {
    pub(in super::super) fn new(place: &Place, net: &Net) -> anyhow::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let readable = |data| EpollEvent::new(EpollFlags::EPOLLIN, data);
        let subnet = Subnet::new(net);
        let issm = IsSm::new(&place.issm(), &subnet)?;
        epoll.add(&issm, readable(OPENED))?;
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        epoll.add(&*wake, readable(ORDERS))?;
        let path = place.subnet_socket();
        let listener = PortListener::bind(&path).with_context(|| path.display().to_string())?;
        epoll.add(&listener, readable(LISTENER))?;
        let orders = control::listen(&place.control_socket(), &wake)?;
        Ok(Self {
            name: place.name().to_owned(),
            subnet,
            programs: Programs::new(),
            started_ns: monotonic_ns(),
            epoll,
            listener,
            wake,
            orders,
            issm,
            conns: BTreeMap::new(),
            next_conn: FIRST_CONN,
            files: BTreeMap::new(),
            buffer: vec![0; MAX_MESSAGE],
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
        self.obey();
        let now = now();
        if self.subnet.poll_timeout().is_some_and(|at| at <= now) {
            self.subnet.handle_timeout(now);
        }
        if self.programs.poll_timeout().is_some_and(|at| at <= now) {
            self.programs.handle_timeout(now, &mut self.subnet);
        }
        self.settle(now)
    }

    /// Waits for something to do, and takes what programs have sent.
    fn wait(&mut self) -> anyhow::Result<()> {
        let mut events = [EpollEvent::empty(); MAX_READY];
        let ready = match self.epoll.wait(&mut events, self.timeout()) {
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
                conn => {
                    self.read(conn)?;
                    self.flush(conn)?;
                }
            }
        }
        Ok(())
    }

    fn timeout(&self) -> EpollTimeout {
        let next = self.subnet.poll_timeout().into_iter().chain(self.programs.poll_timeout()).min();
        let wait = next.map_or(LOOK, |at| Duration::from_nanos(at.nanos_since(now())));
        // A millisecond is the unit; a deadline must have passed when it is looked at.
        let millis = wait.min(LOOK).as_nanos().div_ceil(1_000_000) as u16;
        EpollTimeout::from(millis)
    }

    fn accept(&mut self) -> anyhow::Result<()> {
        while let Ok(Some(socket)) = self.listener.accept() {
            let id = self.next_conn;
            self.next_conn += 1;
            self.epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, id))?;
            self.conns.insert(id, Conn::new(socket));
        }
        Ok(())
    }

    fn read(&mut self, id: u64) -> anyhow::Result<()> {
        for _ in 0..MAX_MESSAGES {
            let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
            let len = match conn.socket.receive(&mut self.buffer) {
                Received::Message(len) => len,
                Received::Nothing => return Ok(()),
                Received::Gone => {
                    self.close(id);
                    return Ok(());
                }
            };
            let message = self.buffer.get(..len).unwrap_or_default();
            let Some(file) = conn.file else {
                let request = Request::parse(message);
                self.answer(id, request);
                continue;
            };
            let whole = conn.joiner.take(message);
            if let Some(mad) = whole.and_then(|bytes| UserMad::parse(&bytes)) {
                self.send(id, file, mad);
                self.settle(now())?;
            }
        }
        Ok(())
    }

    fn answer(&mut self, id: u64, request: Option<Request>) {
        let (said, file) = match request {
            Some(request) => answer(request, &self.subnet, &mut self.programs, &self.issm),
            None => (Answer::Refused(Errno::EPROTO as u32), None),
        };
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.socket.send(&said.emit());
        match file {
            Some(file) => {
                conn.file = Some(file);
                self.files.insert(file, id);
            }
            None => self.close(id),
        }
    }

    /// A program sends a datagram. A request that cannot be sent comes back at once.
    fn send(&mut self, id: u64, file: FileId, mad: UserMad) {
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
    fn close(&mut self, id: u64) {
        if let Some(conn) = self.conns.remove(&id) {
            let _ = self.epoll.delete(&conn.socket);
            if let Some(file) = conn.file {
                self.files.remove(&file);
                self.programs.close(file);
            }
        }
    }

    /// Hands out what the subnet has for programs.
    fn settle(&mut self, now: Instant) -> anyhow::Result<()> {
        while let Some(output) = self.subnet.poll_output() {
            if let Output::Received(at, packet) = output {
                self.programs.handle(now, &mut self.subnet, at, packet);
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

    fn flush(&mut self, id: u64) -> anyhow::Result<()> {
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        let Some(whole) = conn.flush() else {
            self.close(id);
            return Ok(());
        };
        if let Some(file) = conn.file {
            (0..whole).for_each(|_| self.programs.taken(file));
        }
        if conn.is_full != conn.has_more() {
            conn.is_full = conn.has_more();
            let room = if conn.is_full { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
            let mut event = EpollEvent::new(EpollFlags::EPOLLIN | room, id);
            self.epoll.modify(&conn.socket, &mut event)?;
        }
        Ok(())
    }

    /// Subnet managers have begun to run.
    fn begin_managers(&mut self) -> anyhow::Result<()> {
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
        self.issm.release(at);
        self.subnet.set_is_sm(now(), at, false);
        self.settle(now())
    }

    /// Follows commands.
    fn obey(&mut self) {
        while let Ok(Order { command, reply, packets }) = self.orders.try_recv() {
            let answer = match command {
                Command::Status => {
                    let seconds = (monotonic_ns() - self.started_ns) as f64 / 1e9;
                    let (subnet, programs) = (&self.subnet, &self.programs);
                    let status = SubnetStatus::new(&self.name, seconds, subnet, programs);
                    Reply::Subnet(Box::new(status))
                }
                Command::Link { port, change } => self.change(&port, change),
                Command::Pcap { .. } => {
                    Reply::Refused("captures are not possible in an InfiniBand fabric yet".into())
                }
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
            let why = format!("no link at a port {name}; `feroce fabric status` names them");
            return Reply::Refused(why);
        };
        let is_up = match change {
            Change::Up => true,
            Change::Down => false,
            Change::Loss(_) | Change::Rate(_) => {
                let why = "links of InfiniBand can be taken `down` and `up`, and nothing else yet";
                return Reply::Refused(why.into());
            }
        };
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
