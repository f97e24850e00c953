//! Rings between a program and the process of a fabric.
//!
//! A message through a socket takes two system calls, and a packet that passes one switch is two
//! messages. Therefore, a program that is attached to a port offers the fabric two rings in memory,
//! and from then on messages go through these. The program makes the rings, so that it pays for
//! them. Their files are sealed, so that neither end can make them shorter under the other.
//!
//! The socket stays. An end that sleeps on it, or waits for room, says so in a word of a ring, and
//! the other end sends it a message of one byte, a *bell*. And the kernel tells each end through
//! the socket when the other is gone.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use feroce_link::Logger;
use feroce_link::port::{MAX_MESSAGE, PortChannel, PortSocket, Received, Sent};
use feroce_ring::{ByteConsumer, ByteProducer, Corrupt, fall_asleep, must_wake};
use feroce_train::Instant;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};

use super::ancillary::Ancillary;
use super::map::RingMap;
use super::registry::reserve;
use super::shared;

/// Bytes of the ring to the fabric: more than the records of all packets that the credit of a port
/// lets a program send, if each is as short as can be.
const TO_FABRIC: usize = 1 << 20;

/// Bytes of the ring to the program: what a socket would hold.
const TO_PROGRAM: usize = 256 << 10;

const _: () = assert!(MAX_MESSAGE < TO_PROGRAM / 2 - 16, "a ring holds the longest message");

/// The message that comes with the files of the rings.
const OFFER: [u8; 16] = *b"feroce rings   1";

/// What the fabric answers: it uses the rings, or there are none that it can use.
const TAKEN: u8 = 1;
const REFUSED: u8 = 0;

/// Wakes the other end.
const BELL: [u8; 1] = [0];

/// Bells that are removed at a time. The other end may ring without end, and the socket stays
/// readable then.
const MAX_BELLS: usize = 64;

/// How long a program may not notice that the fabric has ended, while it polls.
const LOOK_NS: u64 = 1_000_000;

/// One end of a pair of rings. It is used with the socket over which the rings were agreed on.
#[derive(Debug)]
pub struct PortRings {
    tx: ByteProducer<RingMap>,
    rx: ByteConsumer<RingMap>,
}

impl PortRings {
    /// Sends a message, and wakes the other end if it sleeps. Where there is no room, the other end
    /// rings when there is some again.
    pub fn send(&mut self, socket: &PortSocket, message: &[u8]) -> Sent {
        self.send_with(socket, message.len(), |out| out.copy_from_slice(message))
    }

    /// Does the same for a message of `len` bytes, which `write` writes to the ring.
    pub fn send_with(
        &mut self,
        socket: &PortSocket,
        len: usize,
        write: impl Fn(&mut [u8]),
    ) -> Sent {
        let staged = self.tx.stage(len, &write).and_then(|is_staged| match is_staged {
            true => Ok(true),
            false => {
                fall_asleep(self.tx.memory().starving());
                self.tx.stage(len, &write)
            }
        });
        match staged {
            Ok(true) => {}
            Ok(false) => return Sent::Full,
            Err(Corrupt) => return Sent::Gone,
        }
        self.tx.publish();
        // If the other end is gone, the socket tells: what it has sent before is to be received.
        if must_wake(self.tx.memory().sleeping()) && ring(socket) == Sent::Full {
            // The socket holds bells, or the kernel lacked memory for this one, so that the next
            // message rings again.
            fall_asleep(self.tx.memory().sleeping());
        }
        Sent::Done
    }

    /// Receives a message into `buffer`, and wakes the other end if it waits for room.
    pub fn receive(&mut self, socket: &PortSocket, buffer: &mut [u8]) -> Received {
        match self.rx.pop(buffer) {
            Ok(None) => Received::Nothing,
            Ok(Some(len)) => {
                if must_wake(self.rx.memory().starving()) {
                    // If the other end is gone, the socket tells.
                    ring(socket);
                }
                Received::Message(len)
            }
            Err(Corrupt) => Received::Gone,
        }
    }

    /// Whether there is nothing to receive.
    pub fn is_empty(&self) -> bool {
        self.rx.is_still_empty()
    }

    /// Removes bells from the socket. Returns false if the other end is gone: what it has sent
    /// before is in the ring.
    pub fn hear(socket: &PortSocket) -> bool {
        let mut bell = BELL;
        for _ in 0..MAX_BELLS {
            match socket.receive(&mut bell) {
                Received::Message(_) => {}
                Received::Nothing => break,
                Received::Gone => return false,
            }
        }
        true
    }

    /// Prepares for a sleep on the socket: from now on the other end rings when it has sent
    /// something. Returns false if there is something already.
    pub fn arm(&mut self) -> bool {
        fall_asleep(self.rx.memory().sleeping());
        self.rx.is_empty()
    }
}

/// A socket that is full of bells is readable, so the other end wakes just as well.
fn ring(socket: &PortSocket) -> Sent {
    socket.send(&BELL)
}

/// Whether the other end is gone. Bells stay.
fn has_hung_up(socket: &PortSocket) -> bool {
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// What the fabric finds when it looks for the offer of a program that is attached to a port.
#[derive(Debug)]
pub enum Offered {
    /// Messages go through these rings from now on.
    Rings(PortRings),
    /// There are none that can be used: messages go through the socket.
    None,
    /// The program has said nothing yet.
    Nothing,
    /// The program is gone, or says something else.
    Gone,
}

impl PortRings {
    /// Takes the offer of a program, and answers whether messages go through its rings, which are
    /// armed then. Nothing may have been sent on the socket that the program does not wait for.
    pub fn accept(socket: &PortSocket) -> Offered {
        let mut offer = [0; OFFER.len() + 1];
        let received = Ancillary::receive(socket.as_fd(), &mut offer, MsgFlags::MSG_DONTWAIT);
        let Ancillary { len, files, .. } = match received {
            Ok(received) => received,
            Err(Errno::EAGAIN | Errno::EINTR) => return Offered::Nothing,
            Err(_) => return Offered::Gone,
        };
        if offer.get(..len) != Some(&OFFER) {
            return Offered::Gone;
        }
        let files: Vec<File> = files.into_iter().map(File::from).collect();
        let rings = Self::open(&files).map(|mut rings| {
            rings.arm();
            rings
        });
        let answer = if rings.is_ok() { TAKEN } else { REFUSED };
        match (socket.send(&[answer]), rings) {
            (Sent::Done, Ok(rings)) => Offered::Rings(rings),
            (Sent::Done, Err(_)) => Offered::None,
            (Sent::Full | Sent::Gone, _) => Offered::Gone,
        }
    }

    /// The fabric's end of rings that a program has made.
    fn open(files: &[File]) -> io::Result<Self> {
        let [to_fabric, to_program] = files else { return Err(io::ErrorKind::InvalidData.into()) };
        for (file, capacity) in [(to_fabric, TO_FABRIC), (to_program, TO_PROGRAM)] {
            let seals = SealFlag::from_bits_retain(fcntl(file, FcntlArg::F_GET_SEALS)?);
            let is_long_enough = file.metadata()?.len() == RingMap::file_len(capacity) as u64;
            if !seals.contains(SealFlag::F_SEAL_SHRINK) || !is_long_enough {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        let (rx, tx) = (RingMap::new(to_fabric, TO_FABRIC)?, RingMap::new(to_program, TO_PROGRAM)?);
        // SAFETY: the program is the producer of one ring and the consumer of the other, and it
        // gives the files to this process only. If it breaks this rule, the rings have arbitrary
        // bytes, which is allowed for.
        Ok(unsafe { Self::new(tx, rx) })
    }

    /// # Safety
    ///
    /// No other end produces on `tx`, and none consumes on `rx`.
    unsafe fn new(tx: RingMap, rx: RingMap) -> Self {
        // SAFETY: as the caller says.
        let tx = unsafe { ByteProducer::new(tx) };
        // SAFETY: as the caller says.
        let rx = unsafe { ByteConsumer::new(rx) };
        Self { tx, rx }
    }

    /// The program's end of new rings, and their files.
    fn make() -> io::Result<(Self, [File; 2])> {
        let make = |name, capacity| {
            let len = RingMap::file_len(capacity);
            let file = shared::new_file(name, len)?;
            // Memory that is short now is an error here; later it would end the process.
            reserve(&file, 0, len)?;
            Ok::<_, io::Error>((RingMap::new(&file, capacity)?, file))
        };
        let (tx, to_fabric) = make("feroce-to-fabric", TO_FABRIC)?;
        let (rx, to_program) = make("feroce-to-program", TO_PROGRAM)?;
        // SAFETY: the files are new, and the fabric is the producer of one ring and the consumer of
        // the other.
        Ok((unsafe { Self::new(tx, rx) }, [to_fabric, to_program]))
    }
}

/// A program's end of a pair of rings, with the socket.
#[derive(Debug)]
pub struct RingChannel {
    rings: PortRings,
    socket: PortSocket,
    /// The fabric has ended.
    is_gone: bool,
    /// When it was last seen that it has not.
    looked_at: Instant,
}

impl RingChannel {
    /// Offers rings to the fabric, on the socket of a port that this process was just attached to.
    /// The fabric sends nothing before it has an offer, even of none: without rings, the channel is
    /// the socket itself.
    pub fn offer(socket: PortSocket, log: &Logger) -> io::Result<Box<dyn PortChannel>> {
        let (rings, files) = match PortRings::make() {
            Ok((rings, files)) => (Ok(rings), Vec::from(files)),
            Err(e) => (Err(e), Vec::new()),
        };
        let fds: Vec<_> = files.iter().map(|file| file.as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&fds)];
        let rights = if fds.is_empty() { &[] } else { &rights[..] };
        let (fd, data) = (socket.as_fd().as_raw_fd(), [IoSlice::new(&OFFER)]);
        sendmsg::<UnixAddr>(fd, &data, rights, MsgFlags::MSG_NOSIGNAL, None)?;
        let mut answer = [REFUSED];
        socket.await_answer(&mut answer)?;
        let why = match rings {
            Ok(rings) if answer == [TAKEN] => {
                let (is_gone, looked_at) = (false, Instant::ZERO);
                return Ok(Box::new(Self { rings, socket, is_gone, looked_at }));
            }
            Ok(_) => "it cannot map them".to_owned(),
            Err(e) => e.to_string(),
        };
        log.info(format_args!("no rings to the fabric, only a socket: {why}"));
        Ok(Box::new(socket))
    }
}

impl PortChannel for RingChannel {
    fn send(&mut self, message: &[u8]) -> Sent {
        self.rings.send(&self.socket, message)
    }

    fn receive(&mut self, now: Instant, buffer: &mut [u8]) -> Received {
        if now.nanos_since(self.looked_at) > LOOK_NS {
            self.looked_at = now;
            self.is_gone |= has_hung_up(&self.socket);
        }
        if self.is_gone {
            return Received::Gone;
        }
        self.rings.receive(&self.socket, buffer)
    }

    fn arm(&mut self) -> bool {
        // Not before: another thread may sleep on the socket, and has to see that it is readable
        // although this one receives what the bell was for.
        self.is_gone |= !PortRings::hear(&self.socket);
        self.rings.arm() && !self.is_gone
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
