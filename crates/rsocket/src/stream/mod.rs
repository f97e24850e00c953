//! Stream sockets: from an address to a connection, and to its end.

mod iomap;
mod option;
mod transfer;

use core::ffi::c_int;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use feroce::Errno;
use feroce::cm::{CmId, ConnParam, Event, EventChannel, EventKind, IbAddr, PortSpace};

use crate::ManagerFn;
use crate::endpoint::{End, Endpoint};
use crate::mappings::Mappings;
use crate::protocol::{Hello, Message};
use crate::service::{self, KeptAlive, Served};
use crate::settings::Settings;
use crate::wakeup::{self, PollSet, Waitable, Waiters, Wakeup};

/// How long a closed socket waits until the peer has acknowledged all data.
const LINGER: Duration = Duration::from_secs(10);

/// The value that stands for retries without limit: a peer may be slow to post receives.
const RETRIES: u8 = 7;

/// The state of a socket.
#[derive(Debug)]
enum Phase {
    /// The socket is new, or bound to an address.
    Fresh,
    /// The service has accepted these connections, the program has not; and how many there may be.
    Listening(VecDeque<Arc<Stream>>, usize),
    /// The peer has not answered, or has not confirmed that it is ready.
    Opening(Box<Endpoint>),
    /// The connection was established; [`Endpoint::end`] tells whether it has ended.
    Open(Box<Endpoint>),
    /// The connection could not be established.
    Failed,
}

/// What the lock of a socket protects. `id` is dropped before the queue pair in `phase`, so that
/// the connection manager sends its disconnect request while the queue pair still exists.
#[derive(Debug)]
pub(crate) struct Core {
    id: CmId,
    phase: Phase,
    mappings: Mappings,
    settings: Settings,
    /// The value of `SO_ERROR`.
    error: c_int,
}

impl Core {
    /// The queue pair, if the socket has one.
    fn endpoint(&mut self) -> Option<&mut Endpoint> {
        match &mut self.phase {
            Phase::Opening(endpoint) | Phase::Open(endpoint) => Some(endpoint),
            _ => None,
        }
    }

    /// The queue pair of an established connection; none before that.
    fn connection(&mut self) -> Result<Option<&mut Endpoint>, Errno> {
        match &mut self.phase {
            Phase::Open(endpoint) => Ok(Some(endpoint)),
            Phase::Opening(_) => Ok(None),
            _ => Err(Errno(libc::ENOTCONN)),
        }
    }

    fn progress(&mut self, channel: &EventChannel) -> bool {
        let mut any = false;
        // The service takes the events of a listener.
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
                if !endpoint.has_hello() {
                    let Ok(hello) = Hello::parse(&event.private_data) else {
                        self.phase = Phase::Opening(endpoint);
                        // If this fails, the connection has ended already.
                        let _ = self.id.disconnect();
                        return self.fail(libc::EPROTO);
                    };
                    endpoint.on_hello(hello);
                }
                endpoint.open();
                self.phase = Phase::Open(endpoint);
            }
            other => self.phase = other,
        }
    }

    /// Gives up a connection that is not established.
    fn fail(&mut self, errno: c_int) {
        if let Phase::Fresh | Phase::Opening(_) = self.phase {
            self.error = errno;
            self.id.release_qp();
            self.phase = Phase::Failed;
        }
    }

    /// Sends a connection request to a peer.
    fn request(&mut self, channel: &EventChannel, peer: SocketAddr) -> Result<(), Errno> {
        match self.settings.is_native {
            true => self.id.resolve_ib(None, native(peer))?,
            false => self.id.resolve_addr(None, unmapped(peer), 0)?,
        }
        expect_event(channel, EventKind::AddrResolved)?;
        self.id.resolve_route(ROUTE_MS.into())?;
        expect_event(channel, EventKind::RouteResolved)?;
        let endpoint = Endpoint::new(&self.id, &self.settings)?;
        let mut private_data = self.settings.hello_offset();
        private_data.extend(endpoint.hello().emit());
        let param = ConnParam {
            private_data,
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

    /// The events that `poll` reports.
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
                    // A program that sees POLLHUP does not read the rest.
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
    /// The descriptor that the program uses, once it has one.
    number: OnceLock<OwnedFd>,
    waiters: Waiters,
    manager: ManagerFn,
}

impl Stream {
    /// A new socket.
    pub(crate) fn new(settings: Settings, manager: ManagerFn) -> Result<Self, Errno> {
        let channel = manager().event_channel()?;
        let id = channel.create_id(PortSpace::Tcp)?;
        let core =
            Core { id, phase: Phase::Fresh, mappings: Mappings::default(), settings, error: 0 };
        Ok(Self::with(core, channel, manager))
    }

    fn with(core: Core, channel: EventChannel, manager: ManagerFn) -> Self {
        let (core, number, waiters) = (Mutex::new(core), OnceLock::new(), Waiters::default());
        Self { core, channel, number, waiters, manager }
    }

    /// The descriptor that the program uses. The first call makes it: librspreload opens a
    /// descriptor of its own before it takes this one, and relies on this one being greater.
    pub(crate) fn number(&self) -> Result<c_int, Errno> {
        if self.number.get().is_none() {
            let copy = self.channel.as_fd().try_clone_to_owned();
            // It fails if another thread has set one meanwhile, which serves as well.
            let _ = self.number.set(copy?);
        }
        self.number.get().map(|fd| fd.as_raw_fd()).ok_or(Errno(libc::EMFILE))
    }

    /// Readable when the connection manager has an event for the socket.
    fn fd(&self) -> c_int {
        self.channel.as_raw_fd()
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes events and completions, and calls `f` with the state after them.
    fn update<R>(&self, f: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = self.lock();
        let any = core.progress(&self.channel);
        let result = f(&mut core);
        drop(core);
        if any {
            self.waiters.notify_others();
        }
        result
    }

    /// Updates the socket until `f` has a result; only once, without `blocks`.
    fn until<R>(
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
        wakeup::wait_until(self, blocks, deadline, || self.update(&mut f))
    }

    /// The events that `poll` reports.
    pub(crate) fn events(&self, wanted: libc::c_short) -> libc::c_short {
        self.update(|core| core.events(wanted))
    }

    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        self.lock().id.peer_addr()
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.lock().id.local_addr()
    }

    /// Reads or changes the settings.
    pub(crate) fn settings<R>(&self, f: impl FnOnce(&mut Settings) -> R) -> R {
        f(&mut self.lock().settings)
    }

    pub(crate) fn bind(&self, addr: SocketAddr) -> Result<(), Errno> {
        self.update(|core| match core.settings.is_native {
            true => Ok(core.id.bind_ib(native(addr))?),
            false => Ok(core.id.bind(addr)?),
        })
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
        service::serve(Arc::<Self>::downgrade(self))
    }

    /// Returns a connection that the service has accepted.
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

    /// Accepts connection requests until the backlog is full; returns whether it has room left.
    fn accept_requests(&self) -> bool {
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
            match self.accepted(&event, settings.clone()) {
                Ok(stream) => ready.push_back(Arc::new(stream)),
                // This fails if the peer has withdrawn its request.
                Err(_) => drop(id.reject(&[])),
            }
        }
        let (is_new, has_room) = (ready.len() > before, ready.len() < *most);
        drop(core);
        if is_new {
            self.waiters.notify_others();
        }
        has_room
    }

    /// The socket of a new connection to the peer that sent this request.
    fn accepted(&self, event: &Event, settings: Settings) -> Result<Self, Errno> {
        let id = event.id.clone();
        let offset = settings.hello_offset().len();
        let hello = event.private_data.get(offset..).map(Hello::parse);
        let hello = hello.and_then(Result::ok).ok_or(Errno(libc::EPROTO))?;
        let channel = (self.manager)().event_channel()?;
        id.migrate(&channel)?;
        let mut endpoint = Endpoint::new(&id, &settings)?;
        endpoint.on_hello(hello);
        let private_data = endpoint.hello().emit().to_vec();
        id.accept(&ConnParam { private_data, ..id.offered().unwrap_or_default() })?;
        let phase = Phase::Opening(Box::new(endpoint));
        let core = Core { id, phase, mappings: Mappings::default(), settings, error: 0 };
        Ok(Self::with(core, channel, self.manager))
    }

    pub(crate) fn connect(&self, peer: SocketAddr) -> Result<(), Errno> {
        let mut core = self.lock();
        match core.phase {
            Phase::Fresh => {
                if let Err(errno) = core.request(&self.channel, peer) {
                    core.fail(errno.0);
                    return Err(errno);
                }
            }
            // A repeated call reports the state, as connect(2) does.
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

    /// Ends one direction or both, and waits until the peer has acknowledged all data.
    pub(crate) fn shut_down(&self, how: c_int) -> Result<(), Errno> {
        let (reads, writes) = match how {
            libc::SHUT_RD => (false, true),
            libc::SHUT_WR => (true, false),
            libc::SHUT_RDWR => (false, false),
            _ => return Err(Errno::INVALID),
        };
        let last = self.update(|core| -> Result<Option<Message>, Errno> {
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
        let Some(last) = last else { return Ok(()) };
        let deadline = Some(wakeup::now() + LINGER);
        self.until_time(true, deadline, |core| {
            let endpoint = core.endpoint()?;
            let is_sent = !endpoint.is_open() || endpoint.send_end(last);
            is_sent.then_some(Ok(()))
        })?;
        self.until_time(true, deadline, |core| {
            let endpoint = core.endpoint()?;
            (!endpoint.is_open() || endpoint.sending.is_done()).then_some(Ok(()))
        })?;
        self.waiters.notify_others();
        Ok(())
    }

    /// Ends the connection and wakes all waiting threads. The program does not use it any more.
    pub(crate) fn close(&self) {
        // If the peer does not learn of the end this way, its connection manager tells it.
        let _ = self.shut_down(libc::SHUT_RDWR);
        let mut core = self.lock();
        core.fail(libc::EBADF);
        if let Phase::Listening(..) = core.phase {
            core.phase = Phase::Failed;
        }
        if let Some(endpoint) = core.endpoint() {
            endpoint.break_off(libc::EBADF);
        }
        // Explicitly, because a thread that sleeps on the socket still owns it.
        let _ = core.id.disconnect();
        drop(core);
        self.waiters.notify_others();
    }
}

impl Waitable for Stream {
    fn watch(&self, wakeup: &Arc<Wakeup>) -> PollSet {
        wakeup.clear();
        self.waiters.add(wakeup);
        let mut core = self.lock();
        let is_listening = matches!(core.phase, Phase::Listening(..));
        let completions = core.endpoint().map(|endpoint| {
            endpoint.arm();
            endpoint.channel().clone()
        });
        PollSet::new(if is_listening { -1 } else { self.fd() }, completions.into_iter())
    }

    fn unwatch(&self, wakeup: &Arc<Wakeup>) {
        self.waiters.remove(wakeup);
    }

    fn probe(&self) {
        if let Ok(Some(endpoint)) = self.lock().connection() {
            endpoint.probe();
        }
    }
}

impl Served for Stream {
    fn serve(&self) -> Option<c_int> {
        // `accept` wakes the service when a full backlog has room again.
        self.accept_requests().then(|| self.fd())
    }
}

impl KeptAlive for Stream {
    fn keepalive_interval(&self) -> Option<Duration> {
        let core = self.lock();
        core.settings.keepalive.then(|| core.settings.keepalive_interval())
    }

    fn probe_peer(&self) {
        self.probe();
        // No thread of the program may be in a call that would take the result.
        self.update(|_| ());
    }
}

/// How long the subnet administration of an InfiniBand fabric may take to tell a path, in
/// milliseconds. On Ethernet there is nothing to wait for.
const ROUTE_MS: u16 = 2000;

/// Takes the event of a call that completes before it returns, or soon.
fn expect_event(channel: &EventChannel, kind: EventKind) -> Result<(), Errno> {
    match channel.wait_event(Some(2 * ROUTE_MS))? {
        Some(event) if event.kind == kind => Ok(()),
        Some(Event { status, .. }) if status != 0 => Err(Errno(status.saturating_abs())),
        _ => Err(Errno(libc::EHOSTUNREACH)),
    }
}

/// The address of InfiniBand of a socket whose addresses are GIDs with ports.
fn native(addr: SocketAddr) -> IbAddr {
    IbAddr::of_ip(PortSpace::Tcp, addr)
}

/// The IPv4 address that an IPv4-mapped IPv6 address stands for; any other address unchanged.
fn unmapped(addr: SocketAddr) -> SocketAddr {
    match addr.ip() {
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => (ip, addr.port()).into(),
            None => addr,
        },
        IpAddr::V4(_) => addr,
    }
}
