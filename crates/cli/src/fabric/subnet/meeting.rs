//! How the processes of two parts of a fabric find each other: threads that connect or accept, and
//! greet. The fabric gets connections whose other end has read the same topology.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use feroce_subnet::{Hello, Net, TrunkMessage, take_frame};
use nix::sys::eventfd::EventFd;

use crate::fabric::pace::monotonic_ns;

/// How long a connection may take to be there and to be greeted.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait before the next attempt to connect.
const RETRY: Duration = Duration::from_millis(500);
/// Connections that are greeted at a time; more are closed.
const MAX_GREETING: usize = 16;
/// Bytes of a frame of a greeting, at most.
const MAX_GREETING_LEN: usize = 1024;

/// The part of a fabric that a process runs, and how it finds the others.
#[derive(Clone, Debug)]
pub(in super::super) struct PartArgs {
    pub(in super::super) part: usize,
    pub(in super::super) listen: Option<String>,
    pub(in super::super) join: Vec<String>,
}

/// What the threads tell the fabric.
#[derive(Debug)]
pub(super) enum Met {
    /// Another part is there.
    Part {
        part: usize,
        stream: TcpStream,
        at: SocketAddr,
        /// Dropped when the connection is over.
        over: Option<Sender<()>>,
    },
    /// An attempt has failed.
    Failed { with: String, why: String },
}

/// Who this process is, and who others may be.
#[derive(Clone)]
struct Greeter {
    own: Hello,
    parts: Arc<[String]>,
    met: Sender<Met>,
    wake: Arc<EventFd>,
}

/// The threads that look for other parts.
#[derive(Debug)]
pub(super) struct Meeting {
    pub(super) met: Receiver<Met>,
    /// Where it listens.
    pub(super) listens: Option<SocketAddr>,
}

impl Meeting {
    /// Starts the threads. `wake` is written when there is something in [`Meeting::met`].
    pub(super) fn new(
        args: &PartArgs,
        net: &Net,
        prefix: [u8; 2],
        wake: &Arc<EventFd>,
    ) -> anyhow::Result<Self> {
        let (met, receiver) = channel();
        let name = net.parts.get(args.part).map_or("", String::as_str);
        let own = Hello::new(name, net.digest(), prefix);
        let greeter = Greeter { own, parts: net.parts.clone().into(), met, wake: Arc::clone(wake) };
        let mut listens = None;
        if let Some(address) = &args.listen {
            let listener = TcpListener::bind(address.as_str())
                .with_context(|| format!("cannot listen at {address}"))?;
            listens = Some(listener.local_addr()?);
            let greeter = greeter.clone();
            let thread = thread::Builder::new().name("listen".to_owned());
            thread.spawn(move || greeter.listen(&listener))?;
        }
        for address in args.join.clone() {
            let greeter = greeter.clone();
            let thread = thread::Builder::new().name("join".to_owned());
            thread.spawn(move || greeter.join(&address))?;
        }
        Ok(Self { met: receiver, listens })
    }
}

impl Greeter {
    /// Tells the fabric. Returns whether it is still there.
    fn tell(&self, met: Met) -> bool {
        self.met.send(met).is_ok() && self.wake.write(1).is_ok()
    }

    fn listen(&self, listener: &TcpListener) {
        let greeting = Arc::new(AtomicUsize::new(0));
        for stream in listener.incoming().flatten() {
            if greeting.fetch_add(1, Ordering::Relaxed) >= MAX_GREETING {
                greeting.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (greeter, count) = (self.clone(), Arc::clone(&greeting));
            let thread = thread::Builder::new().name("greet".to_owned()).spawn(move || {
                if let Ok(at) = stream.peer_addr() {
                    greeter.tell(match greeter.greet(stream) {
                        Ok((part, stream)) => Met::Part { part, stream, at, over: None },
                        Err(why) => Met::Failed { with: at.to_string(), why },
                    });
                }
                count.fetch_sub(1, Ordering::Relaxed);
            });
            if thread.is_err() {
                // The connection is closed, and the other end tries again.
                greeting.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Connects, again and again: another part may not run yet, or not run for a while.
    fn join(&self, address: &str) {
        loop {
            let connected = connect(address).map_err(|e| e.to_string());
            let greeted = connected.and_then(|(stream, at)| Ok((self.greet(stream)?, at)));
            let is_heard = match greeted {
                Ok(((part, stream), at)) => {
                    let (over, ended) = channel();
                    let is_heard = self.tell(Met::Part { part, stream, at, over: Some(over) });
                    // Nothing is sent: the end of the connection ends the wait.
                    let _ = ended.recv();
                    is_heard
                }
                Err(why) => self.tell(Met::Failed { with: address.to_owned(), why }),
            };
            if !is_heard {
                return;
            }
            thread::park_timeout(RETRY);
        }
    }

    /// Greets the other end. Returns which part it is.
    fn greet(&self, stream: TcpStream) -> Result<(usize, TcpStream), String> {
        let deadline_ns = monotonic_ns() + PATIENCE.as_nanos() as u64;
        let ended = |e: io::Error| format!("the connection ends before it is greeted: {e}");
        stream.set_nodelay(true).map_err(ended)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(ended)?;
        let say = |message: TrunkMessage<'_>| {
            let mut bytes = Vec::new();
            message.emit(&mut bytes);
            (&stream).write_all(&bytes)
        };
        say(TrunkMessage::Hello(self.own.clone())).map_err(ended)?;
        let frame = read_frame(&stream, deadline_ns).map_err(ended)?;
        let checked = match TrunkMessage::parse(&frame) {
            Some(TrunkMessage::Hello(hello)) => self.check(&hello),
            _ => Err("what is there is no part of a fabric".to_owned()),
        };
        let said = match &checked {
            Ok(_) => say(TrunkMessage::Accepted),
            Err(why) => say(TrunkMessage::Refused(why)),
        };
        let part = checked?;
        said.map_err(ended)?;
        let frame = read_frame(&stream, deadline_ns).map_err(ended)?;
        match TrunkMessage::parse(&frame) {
            Some(TrunkMessage::Accepted) => Ok((part, stream)),
            Some(TrunkMessage::Refused(why)) => Err(format!("it refuses: {why}")),
            _ => Err("it does not answer a greeting".to_owned()),
        }
    }

    /// Which part the other end is.
    fn check(&self, hello: &Hello) -> Result<usize, String> {
        let own = &self.own;
        let Hello { version, part, digest, addresses: [a, b] } = hello;
        if *version != own.version {
            return Err(format!(
                "versions {version} and {} of the protocol meet: use one version of feroce",
                own.version
            ));
        }
        if *digest != own.digest {
            return Err("the topologies differ: give both ends the same file".to_owned());
        }
        if [*a, *b] != own.addresses {
            let [own_a, own_b] = own.addresses;
            return Err(format!(
                "addresses of hosts begin with {a}.{b} and {own_a}.{own_b}: give both ends the \
                 same --addresses"
            ));
        }
        match self.parts.iter().position(|known| known == part) {
            Some(_) if *part == own.part => Err(format!("both ends are part {part}")),
            Some(part) => Ok(part),
            None => Err(format!("no part has the name {part}")),
        }
    }
}

fn connect(address: &str) -> io::Result<(TcpStream, SocketAddr)> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for at in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&at, PATIENCE) {
            Ok(stream) => return Ok((stream, at)),
            Err(e) => failed = e,
        }
    }
    Err(failed)
}

/// Reads one short frame, and nothing that follows.
fn read_frame(mut stream: &TcpStream, deadline_ns: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // The length first, and then what it says.
    let mut wanted = size_of::<u32>();
    loop {
        while bytes.len() < wanted {
            let left = deadline_ns.saturating_sub(monotonic_ns()).max(1);
            stream.set_read_timeout(Some(Duration::from_nanos(left).max(LEAST)))?;
            if left == 1 {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut piece = [0; MAX_GREETING_LEN];
            let most = (wanted - bytes.len()).min(piece.len());
            match stream.read(&mut piece[..most])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => bytes.extend(&piece[..len]),
            }
        }
        let too_long = || io::Error::new(io::ErrorKind::InvalidData, "no part of a fabric");
        match take_frame(&bytes).map_err(|_| too_long())? {
            Some((frame, _)) => return Ok(frame.to_vec()),
            None => {
                let length = bytes.first_chunk().map_or(0, |length| u32::from_be_bytes(*length));
                wanted = size_of::<u32>() + length as usize;
                if wanted > MAX_GREETING_LEN {
                    return Err(too_long());
                }
            }
        }
    }
}

/// The shortest time that a socket can be told to wait.
const LEAST: Duration = Duration::from_millis(1);
