//! Trains in.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use feroce_train::{Ecn, RxTrain};
use nix::errno::Errno;
use nix::sys::epoll::{EpollEvent, EpollTimeout};

use super::UdpLink;
use super::header::Header;
use super::watch::Source;

/// How often in a row only the socket that had something last is asked, while there are others.
/// Whoever polls mostly waits for an answer from where the last one came from.
pub(super) const MAX_STREAK: u32 = 16;

/// How often whoever has a gate looks before it is told of nothing.
const LOOKS: u32 = 3;

/// One datagram, or several that the kernel merged.
struct Datagram {
    len: usize,
    /// Length of each but the last, if merged.
    segment: Option<usize>,
    header: Header,
}

impl UdpLink {
    pub(super) fn receive_trains(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> io::Result<usize> {
        if self.gates.is_due() {
            let taken = self.change_gate(sink)?;
            if taken > 0 {
                return Ok(taken);
            }
        }
        if let Some(hot) = self.hot
            && (hot.is_only || self.streak < MAX_STREAK)
            && !self.is_full
        {
            self.count_look();
            let mut taken = self.receive_from(&hot.source, budget, sink)?;
            // Whoever waits for one peer alone waits here rather than come back: that takes as long
            // as half a look.
            let mut looks = if hot.source.is_connected { LOOKS } else { 1 };
            while taken == 0 && looks > 1 {
                taken = self.receive_from(&hot.source, budget, sink)?;
                looks -= 1;
            }
            self.streak = self.streak.saturating_add(1);
            self.adapt_merging();
            return Ok(taken);
        }
        self.ask_all(budget, sink)
    }

    /// Takes what any of the sockets has.
    fn ask_all(&mut self, budget: usize, sink: &mut dyn FnMut(&RxTrain<'_>)) -> io::Result<usize> {
        self.streak = 0;
        let mut events = [EpollEvent::empty(); 8];
        let ready = match self.epoll.wait(&mut events, EpollTimeout::ZERO) {
            Ok(n) => n,
            Err(Errno::EINTR) => 0,
            Err(e) => return Err(e.into()),
        };
        let mut taken = 0;
        self.turn = self.turn.wrapping_add(1);
        for i in 0..ready {
            // Somebody else begins each time: the budget may end with the first.
            let fd = events[(i + self.turn) % ready].data() as RawFd;
            if self.is_full {
                self.has_room(fd);
            }
            let Some((_, dst)) = self.receiving(fd) else { continue };
            let source = Source::open(fd, dst);
            let n = self.receive_from(&source, budget - taken.min(budget), sink)?;
            if n > 0 {
                self.heat(fd);
            }
            taken += n;
        }
        let aside = self.watch.aside.and_then(|fd| Some((fd, self.receiving(fd)?.1)));
        if let Some((fd, dst)) = aside {
            let source = Source::open(fd, dst);
            taken += self.receive_from(&source, budget - taken.min(budget), sink)?;
        }
        if self.hot.is_none() && self.receivers() == 1 {
            let mut sockets = self.ports.iter().filter_map(|p| p.rx.as_ref());
            if let Some(only) = sockets.next().map(|rx| rx.as_raw_fd()) {
                self.heat(only);
            }
        }
        Ok(taken)
    }

    /// Notes that a sending socket has room again, if `fd` is one.
    fn has_room(&mut self, fd: RawFd) {
        let flows = self.ports.iter_mut().flat_map(|p| &mut p.tx).chain(self.lanes.flow_mut());
        for flow in flows.filter(|flow| flow.socket.as_raw_fd() == fd) {
            flow.waits = false;
        }
        self.is_full = self.awaits_room();
    }

    /// Takes at most `budget` trains from a socket.
    pub(super) fn receive_from(
        &mut self,
        source: &Source,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> io::Result<usize> {
        for taken in 0..budget {
            let datagram = match self.receive_one(source) {
                Ok(datagram) => datagram,
                Err(Errno::EAGAIN | Errno::EINTR) => {
                    self.merging.nothing();
                    return Ok(taken);
                }
                Err(e) => {
                    // An error that an earlier packet of ours came back with.
                    self.counters.rx_errors += 1;
                    tracing::debug!("cannot receive: {e}");
                    continue;
                }
            };
            let is_alone = self.merging.arrived(datagram.segment.is_some());
            let bytes = &self.inbox.bytes[..datagram.len];
            let stride = datagram.segment.unwrap_or(bytes.len()).max(1);
            let mut train = RxTrain { meta: source.meta, bytes, stride, trailer: 0, lent: None };
            let meta = &mut train.meta;
            if source.is_connected {
                self.gates.count(is_alone);
            } else {
                let Some((src, udp_sport)) = self.inbox.from() else {
                    self.counters.rx_foreign += 1;
                    continue;
                };
                if meta.dst.is_multicast() && self.is_own(src, udp_sport) {
                    self.counters.rx_own += 1;
                    continue;
                }
                self.gates.arrived(&(src, udp_sport, meta.dst), is_alone);
                (meta.src, meta.udp_sport) = (src, udp_sport);
            }
            self.counters.rx_trains += 1;
            let Header { traffic_class, hop_limit } = datagram.header;
            meta.traffic_class = traffic_class & !3;
            meta.hop_limit = hop_limit;
            meta.ecn = Ecn::from_bits(traffic_class);
            sink(&train);
        }
        Ok(budget)
    }

    #[inline]
    fn receive_one(&mut self, source: &Source) -> Result<Datagram, Errno> {
        // Merged packets must say how long each is.
        let may_be_untold = source.is_connected && self.merging.is_apart(source.fd);
        if may_be_untold && let Some(header) = self.gates.headers.known() {
            let len = self.inbox.receive_untold(source.fd)?;
            self.gates.headers.passed();
            self.counters.rx_unasked += 1;
            return Ok(Datagram { len, segment: None, header });
        }
        let (mut segment, mut header) = (None, Header::default());
        let hear = |level, kind, number| match (level, kind) {
            (libc::SOL_UDP, libc::UDP_GRO) => segment = usize::try_from(number).ok(),
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                header.traffic_class = number as u8;
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                header.hop_limit = number as u8;
            }
            _ => {}
        };
        let len = self.inbox.receive(source.fd, !source.is_connected, hear)?;
        if self.gates.is_at(source.fd) {
            self.gates.headers.said(header);
        }
        Ok(Datagram { len, segment, header })
    }
}
