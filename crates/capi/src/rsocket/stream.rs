//! Stream sockets: from an address to a connection, and to its end.

use core::ffi::c_int;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use feroce::cm::{CmId, ConnParam, Event, EventChannel, EventKind, PortSpace};

use super::bell::{self, Bell, Waitable, Waiters, Watch};
use super::endpoint::{End, Endpoint};
use super::iomap::Mappings;
use super::protocol::{Hello, Message};
use super::service;
use super::settings::Settings;
use crate::errno::Errno;
use crate::rdmacm::devices;

/// How long a socket that is closed waits until all that was sent has arrived.
const LINGER: Duration = Duration::from_secs(10);

/// Retries without end: a peer that is slow to post receives is waited for.
const RETRIES: u8 = 7;

/// How far a socket has come.
#[derive(Debug)]
pub(crate) enum Phase {
    /// It has at most an address.
    Fresh,
    /// Connections that nobody has accepted yet, and how many of them there may be.
    Listening(VecDeque<Arc<Stream>>, usize),
    /// The peer has not answered, or has not said that it is ready.
    Opening(Box<Endpoint>),
    /// It was connected, and may still be.
    Open(Box<Endpoint>),
    /// It could not be connected.
    Failed,
}

/// What the lock of a socket protects. The id goes first, so that the peer hears of the end before
/// the queue pair is gone.
#[derive(Debug)]
pub(crate) struct Core {
    pub(super) id: CmId,
    pub(super) phase: Phase,
    pub(super) mappings: Mappings,
    pub(super) settings: Settings,
    /// What `SO_ERROR` answers.
    pub(super) error: c_int,
}

impl Core {
    /// The queue pair, if it has one.
    pub(super) fn endpoint(&mut self) -> Option<&mut Endpoint> {
        match &mut self.phase {
            Phase::Opening(endpoint) | Phase::Open(endpoint) => Some(endpoint),
            _ => None,
        }
    }

    /// The queue pair of a connection; none while it is being opened.
    pub(super) fn connection(&mut self) -> Result<Option<&mut Endpoint>, Errno> {
        match &mut self.phase {
            Phase::Open(endpoint) => Ok(Some(endpoint)),
            Phase::Opening(_) => Ok(None),
            _ => Err(Errno(libc::ENOTCONN)),
        }
    }

    fn progress(&mut self, channel: &EventChannel) -> bool {
        let mut any = false;
        // The events of a listener are for the service.
        if !matches!(self.phase, Phase::Listening(..)) {
            while let Some(event) = channel.try_event() {
                any = true;
                self.on_event(&event);
            }
        }
        let Some(endpoint) = self.endpoint() else { return any };
        any |= endpoint.progress();
        if let End::Broken(errno) = endpoint.end
            && self.error == 0
        {
            self.error = errno;
        }
        any
    }

    fn on_event(&mut self, event: &Event) {
        match event.kind {
            EventKind::Established => self.on_established(event),
            EventKind::Rejected => self.fail(libc::ECONNREFUSED),
            EventKind::Unreachable => self.fail(libc::ETIMEDOUT),
            EventKind::ConnectError => self.fail(event.status.saturating_abs()),
            EventKind::Disconnected => match &mut self.phase {
                Phase::Open(endpoint) => endpoint.disconnected(),
                _ => self.fail(libc::ECONNRESET),
            },
            EventKind::DeviceRemoval => match &mut self.phase {
                Phase::Open(endpoint) => endpoint.break_off(libc::ENETDOWN),
                _ => self.fail(libc::ENETDOWN),
            },
            _ => {}
        }
    }

    fn on_established(&mut self, event: &Event) {
        match std::mem::replace(&mut self.phase, Phase::Failed) {
            Phase::Opening(mut endpoint) => {
                if !endpoint.has_met() {
                    let Ok(hello) = Hello::parse(&event.private_data) else {
                        self.phase = Phase::Opening(endpoint);
                        // It is over anyway if this cannot be done.
                        let _ = self.id.disconnect();
                        return self.fail(libc::EPROTO);
                    };
                    endpoint.meet(hello);
                }
                endpoint.open();
                self.phase = Phase::Open(endpoint);
            }
            other => self.phase = other,
        }
    }

    /// There will be no connection.
    fn fail(&mut self, errno: c_int) {
        if let Phase::Fresh | Phase::Opening(_) = self.phase {
            self.error = errno;
            self.id.release_qp();
            self.phase = Phase::Failed;
        }
    }

    /// Asks a peer for a connection.
    fn ask(&mut self, channel: &EventChannel, peer: SocketAddr) -> Result<(), Errno> {
        self.id.resolve_addr(None, peer, 0)?;
        answer(channel, EventKind::AddrResolved)?;
        self.id.resolve_route(0)?;
        answer(channel, EventKind::RouteResolved)?;
        let endpoint = Endpoint::new(&self.id, &self.settings)?;
        let param = ConnParam {
            private_data: endpoint.hello().emit().to_vec(),
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: true,
            retry_count: RETRIES,
            rnr_retry_count: RETRIES,
            ..ConnParam::default()
        };
        self.phase = Phase::Opening(Box::new(endpoint));
        Ok(self.id.connect(&param)?)
    }

    /// What `poll` says of it.
    fn events(&mut self, wanted: libc::c_short) -> libc::c_short {
        let found = match &mut self.phase {
            Phase::Fresh | Phase::Opening(_) => 0,
            Phase::Listening(ready, _) if ready.is_empty() => 0,
            Phase::Listening(..) => libc::POLLIN,
            Phase::Failed => return (libc::POLLIN | libc::POLLOUT) & wanted | libc::POLLERR,
            Phase::Open(endpoint) => {
                let input = if endpoint.is_ready_to_read() { libc::POLLIN } else { 0 };
                let can_send = endpoint.sending.is_ready() || !endpoint.is_open();
                let output = if can_send { libc::POLLOUT } else { 0 };
                let end = match endpoint.end {
                    End::Open => 0,
                    // Programs that see this read no more.
                    End::Disconnected if endpoint.receiving.has_data() => 0,
                    End::Disconnected => libc::POLLHUP,
                    End::Broken(_) => libc::POLLERR,
                };
                return (input | output) & wanted | end;
            }
        };
        found & wanted
    }
}

/// A stream socket.
#[derive(Debug)]
pub(crate) struct Stream {
    core: Mutex<Core>,
    channel: EventChannel,
    /// What the program knows it by, once it has it.
    number: OnceLock<OwnedFd>,
    waiters: Waiters,
}

impl Stream {
    /// A new socket.
    pub(crate) fn new(settings: Settings) -> Result<Self, Errno> {
        let channel = devices::manager().event_channel()?;
        let id = channel.create_id(PortSpace::Tcp)?;
        Ok(Self::with(channel, id, Phase::Fresh, settings))
    }

    fn with(channel: EventChannel, id: CmId, phase: Phase, settings: Settings) -> Self {
        let core = Core { id, phase, mappings: Mappings::default(), settings, error: 0 };
        let (core, number, waiters) = (Mutex::new(core), OnceLock::new(), Waiters::default());
        Self { core, channel, number, waiters }
    }

    /// Gives it a number for the program, unless it has one. It is made when the program gets it
    /// and not before: librspreload, which opens a descriptor of its own first, counts on a greater
    /// one.
    pub(crate) fn number(&self) -> Result<c_int, Errno> {
        if self.number.get().is_none() {
            let copy = self.channel.as_fd().try_clone_to_owned();
            let copy = copy.map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EMFILE)))?;
            // Whoever was first, one is there.
            let _ = self.number.set(copy);
        }
        self.number.get().map(|fd| fd.as_raw_fd()).ok_or(Errno(libc::EMFILE))
    }

    /// Readable when its connection manager has news.
    pub(super) fn fd(&self) -> c_int {
        self.channel.as_raw_fd()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what has happened, and does something with the socket as it is now.
    pub(crate) fn look<R>(&self, f: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = self.lock();
        let any = core.progress(&self.channel);
        let result = f(&mut core);
        drop(core);
        if any {
            self.waiters.tell_others();
        }
        result
    }

    /// Looks until `f` has a result; only once, if it does not block.
    pub(crate) fn until<R>(
        &self,
        blocks: bool,
        f: impl FnMut(&mut Core) -> Option<Result<R, Errno>>,
    ) -> Result<R, Errno> {
        self.until_time(blocks, None, f)
    }

    fn until_time<R>(
        &self,
        blocks: bool,
        deadline: Option<Instant>,
        mut f: impl FnMut(&mut Core) -> Option<Result<R, Errno>>,
    ) -> Result<R, Errno> {
        bell::until(self, blocks, deadline, || self.look(&mut f))
    }

    /// What `poll` says of it.
    pub(crate) fn events(&self, wanted: libc::c_short) -> libc::c_short {
        self.look(|core| core.events(wanted))
    }

    pub(crate) fn bind(&self, addr: SocketAddr) -> Result<(), Errno> {
        self.look(|core| Ok(core.id.bind(addr)?))
    }

    pub(crate) fn listen(self: &Arc<Self>, backlog: u32) -> Result<(), Errno> {
        let mut core = self.lock();
        match core.phase {
            Phase::Listening(..) => return Ok(()),
            Phase::Fresh => {}
            _ => return Err(Errno::INVALID),
        }
        core.id.listen(backlog)?;
        core.phase = Phase::Listening(VecDeque::new(), backlog.max(1) as usize);
        drop(core);
        service::serve_listener(self)
    }

    /// Takes a connection that the service has accepted.
    pub(crate) fn accept(&self) -> Result<Arc<Self>, Errno> {
        let blocks = !self.lock().settings.is_nonblocking();
        let (accepted, was_full) = self.until(blocks, |core| match &mut core.phase {
            Phase::Listening(ready, most) => {
                let was_full = ready.len() >= *most;
                Some(Ok((ready.pop_front()?, was_full)))
            }
            _ => Some(Err(Errno::INVALID)),
        })?;
        if was_full {
            service::wake();
        }
        Ok(accepted)
    }

    /// Accepts those who ask, as long as there is room. Says whether there is.
    pub(super) fn welcome(&self) -> bool {
        let mut core = self.lock();
        let settings = core.settings.clone();
        let Phase::Listening(ready, most) = &mut core.phase else { return false };
        let before = ready.len();
        while ready.len() < *most {
            let Some(event) = self.channel.try_event() else { break };
            if event.kind != EventKind::ConnectRequest {
                continue;
            }
            let id = event.id.clone();
            match Self::accepted(&event, settings.clone()) {
                Ok(stream) => ready.push_back(Arc::new(stream)),
                // It may be gone already.
                Err(_) => drop(id.reject(&[])),
            }
        }
        let (is_new, has_room) = (ready.len() > before, ready.len() < *most);
        drop(core);
        if is_new {
            self.waiters.tell_others();
        }
        has_room
    }

    /// The socket for somebody who asks.
    fn accepted(event: &Event, settings: Settings) -> Result<Self, Errno> {
        let id = event.id.clone();
        let hello = Hello::parse(&event.private_data).map_err(|_| Errno(libc::EPROTO))?;
        let channel = devices::manager().event_channel()?;
        id.migrate(&channel)?;
        let mut endpoint = Endpoint::new(&id, &settings)?;
        endpoint.meet(hello);
        let private_data = endpoint.hello().emit().to_vec();
        id.accept(&ConnParam { private_data, ..id.offered().unwrap_or_default() })?;
        Ok(Self::with(channel, id, Phase::Opening(Box::new(endpoint)), settings))
    }

    pub(crate) fn connect(&self, peer: SocketAddr) -> Result<(), Errno> {
        let mut core = self.lock();
        match core.phase {
            Phase::Fresh => {
                if let Err(errno) = core.ask(&self.channel, unmapped(peer)) {
                    core.fail(errno.0);
                    return Err(errno);
                }
            }
            // Somebody asks how far it has come.
            Phase::Opening(_) => {}
            Phase::Open(_) => return Ok(()),
            Phase::Listening(..) => return Err(Errno(libc::EOPNOTSUPP)),
            Phase::Failed => return Err(Errno(libc::ENOTCONN)),
        }
        let blocks = !core.settings.is_nonblocking();
        drop(core);
        let connected = self.until(blocks, |core| match core.phase {
            Phase::Open(_) => Some(Ok(())),
            Phase::Opening(_) => None,
            _ => Some(Err(Errno(core.error))),
        });
        connected.map_err(|errno| match errno.0 {
            libc::EAGAIN => Errno(libc::EINPROGRESS),
            errno => Errno(errno),
        })
    }

    /// Ends one direction or both, and waits until all that was sent has arrived.
    pub(crate) fn shut_down(&self, how: c_int) -> Result<(), Errno> {
        let (reads, writes) = match how {
            libc::SHUT_RD => (false, true),
            libc::SHUT_WR => (true, false),
            libc::SHUT_RDWR => (false, false),
            _ => return Err(Errno::INVALID),
        };
        let goodbye = self.look(|core| -> Result<Option<Message>, Errno> {
            let endpoint = core.connection()?.ok_or(Errno(libc::ENOTCONN))?;
            let was_writable = endpoint.is_writable;
            endpoint.is_readable &= reads;
            endpoint.is_writable &= writes;
            Ok(match (endpoint.is_readable, endpoint.is_writable) {
                _ if !endpoint.is_open() => None,
                (false, false) => Some(Message::Disconnect),
                (true, false) if was_writable => Some(Message::Shutdown),
                _ => None,
            })
        })?;
        let Some(goodbye) = goodbye else { return Ok(()) };
        let deadline = Some(bell::now() + LINGER);
        self.until_time(true, deadline, |core| {
            let endpoint = core.endpoint()?;
            let is_told = !endpoint.is_open() || endpoint.say_goodbye(goodbye);
            is_told.then_some(Ok(()))
        })?;
        self.until_time(true, deadline, |core| {
            let endpoint = core.endpoint()?;
            (!endpoint.is_open() || endpoint.sending.is_done()).then_some(Ok(()))
        })?;
        self.waiters.tell_others();
        Ok(())
    }

    /// The program is done with it.
    pub(crate) fn close(&self) {
        // What cannot be told to the peer, its connection manager will say.
        let _ = self.shut_down(libc::SHUT_RDWR);
        let mut core = self.lock();
        core.fail(libc::EBADF);
        if let Phase::Listening(..) = core.phase {
            core.phase = Phase::Failed;
        }
        if let Some(endpoint) = core.endpoint() {
            endpoint.break_off(libc::EBADF);
        }
        // Whoever still sleeps at it keeps it from going away by itself.
        let _ = core.id.disconnect();
        drop(core);
        self.waiters.tell_others();
    }
}

impl Waitable for Stream {
    fn watch(&self, bell: &Arc<Bell>) -> Watch {
        bell.silence();
        self.waiters.add(bell);
        let mut core = self.lock();
        let is_listening = matches!(core.phase, Phase::Listening(..));
        let completions = core.endpoint().map(|endpoint| {
            endpoint.arm();
            endpoint.channel().clone()
        });
        Watch::at(if is_listening { -1 } else { self.fd() }, completions.into_iter())
    }

    fn unwatch(&self, bell: &Arc<Bell>) {
        self.waiters.remove(bell);
    }

    fn probe(&self) {
        if let Ok(Some(endpoint)) = self.lock().connection() {
            endpoint.probe();
        }
    }
}

/// Takes the answer to a question that is answered at once.
fn answer(channel: &EventChannel, kind: EventKind) -> Result<(), Errno> {
    match channel.try_event() {
        Some(event) if event.kind == kind => Ok(()),
        Some(Event { status, .. }) if status != 0 => Err(Errno(status.saturating_abs())),
        _ => Err(Errno(libc::EHOSTUNREACH)),
    }
}

/// An address of IPv4, also if it is written as one of IPv6.
fn unmapped(addr: SocketAddr) -> SocketAddr {
    match addr.ip() {
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => (ip, addr.port()).into(),
            None => addr,
        },
        IpAddr::V4(_) => addr,
    }
}
