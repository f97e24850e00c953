//! The process of a fabric: sockets and the clock around a [`Pump`].

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};
use std::time::Duration;

use anyhow::Context as _;
use feroce_fabric::{Passed, PortName, Rate, Time};
use feroce_link::port::{
    Answer, CREDIT_LEN, MAX_MESSAGE, PortListener, PortSocket, RECORD_LEN, Received, Record,
    Request, Sent,
};
use feroce_train::RxMeta;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

use super::admission::Admission;
use super::control::{self, Change, Command, Order, Reply};
use super::groups::ConnId;
use super::pace::{Pace, monotonic_ns};
use super::packet::{Body, Run};
use super::place::Place;
use super::pump::Pump;
use super::report::Status;
use crate::stop;

/// What an event of the epoll instance is about, beside connections.
const LISTENER: ConnId = 0;
const ORDERS: ConnId = 1;
const FIRST_CONN: ConnId = 2;

/// Events that one call reports; more wait for the next.
const MAX_READY: usize = 64;

/// Time of the fabric that one turn covers at most, so that the sockets get their turns.
const TURN_PS: u64 = 500_000_000;

/// Messages of a connection that one turn takes.
const MAX_MESSAGES: usize = 16;

/// The longest sleep: an interrupt of the user is noticed after it.
const LOOK_NS: u64 = 50_000_000;

/// How much later than its next event the fabric may wake, in order to handle several at once, if
/// the links of hosts have such delays that no packet arrives late for it.
const MAX_SLACK_NS: u64 = 20_000;

/// A connection of a program.
#[derive(Debug)]
struct Conn {
    socket: PortSocket,
    /// Its request was answered.
    is_open: bool,
    /// The socket has no room: the fabric waits until it has.
    is_full: bool,
}

/// A command that gets copies of packets.
#[derive(Debug)]
struct Tap {
    port: PortName,
    packets: SyncSender<Vec<u8>>,
}

/// Packets that a program sent, and when.
#[derive(Debug)]
struct Inbound {
    at_ns: u64,
    conn: ConnId,
    run: Rc<Run>,
}

#[derive(Debug)]
pub(super) struct Server {
    name: String,
    pump: Pump,
    pace: Pace,
    /// The fabric has got here.
    reached: Time,
    slack_ns: u64,
    epoll: Epoll,
    listener: PortListener,
    admission: Admission,
    wake: Arc<EventFd>,
    orders: Receiver<Order>,
    conns: BTreeMap<ConnId, Conn>,
    next_conn: ConnId,
    inbound: Vec<Inbound>,
    taps: Vec<Tap>,
    buffer: Vec<u8>,
    /// The command that ended it: its connection closes when the process has cleaned up.
    ended_by: Option<SyncSender<Vec<u8>>>,
}

impl Server {
    pub(super) fn new(place: &Place, pump: Pump) -> anyhow::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let path = place.port_socket();
        let listener = PortListener::bind(&path).with_context(|| path.display().to_string())?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        epoll.add(&*wake, EpollEvent::new(EpollFlags::EPOLLIN, ORDERS))?;
        let orders = control::listen(&place.control_socket(), &wake)?;
        // The kernel would round the end of a sleep to 50 us.
        let _ = nix::sys::prctl::set_timerslack(1);
        let delays_ps = (0..pump.hosts.len() as u32).filter_map(|host| pump.fabric.delay_ps(host));
        let slack_ns = (delays_ps.min().unwrap_or(0) / 4000).min(MAX_SLACK_NS);
        Ok(Self {
            name: place.name().to_owned(),
            pump,
            pace: Pace::new(monotonic_ns()),
            reached: Time::ZERO,
            slack_ns,
            epoll,
            listener,
            admission: Admission::default(),
            wake,
            orders,
            conns: BTreeMap::new(),
            next_conn: FIRST_CONN,
            inbound: Vec::new(),
            taps: Vec::new(),
            buffer: vec![0; MAX_MESSAGE],
            ended_by: None,
        })
    }

    /// Runs until a command or a signal ends it.
    pub(super) fn run(&mut self) -> anyhow::Result<()> {
        while self.ended_by.is_none() && !stop::requested() {
            self.take_in()?;
            self.obey();
            self.move_on();
            self.show_taps();
            self.hand_out()?;
            self.sleep();
        }
        Ok(())
    }

    /// Takes what programs have sent.
    fn take_in(&mut self) -> anyhow::Result<()> {
        let mut events = [EpollEvent::empty(); MAX_READY];
        let ready = self.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        for event in &events[..ready] {
            match event.data() {
                LISTENER => self.accept()?,
                ORDERS => {
                    let _ = self.wake.read();
                }
                conn => {
                    if event.events().contains(EpollFlags::EPOLLOUT) {
                        self.set_full(conn, false)?;
                    }
                    self.read(conn);
                }
            }
        }
        // Messages of different programs may have passed each other.
        self.inbound.sort_by_key(|inbound| inbound.at_ns);
        Ok(())
    }

    fn accept(&mut self) -> anyhow::Result<()> {
        let Self { admission, epoll, listener, conns, .. } = self;
        while let Some(socket) = admission.accept(epoll, listener, conns.len())? {
            let conn = self.next_conn;
            self.next_conn += 1;
            epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, conn))?;
            conns.insert(conn, Conn { socket, is_open: false, is_full: false });
        }
        Ok(())
    }

    fn read(&mut self, id: ConnId) {
        for _ in 0..MAX_MESSAGES {
            let Some(conn) = self.conns.get_mut(&id) else { return };
            let len = match conn.socket.receive(&mut self.buffer) {
                Received::Message(len) => len,
                Received::Nothing => return,
                Received::Gone => return self.close(id),
            };
            let message = self.buffer.get(..len).unwrap_or_default();
            if !conn.is_open {
                let answer = match Request::parse(message) {
                    Some(request) => self.pump.open(id, request),
                    None => Answer::Refused("the program has another version of feroce".into()),
                };
                conn.is_open = matches!(answer, Answer::Welcome(_));
                conn.socket.send(&answer.emit());
                if !conn.is_open {
                    return self.close(id);
                }
                continue;
            }
            let mut rest = message.get(CREDIT_LEN..).unwrap_or_default();
            while let Some(record) = Record::take(&mut rest) {
                let run = Rc::new(Run::new(&record));
                self.inbound.push(Inbound { at_ns: record.at_ns, conn: id, run });
            }
        }
    }

    /// A program has closed its connection, or has ended.
    fn close(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.remove(&id) {
            let _ = self.epoll.delete(&conn.socket);
            self.admission.resume(&self.epoll, &self.listener, LISTENER);
        }
        self.pump.close(id);
    }

    /// Follows commands.
    fn obey(&mut self) {
        while let Ok(Order { command, reply, packets }) = self.orders.try_recv() {
            let answer = match command {
                Command::Status => {
                    let status = Status::new(&self.name, &self.pump, &self.pace, monotonic_ns());
                    Reply::Status(Box::new(status))
                }
                Command::Link { port, change } => self.change(&port, change),
                Command::Pcap { port } => self.begin_tap(&port, packets),
                Command::Down => {
                    self.ended_by = Some(packets);
                    Reply::Done
                }
            };
            let _ = reply.send(answer);
        }
    }

    fn change(&mut self, port: &str, change: Change) -> Reply {
        let fabric = &mut self.pump.fabric;
        let topology = fabric.topology();
        let found = topology.find_port(port).and_then(|port| topology.link_of(port));
        let Some(link) = found else { return no_port(port) };
        match change {
            Change::Up => fabric.set_link(self.reached, link, true),
            Change::Down => fabric.set_link(self.reached, link, false),
            Change::Loss(loss) if (0.0..=1.0).contains(&loss) => fabric.set_loss(link, loss),
            Change::Loss(loss) => return Reply::Refused(format!("a loss of {loss}")),
            Change::Rate(bps) => match Rate::from_bps(bps) {
                Some(rate) => fabric.set_rate(link, rate),
                None => return Reply::Refused("a rate of 0: take the link down instead".into()),
            },
        }
        Reply::Done
    }

    fn begin_tap(&mut self, name: &str, packets: SyncSender<Vec<u8>>) -> Reply {
        let Some(port) = self.pump.fabric.topology().find_port(name) else { return no_port(name) };
        self.pump.fabric.watch(port.node, port.port, true);
        self.taps.push(Tap { port, packets });
        Reply::Done
    }

    /// Sends copies of packets to the commands that asked for them.
    fn show_taps(&mut self) {
        if self.taps.is_empty() {
            return;
        }
        for passed in self.pump.passed() {
            let port = PortName { node: passed.node, port: passed.port };
            let copy = copy(&passed, self.pace.system(passed.at));
            self.taps.retain(|tap| {
                // A reader that is too slow misses packets.
                let is_gone = tap.port == port
                    && matches!(
                        tap.packets.try_send(copy.clone()),
                        Err(TrySendError::Disconnected(_))
                    );
                !is_gone
            });
            if self.taps.iter().all(|tap| tap.port != port) {
                self.pump.fabric.watch(port.node, port.port, false);
            }
        }
    }

    /// Advances the fabric to the present, or by a turn if that is farther.
    fn move_on(&mut self) {
        let now_ns = monotonic_ns();
        let of_inbound = self.inbound.first().map(|inbound| self.pace.fabric(inbound.at_ns));
        let due = self.pump.fabric.next_at().into_iter().chain(of_inbound).min();
        if let Some(due) = due
            && self.pace.keep(due.max(self.reached), now_ns)
        {
            eprintln!(
                "feroce: the fabric cannot keep up with real time on this machine: it runs slower, \
                 and `feroce fabric status` says by how much; lower the rates of its links"
            );
        }
        let now = self.pace.fabric(now_ns).max(self.reached);
        let until = now.min(self.reached.plus_ps(TURN_PS));
        let mut later = Vec::new();
        for inbound in std::mem::take(&mut self.inbound) {
            let at = self.pace.fabric(inbound.at_ns).max(self.reached);
            if at > until {
                later.push(inbound);
                continue;
            }
            self.reached = at;
            self.pump.advance(at, &self.pace);
            self.pump.send(inbound.conn, at, inbound.at_ns, &inbound.run);
        }
        // Times of the system's clock that are ahead of it come from programs that lie.
        later.iter_mut().for_each(|inbound| inbound.at_ns = inbound.at_ns.min(now_ns));
        self.inbound = later;
        self.pump.advance(until, &self.pace);
        self.reached = match self.pump.fabric.next_at() {
            // Nothing moves: nothing is missed.
            None if self.inbound.is_empty() => now,
            _ => until,
        };
        self.pump.settle();
    }

    /// Sends programs what has arrived for them.
    fn hand_out(&mut self) -> anyhow::Result<()> {
        let mut message = Vec::with_capacity(MAX_MESSAGE);
        for id in self.pump.ready() {
            while let Some(conn) = self.conns.get(&id).filter(|conn| !conn.is_full) {
                let runs = self.pump.write(id, &mut message);
                match conn.socket.send(&message) {
                    Sent::Done if self.pump.sent(id, runs) => {}
                    Sent::Done => break,
                    Sent::Full => self.set_full(id, true)?,
                    Sent::Gone => self.close(id),
                }
            }
        }
        Ok(())
    }

    /// Waits for room in a connection, or no longer.
    fn set_full(&mut self, id: ConnId, is_full: bool) -> anyhow::Result<()> {
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.is_full != is_full) else {
            return Ok(());
        };
        conn.is_full = is_full;
        let room = if is_full { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
        let mut event = EpollEvent::new(EpollFlags::EPOLLIN | room, id);
        Ok(self.epoll.modify(&conn.socket, &mut event)?)
    }

    /// Sleeps until there is something to do.
    fn sleep(&mut self) {
        let now_ns = monotonic_ns();
        let next_ns = match self.pump.fabric.next_at() {
            _ if !self.inbound.is_empty() => now_ns,
            None => now_ns + LOOK_NS,
            Some(at) => self.pace.system(at) + self.slack_ns,
        };
        let wait_ns = next_ns.saturating_sub(now_ns).min(LOOK_NS);
        if wait_ns == 0 {
            return;
        }
        let timeout = TimeSpec::from(Duration::from_nanos(wait_ns));
        let mut fds = [PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN)];
        // A signal that interrupts the sleep is looked at in the next turn.
        let _ = ppoll(&mut fds, Some(timeout), None);
    }
}

fn no_port(name: &str) -> Reply {
    Reply::Refused(format!("no port {name}; `feroce fabric status` names them"))
}

/// A copy of a packet as `feroce fabric pcap` reads it: whether it left the port, and a record.
fn copy(passed: &Passed<Body>, at_ns: u64) -> Vec<u8> {
    let (packet, bytes) = (&passed.packet, passed.packet.body.bytes());
    let meta = RxMeta { ecn: packet.ecn, ..packet.body.run.meta };
    let mut copy = vec![0; 1 + RECORD_LEN];
    copy[0] = u8::from(passed.is_sent);
    Record { at_ns, meta, stride: bytes.len(), bytes }.emit_head(&mut copy[1..]);
    copy.extend_from_slice(bytes);
    copy
}
