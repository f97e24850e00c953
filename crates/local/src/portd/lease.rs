//! The connection of a process to portd.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use feroce_link::Logger;
use feroce_link::port::{PortSocket, Received, Sent};
use feroce_train::{Instant, RxTrain};
use feroce_wire::Gid;
use nix::unistd::geteuid;

use super::message::{Address, Answer, MAX_ANSWER, Prefixes, Request};
use super::{Opening, connect, is_link_local};
use crate::Departure;
use crate::record::{self, Content, MAX_RECORD};
use crate::sys;

/// How long a process waits before it looks for a portd again.
const AGAIN_NS: u64 = 50_000_000;

/// What a process knows to ask portd.
#[derive(Debug)]
struct Terms {
    prefix: u8,
    /// The interface of its link-local addresses.
    scope: u32,
    /// Users whose portd it trusts.
    trusted: Vec<u32>,
}

impl Terms {
    fn connect(&self) -> io::Result<PortSocket> {
        connect(|user| self.trusted.contains(&user))
    }

    fn address(&self, gid: Gid) -> Address {
        (gid, if is_link_local(gid) { self.scope } else { 0 })
    }

    /// Sends a request over a connection of its own.
    fn ask(&self, request: &Request) -> io::Result<PortSocket> {
        let socket = self.connect()?;
        match socket.send(&request.emit()) {
            Sent::Done => Ok(socket),
            Sent::Full | Sent::Gone => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }
}

/// Waits for the answer to a request.
fn answer(socket: &PortSocket) -> io::Result<Answer> {
    let mut bytes = [0; MAX_ANSWER];
    let len = socket.await_answer(&mut bytes)?;
    Answer::parse(&bytes[..len]).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// How a process claims services at addresses where portd receives.
#[derive(Clone, Debug)]
pub(crate) struct Claims {
    terms: Arc<Terms>,
    served: Arc<Mutex<Vec<Gid>>>,
}

impl Claims {
    fn serves(&self, address: Gid) -> bool {
        self.served.lock().unwrap_or_else(PoisonError::into_inner).contains(&address)
    }

    /// Claims a service for as long as the connection lasts, and waits for the answer. `None`:
    /// portd does not receive at the address, or there is none now.
    pub(crate) fn claim(&self, address: Gid, service: u64) -> io::Result<Option<PortSocket>> {
        let Some(socket) = self.claim_later(address, service) else { return Ok(None) };
        match answer(&socket)? {
            Answer::Claimed => Ok(Some(socket)),
            Answer::InUse => Err(io::ErrorKind::AddrInUse.into()),
            Answer::Refused(why) => Err(io::Error::other(why)),
            Answer::Leased { .. } | Answer::Taken(_) | Answer::Departed { .. } => {
                Err(io::ErrorKind::InvalidData.into())
            }
        }
    }

    /// Claims a service without waiting for the answer.
    pub(crate) fn claim_later(&self, address: Gid, service: u64) -> Option<PortSocket> {
        if !self.serves(address) {
            return None;
        }
        let (prefix, address) = (self.terms.prefix, self.terms.address(address));
        self.terms.ask(&Request::Claim { prefix, address, service }).ok()
    }

    /// The answer to a claim, if it has arrived.
    pub(crate) fn hear(claim: &PortSocket) -> Option<Heard> {
        let mut bytes = [0; MAX_ANSWER];
        match claim.receive(&mut bytes) {
            Received::Message(len) if Answer::parse(&bytes[..len]) == Some(Answer::Claimed) => {
                Some(Heard::Claimed)
            }
            Received::Message(_) => Some(Heard::Refused),
            Received::Nothing => None,
            Received::Gone => Some(Heard::Gone),
        }
    }
}

/// What portd has answered to a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Heard {
    Claimed,
    /// The service belongs to another process, or portd does not take the claim.
    Refused,
    /// portd has ended. The next one is asked again.
    Gone,
}

/// The result of asking portd for a lease.
#[derive(Debug)]
pub(crate) enum Asked {
    /// There is no portd that this process trusts.
    NoPortd,
    /// The prefix is not free.
    Taken(Prefixes),
    Leased(Lease),
}

/// A prefix that portd has leased to this process, and the connection over which packets arrive.
#[derive(Debug)]
pub struct Lease {
    terms: Arc<Terms>,
    /// `None`: portd has gone, and there is no other one yet.
    socket: Option<PortSocket>,
    /// A request was sent over a new connection, and was not answered yet.
    is_asked: bool,
    /// Where portd receives for this process.
    served: Arc<Mutex<Vec<Gid>>>,
    /// Where it does not.
    refused: Vec<Gid>,
    next_try: Instant,
    record: Vec<u8>,
    log: Logger,
    /// The warning that portd has no lease for this process was logged.
    complained: bool,
    /// Processes of other users that have ended.
    departures: Vec<Departure>,
    rx_trains: u64,
    malformed: u64,
    connected_again: u64,
}

/// What [`Lease::receive`] has learnt beside packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum News {
    Nothing,
    /// portd receives at other addresses than before.
    Addresses,
    /// There is a portd again, and it does not know the services of this process.
    Again,
}

impl Lease {
    /// Asks for a lease of a prefix, and waits for the answer.
    pub(crate) fn ask(prefix: u8, opening: Opening<'_>) -> io::Result<Asked> {
        let Opening { addresses, scope, trusted } = opening;
        let own = geteuid().as_raw();
        let trusted = [0, own].into_iter().chain(trusted.iter().copied()).collect();
        let terms = Arc::new(Terms { prefix, scope, trusted });
        let Ok(socket) = terms.connect() else { return Ok(Asked::NoPortd) };
        let served = addresses.iter().copied().filter(|gid| !gid.is_zero()).collect();
        let mut lease = Self {
            terms,
            socket: Some(socket),
            is_asked: true,
            served: Arc::new(Mutex::new(served)),
            refused: Vec::new(),
            next_try: Instant::ZERO,
            record: vec![0; MAX_RECORD],
            log: Logger::default(),
            complained: false,
            departures: Vec::new(),
            rx_trains: 0,
            malformed: 0,
            connected_again: 0,
        };
        lease.tell();
        match lease.socket.as_ref().map(answer) {
            Some(Ok(Answer::Leased { refused })) => {
                lease.is_asked = false;
                lease.refuse(refused);
                Ok(Asked::Leased(lease))
            }
            Some(Ok(Answer::Taken(prefixes))) => Ok(Asked::Taken(prefixes)),
            Some(Ok(Answer::Refused(why))) => Err(io::Error::other(why)),
            Some(Ok(_)) => Err(io::ErrorKind::InvalidData.into()),
            Some(Err(e)) => Err(e),
            None => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }

    pub(crate) fn set_log(&mut self, log: &Logger) {
        self.log = log.clone();
    }

    /// How this process claims services.
    pub(crate) fn claims(&self) -> Claims {
        Claims { terms: Arc::clone(&self.terms), served: Arc::clone(&self.served) }
    }

    /// Where portd receives for this process.
    pub(crate) fn served(&self) -> Vec<Gid> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether portd receives at an address for this process, or may do so if it is asked.
    pub(crate) fn may_serve(&self, address: Gid) -> bool {
        !self.refused.contains(&address)
    }

    /// Forgets that portd has refused an address, which may not have been usable then.
    pub(crate) fn forgive(&mut self, address: Gid) {
        self.refused.retain(|gid| *gid != address);
    }

    /// Asks portd to receive at these addresses, if it does not yet, and no longer at `removed`.
    /// It may receive at others that this process has not got to yet.
    pub(crate) fn set_addresses(&mut self, addresses: &[Gid], removed: &[Gid]) {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        let before = served.len();
        served.retain(|gid| !removed.contains(gid));
        let is_less = served.len() < before;
        let new = addresses.iter().filter(|gid| !served.contains(gid));
        let new: Vec<Gid> = new.copied().collect();
        let is_more = !new.is_empty();
        served.extend(new);
        drop(served);
        if is_less || is_more {
            self.tell();
        }
    }

    /// Tells portd the addresses.
    fn tell(&mut self) {
        let Some(socket) = &self.socket else { return };
        let addresses = self.served().into_iter().map(|gid| self.terms.address(gid)).collect();
        let request = Request::Lease { prefix: self.terms.prefix, addresses };
        // A portd that takes no requests is as good as none.
        if socket.send(&request.emit()) != Sent::Done {
            self.socket = None;
        }
    }

    fn refuse(&mut self, refused: Vec<Gid>) {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        served.retain(|gid| !refused.contains(gid));
        drop(served);
        self.refused = refused;
    }

    /// The connection, while there is one: readable when packets have arrived.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// When to call [`Lease::look`] next.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.socket.is_none().then_some(self.next_try)
    }

    /// Looks for a portd, if the last one has gone, and returns whether there is a new connection.
    pub(crate) fn look(&mut self, now: Instant) -> bool {
        if self.socket.is_some() || now < self.next_try {
            return false;
        }
        self.next_try = now.plus_nanos(AGAIN_NS);
        self.socket = self.terms.connect().ok();
        self.is_asked = true;
        self.tell();
        self.socket.is_some()
    }

    /// Passes packets that have arrived to `sink`, and whether their ICRC is still to be checked.
    pub(crate) fn receive(
        &mut self,
        budget: usize,
        mut sink: impl FnMut(&RxTrain<'_>, bool),
    ) -> (usize, News) {
        let (mut taken, mut news) = (0, News::Nothing);
        while taken < budget
            && let Some(socket) = &self.socket
        {
            let len = match socket.receive(&mut self.record) {
                Received::Message(len) => len,
                Received::Nothing => break,
                Received::Gone => {
                    self.log.warn(format_args!(
                        "feroce portd has ended: no packets of other hosts and users arrive until \
                         it is started again"
                    ));
                    self.socket = None;
                    break;
                }
            };
            let message = &self.record[..len];
            match record::read(message, &mut None) {
                Some(Content::Packets(train, has_icrc)) => {
                    sink(&train, has_icrc);
                    self.rx_trains += 1;
                    taken += 1;
                }
                _ => match Answer::parse(message) {
                    Some(Answer::Departed { prefix, addresses }) => {
                        self.departures.push(Departure { prefix, addresses });
                    }
                    Some(answer) => news = self.hear(answer),
                    None => self.malformed += 1,
                },
            }
        }
        (taken, news)
    }

    /// The processes of other users that have ended since the last call. What they sent was
    /// received before.
    pub(crate) fn take_departures(&mut self) -> Vec<Departure> {
        std::mem::take(&mut self.departures)
    }

    /// Takes note of an answer that arrived between packets.
    fn hear(&mut self, answer: Answer) -> News {
        match answer {
            Answer::Leased { refused } => {
                for gid in &refused {
                    self.log.debug(format_args!("feroce portd does not receive at {gid}"));
                }
                self.refuse(refused);
                if !std::mem::take(&mut self.is_asked) {
                    return News::Addresses;
                }
                self.connected_again += 1;
                self.complained = false;
                self.log.info(format_args!("connected to feroce portd again"));
                return News::Again;
            }
            Answer::Taken(_) => self.complain(
                "another process has taken the number of this one while there was no portd: \
                 packets of other hosts and users do not arrive; open the device again",
            ),
            Answer::Refused(why) => self.complain(&why),
            Answer::Claimed | Answer::InUse | Answer::Departed { .. } => {}
        }
        // Another portd, or this one later, may decide differently.
        self.socket = None;
        News::Nothing
    }

    fn complain(&mut self, why: &str) {
        if !std::mem::replace(&mut self.complained, true) {
            self.log.warn(format_args!("no lease of feroce portd: {why}"));
        }
    }

    /// In the child of a fork: closes the copy of the connection, which belongs to the parent.
    pub(crate) fn abandon(&self) {
        if let Some(fd) = self.fd() {
            let _ = sys::let_go(fd);
        }
    }

    pub(crate) fn counters(&self) -> [(&'static str, u64); 3] {
        [
            ("portd_rx_trains", self.rx_trains),
            ("portd_rx_malformed", self.malformed),
            ("portd_connected_again", self.connected_again),
        ]
    }
}
