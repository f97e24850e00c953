//! A look into the adapters that run: those of every process of this user in this network
//! namespace.
//!
//! Each open device has a Unix socket with an abstract name, on which its driver thread sleeps
//! beside its link. A process that connects gets one answer, a [`Snapshot`] as text in an unnamed
//! file, so that neither side waits for the other. The kernel removes the socket however the
//! process ends. Both sides compare the user of the other, as the kernel tells it, with their own.
//! A device into which no process looks pays nothing but two descriptors.
//!
//! [`packets`] asks a device for the last packets of a queue pair. The device records them from the
//! first such request on, until no process has asked for three seconds.

mod files;
mod listener;
mod packets;
mod requests;
mod text;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use feroce_engine::{QpCounters, QpState, QpType};
use feroce_link::FaultConfig;
use feroce_wire::{Gid, Qpn};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket, sockopt,
};
use nix::unistd::geteuid;

pub(crate) use listener::Listener;
pub use packets::{NotComplete, PacketSnapshot, Packets};
pub(crate) use packets::{PacketLog, refuse};
pub(crate) use requests::{Request, outcome};
pub(crate) use text::{State, write};

/// What the names of the sockets begin with.
const PREFIX: &str = "feroce.watch/";

/// How long to wait for all answers together: a process that is stopped does not answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// Longest answer that is read.
const MAX_ANSWER: u64 = 64 << 20;

/// An open device of a process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// The process that has opened it.
    pub pid: u32,
    /// Its name.
    pub device: String,
    /// The addresses of its port.
    pub addresses: Vec<Gid>,
    /// For how long it has been open.
    pub age_ns: u64,
    /// What its queue pairs did together, with those that do not exist any more.
    pub totals: QpCounters,
    /// What the adapter did, by name; see [`Counters`](crate::Counters).
    pub counters: BTreeMap<String, u64>,
    /// Packets that it dropped, by reason; see [`DropCounters`](crate::DropCounters).
    pub drops: BTreeMap<String, u64>,
    /// What happened to its link, by name.
    pub link: BTreeMap<String, u64>,
    /// Queue pairs.
    pub qps: Vec<QpSnapshot>,
    /// Completion queues.
    pub cqs: Vec<CqSnapshot>,
    /// Connections and listeners of the connection manager.
    pub connections: Vec<ConnectionSnapshot>,
    /// Memory regions.
    pub mrs: u64,
    /// Bytes of all memory regions.
    pub mr_bytes: u64,
    /// Protection domains.
    pub pds: u64,
    /// Shared receive queues.
    pub srqs: u64,
    /// Address handles.
    pub ahs: u64,
    /// The faults that it injects into what it receives, as
    /// [`FaultConfig`] writes them; `None` if it has no layer that could.
    pub fault: Option<String>,
    /// What requests to it are addressed to.
    socket: String,
}

/// A queue pair of a [`Snapshot`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QpSnapshot {
    /// Its number.
    pub qpn: Qpn,
    /// Its service.
    pub qp_type: QpType,
    /// Its state.
    pub state: QpState,
    /// Address and number of the queue pair that it is connected to.
    pub peer: Option<(Gid, Qpn)>,
    /// Requests in its send queue.
    pub waiting: u64,
    /// The smoothed round trip time to its peer; zero until one was measured.
    pub rtt_ns: u64,
    /// Bytes that may be in flight to its peer; zero where there is no such limit.
    pub window: u64,
    /// What it did.
    pub counters: QpCounters,
}

/// A completion queue of a [`Snapshot`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CqSnapshot {
    /// Its number.
    pub number: u32,
    /// How many completions it holds at most.
    pub depth: u64,
    /// How many wait to be polled.
    pub waiting: u64,
    /// Work queues that complete to it.
    pub users: u64,
}

/// A connection or a listener of a [`Snapshot`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ConnectionSnapshot {
    /// How far it is, such as `listening` or `connected`.
    pub state: String,
    /// Its queue pair, if it has one.
    pub qpn: Option<Qpn>,
    /// The address here.
    pub local: Option<SocketAddr>,
    /// The address of the peer.
    pub peer: Option<SocketAddr>,
}

/// What [`look`] has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Seen {
    /// Open devices, in the order of processes and names.
    pub devices: Vec<Snapshot>,
    /// Processes that have a device open and did not answer in time, because they are stopped or
    /// get no processor.
    pub silent: Vec<u32>,
}

/// Looks into every open device of this user in this network namespace.
///
/// ```
/// let _context = feroce::Device::at(["127.0.0.33".parse()?]).open()?;
/// let seen = feroce::watch::look()?;
/// assert!(seen.devices.iter().any(|device| device.pid == std::process::id()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[expect(clippy::disallowed_methods, reason = "a look from outside, which drives nothing")]
pub fn look() -> io::Result<Seen> {
    let mut seen = Seen::default();
    let ask = |name: String| ask(&name).map(|(pid, fd)| (pid, fd, name));
    let asked: Vec<_> = names()?.into_iter().filter_map(ask).collect();
    let until = Instant::now() + PATIENCE;
    for (pid, fd, name) in asked {
        let socket = name.strip_prefix(PREFIX).unwrap_or_default().to_owned();
        match answer(&fd, until) {
            Ok(text) => {
                seen.devices.extend(text::parse(&text).map(|s| Snapshot { pid, socket, ..s }));
            }
            // It was closed meanwhile.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(_) => seen.silent.push(pid),
        }
    }
    seen.devices.sort_by(|a, b| (a.pid, &a.device).cmp(&(b.pid, &b.device)));
    seen.silent.sort_unstable();
    seen.silent.dedup();
    Ok(seen)
}

/// Asks a device for the last packets of a queue pair, those of which it still knows the headers.
///
/// The device begins to record them when it is asked for the first time, and goes on for three
/// seconds or 4,096 packets: the first answer is empty, and of a queue pair with more packets
/// between two requests, an answer has those that followed the request before it. Requests that one
/// process of a host executes in the memory of another have no packets, nor have connections of
/// iWARP. Datagrams to a multicast group are not listed at their receivers.
///
/// ```
/// # use feroce::watch;
/// let context = feroce::Device::at(["127.0.0.34".parse()?]).open()?;
/// let seen = watch::look()?;
/// let is_ours = |device: &&watch::Snapshot| device.pid == std::process::id();
/// let device = seen.devices.iter().find(is_ours).expect("it is open");
/// assert!(watch::packets(device, feroce::Qpn::new(1))?.packets.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn packets(device: &Snapshot, qpn: Qpn) -> io::Result<Packets> {
    let text = request(device, &Request::Packets(qpn))?;
    text.parse().map_err(|e: NotComplete| {
        let (pid, name) = (device.pid, &device.device);
        io::Error::new(io::ErrorKind::InvalidData, format!("{name} of process {pid}: {e}"))
    })
}

/// Switches the faults of a device: it injects `fault` into what it receives from now on.
///
/// It must have been opened with the setting `fault`, which may be `off`. Otherwise it has no layer
/// for faults, and processes of its host may reach its memory without packets, which no fault would
/// concern: the error says so.
///
/// ```
/// # use feroce::{Device, Settings, watch};
/// let settings = Settings { fault: Some("off".parse()?), ..Settings::default() };
/// let context = Device::at(["127.0.0.35".parse()?]).open_with(settings)?;
/// let ours = |device: &&watch::Snapshot| device.fault.as_deref() == Some("off");
/// let seen = watch::look()?;
/// let device = seen.devices.iter().find(ours).expect("it is open");
/// watch::set_fault(device, &"loss=1%".parse()?)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn set_fault(device: &Snapshot, fault: &FaultConfig) -> io::Result<()> {
    let text = request(device, &Request::Fault(fault.to_string()))?;
    let (pid, name) = (device.pid, &device.device);
    match requests::read_outcome(&text) {
        Some(Ok(())) => Ok(()),
        Some(Err(why)) => {
            let text = format!("{name} of process {pid}: {why}");
            Err(io::Error::new(io::ErrorKind::Unsupported, text))
        }
        None => {
            let text = format!("{name} of process {pid}: {NotComplete}");
            Err(io::Error::new(io::ErrorKind::InvalidData, text))
        }
    }
}

/// Sends a request to a device, and waits for the answer.
#[expect(clippy::disallowed_methods, reason = "a look from outside, which drives nothing")]
fn request(device: &Snapshot, request: &Request) -> io::Result<String> {
    let (pid, name) = (device.pid, &device.device);
    let annotate = |e: io::Error| {
        let why = match e.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::UnexpectedEof => {
                "it was closed, or its version of feroce is older"
            }
            io::ErrorKind::TimedOut => "it does not answer: is the process stopped?",
            _ => return e,
        };
        io::Error::new(e.kind(), format!("device {name} of process {pid}: {why}"))
    };
    let until = Instant::now() + PATIENCE;
    let socket = requests::send(&device.socket, request).map_err(annotate)?;
    answer(&socket, until).map_err(annotate)
}

/// The names of all sockets of devices in this network namespace.
fn names() -> io::Result<Vec<String>> {
    let table = std::fs::read("/proc/thread-self/net/unix")
        .map_err(|e| io::Error::new(e.kind(), format!("cannot list Unix sockets: {e}")))?;
    let table = String::from_utf8_lossy(&table);
    let mut names: Vec<String> = table
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().nth(7)?.strip_prefix('@'))
        .filter(|name| name.starts_with(PREFIX))
        .map(str::to_owned)
        .collect();
    // Connections that wait to be accepted have the name of their listener.
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// Connects to a socket, if it is one of this user, and says whose process it is.
fn ask(name: &str) -> Option<(u32, OwnedFd)> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None).ok()?;
    let address = UnixAddr::new_abstract(name.as_bytes()).ok()?;
    connect(fd.as_raw_fd(), &address).ok()?;
    let peer = getsockopt(&fd, sockopt::PeerCredentials).ok()?;
    let is_ours = peer.uid() == geteuid().as_raw();
    is_ours.then(|| (peer.pid().cast_unsigned(), fd))
}

#[expect(clippy::disallowed_methods, reason = "a look from outside, which drives nothing")]
fn answer(socket: &OwnedFd, until: Instant) -> io::Result<String> {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
    if poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], timeout)? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let file = files::receive_file(socket)?;
    let mut text = String::new();
    File::from(file).take(MAX_ANSWER).read_to_string(&mut text)?;
    Ok(text)
}
