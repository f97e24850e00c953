//! Ethernet addresses of peers.
//!
//! The kernel resolves the IP address in a GID (ARP, neighbour discovery) when a packet is to be
//! sent to it. The link asks the kernel for the result over a routing socket and remembers it; the
//! announcements of the kernel tell when it changes. If the kernel does not know the neighbour, an
//! empty datagram to its discard port (RFC 863) makes the kernel ask, and frames wait meanwhile, as
//! those of the kernel do: a datagram is not repeated by its sender.

use std::collections::HashMap;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use feroce_wire::Gid;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use socket2::{Domain, Socket, Type};

use crate::rtnetlink::{self, BUFFER, Message, attribute, find, messages, query, u16_at, u32_at};
use crate::udp::socket_addr;

/// An Ethernet address.
pub(super) type Mac = [u8; 6];

/// The port of the discard protocol.
const DISCARD: u16 = 9;

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;

/// States in which the kernel has an address to send to (`NUD_VALID`).
const VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
/// The neighbour has not answered (`NUD_FAILED`).
const FAILED: u16 = 0x20;

/// Most neighbours that frames wait for, and most frames that wait for one.
const MAX_WAITING: usize = 64;
const MAX_FRAMES: usize = 64;
/// Most neighbours that are remembered. Then all are forgotten, and the kernel is asked again.
const MAX_KNOWN: usize = 4096;

/// What the kernel says of a neighbour.
enum Said {
    Is(Mac),
    /// The kernel asks.
    Unknown,
    /// It does not answer, or the kernel has forgotten it.
    Gone,
}

/// Frames to a neighbour that the kernel asks.
#[derive(Debug)]
struct Waiting {
    gid: Gid,
    frames: Vec<Vec<u8>>,
}

/// What became of frames that waited.
#[derive(Debug)]
pub(super) enum Settled {
    /// The neighbour has this address: the frames are to be sent.
    Found(Mac, Vec<Vec<u8>>),
    /// It does not answer: the frames are lost.
    Lost(Gid, usize),
}

/// The neighbours on an interface.
#[derive(Debug)]
pub(super) struct Neighbours {
    interface: (String, u32),
    /// For questions, and for announcements.
    questions: OwnedFd,
    announcements: OwnedFd,
    /// For the datagrams that make the kernel ask; without IPv6 there is only one.
    nudges: [Option<UdpSocket>; 2],
    known: HashMap<Gid, Mac>,
    /// The one asked for last.
    last: Option<(Gid, Mac)>,
    waiting: Vec<Waiting>,
}

impl Neighbours {
    pub(super) fn new(interface: (String, u32)) -> io::Result<Self> {
        let nudges = [nudge(Domain::IPV4, &interface.0), nudge(Domain::IPV6, &interface.0)];
        let [v4, v6] = nudges;
        Ok(Self {
            interface,
            nudges: [Some(v4?), v6.ok()],
            questions: rtnetlink::open(0)?,
            announcements: rtnetlink::open(libc::RTMGRP_NEIGH as u32)?,
            known: HashMap::new(),
            last: None,
            waiting: Vec::new(),
        })
    }

    /// A routing socket for questions.
    pub(super) fn questions(&self) -> &OwnedFd {
        &self.questions
    }

    /// Readable when the kernel has announced something.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.announcements.as_fd()
    }

    /// Whether frames wait.
    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The Ethernet address of a port or group, if it is known.
    #[inline]
    pub(super) fn find(&mut self, gid: Gid) -> Option<Mac> {
        if let Some((last, mac)) = self.last
            && last == gid
        {
            return Some(mac);
        }
        let mac = match gid.is_multicast() {
            true => group_address(gid),
            false => self.known.get(&gid).copied().or_else(|| self.ask(gid))?,
        };
        self.last = Some((gid, mac));
        Some(mac)
    }

    #[cold]
    fn ask(&mut self, gid: Gid) -> Option<Mac> {
        if self.waiting.iter().any(|waiting| waiting.gid == gid) {
            return None;
        }
        let octets = octets(&gid);
        let mut body = vec![family(&gid), 0, 0, 0];
        body.extend(self.interface.1.to_ne_bytes());
        body.extend([0; 4]);
        attribute(&mut body, NDA_DST, octets);
        let said = query(&self.questions, libc::RTM_GETNEIGH, &body, |message| self.read(message));
        match said {
            Ok((_, Said::Is(mac))) => {
                self.learn(gid, mac);
                Some(mac)
            }
            _ => None,
        }
    }

    fn learn(&mut self, gid: Gid, mac: Mac) {
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(gid, mac);
    }

    /// Keeps frames to a neighbour that is not known until the kernel has asked it. Their
    /// destination is not written yet. Returns how many are lost, as there are too many, or as no
    /// route leads there; the error says that.
    pub(super) fn wait(
        &mut self,
        gid: Gid,
        frames: impl ExactSizeIterator<Item = Vec<u8>>,
    ) -> (usize, io::Result<()>) {
        let at = self.waiting.iter().position(|waiting| waiting.gid == gid);
        let at = match at {
            Some(at) => at,
            None if self.waiting.len() == MAX_WAITING => return (frames.len(), Ok(())),
            None => {
                if let Err(e) = self.nudge(gid) {
                    return (frames.len(), Err(e));
                }
                self.waiting.push(Waiting { gid, frames: Vec::new() });
                self.waiting.len() - 1
            }
        };
        let waiting = &mut self.waiting[at].frames;
        let (room, count) = (MAX_FRAMES - waiting.len().min(MAX_FRAMES), frames.len());
        waiting.extend(frames.take(room));
        (count.saturating_sub(room), Ok(()))
    }

    /// Makes the kernel ask a neighbour.
    fn nudge(&self, gid: Gid) -> io::Result<()> {
        let to = socket_addr(gid, DISCARD, self.interface.1);
        let socket = self.nudges[usize::from(to.is_ipv6())].as_ref();
        let socket = socket.ok_or(io::ErrorKind::AddrNotAvailable)?;
        socket.send_to(&[], to).map(|_| ())
    }

    /// Takes the announcements of the kernel, and passes on frames that need not wait any longer.
    pub(super) fn hear(&mut self, mut settle: impl FnMut(Settled)) {
        let mut buffer = [0; BUFFER];
        loop {
            match recv(self.announcements.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(len) => {
                    for message in messages(&buffer[..len]) {
                        let Some((gid, said)) = self.read(&message) else { continue };
                        self.take(gid, &said, &mut settle);
                    }
                }
                Err(Errno::EINTR) => {}
                // Announcements were lost: everything is asked for again.
                Err(Errno::ENOBUFS) => self.forget(&mut settle),
                Err(_) => return,
            }
        }
    }

    fn take(&mut self, gid: Gid, said: &Said, settle: &mut impl FnMut(Settled)) {
        if self.last.is_some_and(|(last, _)| last == gid) {
            self.last = None;
        }
        let waits = |waiting: &Waiting| waiting.gid == gid;
        match *said {
            Said::Is(mac) => {
                self.learn(gid, mac);
                for Waiting { frames, .. } in self.waiting.extract_if(.., |w| waits(w)) {
                    settle(Settled::Found(mac, frames));
                }
            }
            Said::Unknown => {
                self.known.remove(&gid);
            }
            Said::Gone => {
                self.known.remove(&gid);
                for Waiting { frames, .. } in self.waiting.extract_if(.., |w| waits(w)) {
                    settle(Settled::Lost(gid, frames.len()));
                }
            }
        }
    }

    #[cold]
    fn forget(&mut self, settle: &mut impl FnMut(Settled)) {
        (self.known, self.last) = (HashMap::new(), None);
        for Waiting { gid, frames } in std::mem::take(&mut self.waiting) {
            settle(match self.ask(gid) {
                Some(mac) => Settled::Found(mac, frames),
                None => Settled::Lost(gid, frames.len()),
            });
        }
    }

    /// A neighbour on this interface, and what a message says of it.
    fn read(&self, message: &Message<'_>) -> Option<(Gid, Said)> {
        let attributes = message.body.get(12..)?;
        if u32_at(message.body, 4)? != self.interface.1 {
            return None;
        }
        let gid = gid_of(find(attributes, NDA_DST)?)?;
        let state = u16_at(message.body, 8)?;
        let mac = || Some(Said::Is(find(attributes, NDA_LLADDR)?.try_into().ok()?));
        Some((
            gid,
            match message.kind {
                libc::RTM_NEWNEIGH if state & VALID != 0 => mac().unwrap_or(Said::Unknown),
                libc::RTM_NEWNEIGH if state & FAILED != 0 => Said::Gone,
                libc::RTM_NEWNEIGH => Said::Unknown,
                libc::RTM_DELNEIGH => Said::Gone,
                _ => return None,
            },
        ))
    }
}

/// A socket whose datagrams leave from an interface.
fn nudge(domain: Domain, interface: &str) -> io::Result<UdpSocket> {
    let socket = Socket::new(domain, Type::DGRAM.nonblocking().cloexec(), None)?;
    socket.bind_device(Some(interface.as_bytes()))?;
    Ok(socket.into())
}

/// The Ethernet address of a multicast group: the last four bytes of its GID, as of IPv6 groups.
pub(super) fn group_address(gid: Gid) -> Mac {
    let [.., a, b, c, d] = gid.0;
    [0x33, 0x33, a, b, c, d]
}

fn family(gid: &Gid) -> u8 {
    (if gid.as_ipv4().is_some() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

/// The IP address in a GID.
fn octets(gid: &Gid) -> &[u8] {
    match gid.as_ipv4() {
        Some(_) => &gid.0[12..],
        None => &gid.0,
    }
}

fn gid_of(octets: &[u8]) -> Option<Gid> {
    let v4 = <[u8; 4]>::try_from(octets).map(Gid::from_ipv4);
    v4.or_else(|_| octets.try_into().map(Gid)).ok()
}
