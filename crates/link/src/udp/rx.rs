//! Receives trains.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use feroce_train::{Ecn, Framing, RxMeta, RxTrain};
use nix::errno::Errno;
use nix::sys::epoll::EpollEvent;

use super::UdpLink;
use super::epoll_set::{MAX_READY, Source};

/// One datagram, or several that the kernel merged, with what its control messages say.
struct Datagram {
    len: usize,
    /// Length of each datagram but the last, if the kernel merged several.
    segment: Option<usize>,
    /// Including the ECN bits.
    traffic_class: u8,
    hop_limit: u8,
}

impl UdpLink {
    pub(super) fn receive_trains(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> io::Result<usize> {
        match self.sockets.next() {
            Some(source) => Ok(self.receive_from(source, budget, sink)),
            None => self.receive_from_all(budget, sink),
        }
    }

    /// Takes packets from every socket that has some.
    fn receive_from_all(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> io::Result<usize> {
        let mut events = [EpollEvent::empty(); MAX_READY];
        let (ready, first) = self.sockets.ready(&mut events)?;
        let mut taken = 0;
        for i in 0..ready {
            let fd = events[(i + first) % ready].data() as RawFd;
            match self.source(fd) {
                Some(source) => {
                    let n = self.receive_from(source, budget.saturating_sub(taken), sink);
                    if n > 0 {
                        self.sockets.hit(source);
                    }
                    taken += n;
                }
                None => self.has_room(fd),
            }
        }
        Ok(taken)
    }

    /// The receiving socket with this descriptor.
    fn source(&self, fd: RawFd) -> Option<Source> {
        let ports = self.ports.iter().filter_map(|p| Some((p.rx.as_ref()?, p.addr)));
        let mut all = ports.chain(self.groups.iter().map(|g| (&g.rx, g.gid)));
        let (_, dst) = all.find(|(socket, _)| socket.as_raw_fd() == fd)?;
        Some(Source { fd, dst })
    }

    /// Notes that the sending socket with this descriptor has room again.
    fn has_room(&mut self, fd: RawFd) {
        let flows = self.ports.iter_mut().flat_map(|p| &mut p.tx);
        for flow in flows.filter(|flow| flow.socket.as_raw_fd() == fd) {
            flow.waits = false;
        }
    }

    /// Takes at most `budget` trains from a socket.
    fn receive_from(
        &mut self,
        source: Source,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> usize {
        for taken in 0..budget {
            let datagram = match self.receive_one(source.fd) {
                Ok(datagram) => datagram,
                Err(Errno::EAGAIN | Errno::EINTR) => return taken,
                Err(e) => {
                    // The kernel reports an ICMP error for a packet that was sent earlier.
                    self.counters.rx_errors += 1;
                    self.config.log.debug(format_args!("recvmsg: {e}"));
                    continue;
                }
            };
            let Some((src, udp_sport)) = self.inbox.from() else {
                self.counters.rx_foreign += 1;
                continue;
            };
            if source.dst.is_multicast() && self.is_own(src, udp_sport) {
                self.counters.rx_own += 1;
                continue;
            }
            self.counters.rx_trains += 1;
            let bytes = &self.inbox.bytes[..datagram.len];
            let stride = datagram.segment.unwrap_or(bytes.len()).max(1);
            let meta = RxMeta {
                src: src.into(),
                dst: source.dst.into(),
                udp_sport,
                traffic_class: datagram.traffic_class & !3,
                hop_limit: datagram.hop_limit,
                ecn: Ecn::from_bits(datagram.traffic_class),
                framing: Framing::RoceV2,
                sl: 0,
            };
            sink(&RxTrain { meta, bytes, stride, trailer: 0, remote: None });
        }
        budget
    }

    #[inline]
    fn receive_one(&mut self, fd: RawFd) -> Result<Datagram, Errno> {
        let (mut segment, mut traffic_class, mut hop_limit) = (None, 0, 0);
        let len = self.inbox.receive(fd, |level, kind, number| match (level, kind) {
            (libc::SOL_UDP, libc::UDP_GRO) => segment = usize::try_from(number).ok(),
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                traffic_class = number as u8;
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                hop_limit = number as u8;
            }
            _ => {}
        })?;
        Ok(Datagram { len, segment, traffic_class, hop_limit })
    }
}
