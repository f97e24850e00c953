//! Links carry packet trains between engines.
//!
//! A [`Carrier`] turns trains into packets and back: [`UdpLink`] those of RoCEv2, [`EtherLink`]
//! those of RoCEv1 and [`RoceLink`] both, on a real network; [`PortLink`] those of a modelled one.
//! `HostLink` of `feroce-local` adds the other processes of the host. Layers wrap any link and
//! record, disturb or check what passes. The driver in `feroce` owns the stack and moves trains
//! between it and an engine; engine and link never see each other.
//!
//! Received packets travel up the stack as they were on the wire, ICRC included, so that a layer
//! can damage or record them; [`Verified`] on top of the stack checks the ICRC and drops what
//! fails.

mod describe;
mod ether;
mod fault;
mod icrc;
mod log;
mod memory;
mod output;
mod pcap;
pub mod port;
mod roce;
pub mod rtnetlink;
mod size;
mod sys;
mod tap;
pub mod tcp;
mod trace;
mod udp;

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use feroce_train::{Instant, LinkCaps, Path, RxMeta, RxTrain, Single, Train};
use feroce_wire::Gid;

pub use describe::describe;
pub use ether::{EtherConfig, EtherLink};
pub use fault::{
    FAULT_MARKS, Fault, FaultConfig, FaultParseError, FaultSwitch, Probability, is_taken_by_fault,
};
pub use icrc::{Checker, Covered, ICRC_LEN, IcrcPolicy, Sealer, Verified, part};
pub use log::{LogSink, Logger, emit};
pub use memory::MemoryLink;
pub use pcap::{Pcap, PcapConfig, PcapFile};
pub use port::{PortClaim, PortConfig, PortLink};
pub use roce::RoceLink;
pub use size::parse_size;
pub use tap::{Direction, Seen, Tap, Tapped};
pub use trace::{Trace, TraceFile};
pub use udp::{Steering, UdpConfig, UdpLink};

/// What the owner of a carrier tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control<'a> {
    /// The port has these addresses from now on.
    Addresses(&'a [Gid]),
    /// The port takes packets to a multicast group.
    Join(Gid),
    /// The port no longer takes packets to a multicast group.
    Leave(Gid),
    /// The process is about to end without dropping the carrier. Layers write what they buffer.
    Exit,
    /// This is the copy in a forked child. From now on, dropping it closes the child's descriptors
    /// and does nothing else, because what they refer to is the parent's.
    Fork,
}

/// An error of the operating system with words of ours around it. [`io::Error::new`] alone would
/// lose the number of the error, which C programs get as `errno`; this keeps it as the source.
pub fn annotate(error: io::Error, text: String) -> io::Error {
    io::Error::new(error.kind(), Annotated { text, error })
}

#[derive(Debug)]
struct Annotated {
    text: String,
    error: io::Error,
}

impl fmt::Display for Annotated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Annotated {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Numbers that a link keeps, by name.
pub type LinkCounters = Vec<(&'static str, u64)>;

/// Carries trains between ports.
///
/// The driver owns a carrier and calls four kinds of methods:
///
/// - *Getters* change nothing: [`caps`](Self::caps), [`headers`](Self::headers),
///   [`wait_fd`](Self::wait_fd), [`counters`](Self::counters).
/// - *Transmit*: [`send`](Self::send), and [`send_single`](Self::send_single) for one short packet.
/// - *Receive*: [`receive`](Self::receive), until it returns 0. A thread that wants to sleep calls
///   [`arm`](Self::arm) then, and sleeps on [`wait_fd`](Self::wait_fd) until
///   [`poll_timeout`](Self::poll_timeout) at most. Every other call may change that deadline.
/// - [`control`](Self::control) tells it about the port and the process.
///
/// None of them blocks. No method has a default: a layer that forgets one does not compile.
pub trait Carrier: Send {
    /// What one train may hold.
    fn caps(&self) -> LinkCaps;

    /// The headers below the BTH of packets on `path`, as the carrier writes them and a receiver
    /// sees them.
    fn headers(&self, path: &Path) -> RxMeta;

    /// Readable when [`Carrier::receive`] has something, and when there is room again after
    /// [`Carrier::send`] did not take all trains, if [`Carrier::arm`] was called before.
    fn wait_fd(&self) -> BorrowedFd<'_>;

    /// What happened so far, all layers together.
    fn counters(&self) -> LinkCounters;

    /// Sends trains in order until the carrier is full, and returns how many it took. It may send
    /// short ones together. After an error, all of them count as lost.
    fn send(&mut self, now: Instant, trains: &[Train]) -> io::Result<usize>;

    /// Sends a packet without a train, if that can be done at once. False: it was not sent, and the
    /// caller sends it as a train.
    fn send_single(&mut self, packet: Single<'_>) -> bool;

    /// Hands what has arrived to `sink`, at most `budget` trains, and returns how many those were.
    /// What peer processes have written to our memory counts as one more.
    fn receive(
        &mut self,
        now: Instant,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> io::Result<usize>;

    /// The calling thread is about to sleep on [`Carrier::wait_fd`]. False: something has arrived,
    /// and the thread should call [`Carrier::receive`] instead.
    fn arm(&mut self, now: Instant) -> bool;

    /// When [`Carrier::receive`] should be called even if nothing arrives: a layer holds packets
    /// back.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Follows a change of the port or of the process. After an error nothing has changed, except
    /// that some of the new addresses may be there already.
    fn control(&mut self, control: Control<'_>) -> io::Result<()>;
}

/// A carrier to other hosts whose addresses several processes share: one of them receives at each
/// address for all of them. The carrier sends from its addresses, and receives where it is told to.
pub trait SharedPort: Carrier {
    /// Receives at an address of the port. It is an error of kind [`io::ErrorKind::AddrInUse`] if
    /// another process does.
    fn listen(&mut self, addr: Gid) -> io::Result<()>;

    /// No longer receives at an address.
    fn stop_listening(&mut self, addr: Gid);

    /// The socket that receives at an address.
    fn receiver(&self, addr: Gid) -> Option<BorrowedFd<'_>>;

    /// Receives at an address of the port with a socket that another process has opened, and has
    /// still. False: the socket does not receive there.
    fn borrow_receiver(&mut self, addr: Gid, socket: OwnedFd) -> bool;

    /// Whether another link of this device receives at an address. Then [`SharedPort::listen`] lets
    /// the kernel divide the packets between both.
    fn is_steered(&self, addr: Gid) -> bool;

    /// Whether [`Carrier::receive`] has anything to do.
    fn is_watching(&self) -> bool;
}

/// A carrier that wraps another one and records, disturbs or checks what passes.
pub trait Layer: Carrier {
    /// The carrier below.
    type Inner: Carrier;

    /// The carrier below.
    fn inner(&self) -> &Self::Inner;

    /// The carrier below.
    fn inner_mut(&mut self) -> &mut Self::Inner;
}

/// The methods of [`Carrier`] that layers leave to the carrier below, `self.inner`.
macro_rules! forward_to_inner {
    () => {
        fn caps(&self) -> feroce_train::LinkCaps {
            self.inner.caps()
        }

        fn headers(&self, path: &feroce_train::Path) -> feroce_train::RxMeta {
            self.inner.headers(path)
        }

        fn wait_fd(&self) -> std::os::fd::BorrowedFd<'_> {
            self.inner.wait_fd()
        }

        fn arm(&mut self, now: feroce_train::Instant) -> bool {
            self.inner.arm(now)
        }
    };
}
use forward_to_inner;

/// Says that a type with a field `inner` is a [`Layer`].
macro_rules! impl_layer {
    ($layer:ident) => {
        impl<C: crate::Carrier> crate::Layer for $layer<C> {
            type Inner = C;

            fn inner(&self) -> &C {
                &self.inner
            }

            fn inner_mut(&mut self) -> &mut C {
                &mut self.inner
            }
        }
    };
}
use impl_layer;

/// Shows the packets of a train, one after the other, each written to `buffer`.
fn each_packet(train: &Train, buffer: &mut Vec<u8>, mut show: impl FnMut(u32, &[u8])) {
    for i in 0..train.count {
        buffer.resize(train.packet_len(i), 0);
        let len = train.emit(i, buffer);
        show(i, buffer.get(..len).unwrap_or(buffer));
    }
}

impl<C: Carrier + ?Sized> Carrier for Box<C> {
    fn caps(&self) -> LinkCaps {
        (**self).caps()
    }

    fn headers(&self, path: &Path) -> RxMeta {
        (**self).headers(path)
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        (**self).wait_fd()
    }

    fn counters(&self) -> LinkCounters {
        (**self).counters()
    }

    fn send(&mut self, now: Instant, trains: &[Train]) -> io::Result<usize> {
        (**self).send(now, trains)
    }

    fn send_single(&mut self, packet: Single<'_>) -> bool {
        (**self).send_single(packet)
    }

    fn receive(
        &mut self,
        now: Instant,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> io::Result<usize> {
        (**self).receive(now, budget, sink)
    }

    fn arm(&mut self, now: Instant) -> bool {
        (**self).arm(now)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        (**self).poll_timeout()
    }

    fn control(&mut self, control: Control<'_>) -> io::Result<()> {
        (**self).control(control)
    }
}
