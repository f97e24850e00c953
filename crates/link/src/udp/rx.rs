//! Trains in.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};

use feroce_train::{Ecn, Framing, RxMeta, RxTrain};
use feroce_wire::Gid;
use nix::errno::Errno;
use nix::sys::epoll::{EpollEvent, EpollTimeout};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg};

use super::UdpLink;

/// Room for the control messages that [`UdpLink`] asks for.
pub(super) fn control_space() -> Vec<u8> {
    nix::cmsg_space!(i32, i32, i32)
}

/// How often in a row only the socket that had something last is asked, while there are others.
/// Whoever polls mostly waits for an answer from where the last one came from.
const MAX_STREAK: u32 = 16;

/// One datagram, or several that the kernel merged.
struct Datagram {
    len: usize,
    /// Length of each but the last, if merged.
    segment: Option<usize>,
    from: Option<SockaddrStorage>,
    traffic_class: u8,
    hop_limit: u8,
}

impl UdpLink {
    pub(super) fn receive_trains(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> io::Result<usize> {
        let only_one = self.receivers() == 1;
        let is_hot = !self.is_full && (only_one || self.streak < MAX_STREAK);
        if let Some(fd) = self.hot.filter(|_| is_hot) {
            let taken = self.receive_from(fd, budget, sink)?;
            self.streak = self.streak.saturating_add(1);
            return Ok(taken);
        }
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
            let n = self.receive_from(fd, budget - taken.min(budget), sink)?;
            if n > 0 {
                self.hot = Some(fd);
            }
            taken += n;
        }
        if self.hot.is_none() && only_one {
            let mut sockets = self.ports.iter().filter_map(|p| p.rx.as_ref());
            self.hot = sockets.next().map(|rx| rx.as_raw_fd());
        }
        Ok(taken)
    }

    /// Notes that a sending socket has room again, if `fd` is one.
    fn has_room(&mut self, fd: RawFd) {
        let flows = self.ports.iter_mut().flat_map(|p| &mut p.tx);
        for flow in flows.filter(|flow| flow.socket.as_raw_fd() == fd) {
            flow.waits = false;
        }
        self.is_full = self.ports.iter().any(|p| p.tx.iter().any(|flow| flow.waits));
    }

    /// Takes at most `budget` trains from one socket.
    fn receive_from(
        &mut self,
        fd: RawFd,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> io::Result<usize> {
        let Some(dst) = self.address_of(fd) else { return Ok(0) };
        for taken in 0..budget {
            let datagram = match self.receive_one(fd) {
                Ok(datagram) => datagram,
                Err(Errno::EAGAIN | Errno::EINTR) => return Ok(taken),
                Err(e) => {
                    // An error that an earlier packet of ours came back with.
                    self.counters.rx_errors += 1;
                    tracing::debug!("recvmsg: {e}");
                    continue;
                }
            };
            let Some((src, udp_sport)) = datagram.from.as_ref().and_then(gid_and_port) else {
                self.counters.rx_foreign += 1;
                continue;
            };
            if dst.is_multicast() && self.is_own(src, udp_sport) {
                self.counters.rx_own += 1;
                continue;
            }
            self.counters.rx_trains += 1;
            let meta = RxMeta {
                src,
                dst,
                udp_sport,
                traffic_class: datagram.traffic_class & !3,
                hop_limit: datagram.hop_limit,
                ecn: Ecn::from_bits(datagram.traffic_class),
                framing: Framing::RoceV2,
            };
            let bytes = &self.rx_buf[..datagram.len];
            let stride = datagram.segment.unwrap_or(bytes.len()).max(1);
            sink(&RxTrain { meta, bytes, stride, trailer: 0, lent: None });
        }
        Ok(budget)
    }

    fn receive_one(&mut self, fd: RawFd) -> Result<Datagram, Errno> {
        let mut iov = [IoSliceMut::new(&mut self.rx_buf)];
        let flags = MsgFlags::MSG_DONTWAIT;
        let message = recvmsg::<SockaddrStorage>(fd, &mut iov, Some(&mut self.cmsg_buf), flags)?;
        let mut datagram = Datagram {
            len: message.bytes,
            segment: None,
            from: message.address,
            traffic_class: 0,
            hop_limit: 0,
        };
        for control in message.cmsgs()? {
            match control {
                ControlMessageOwned::UdpGroSegments(n) => {
                    datagram.segment = usize::try_from(n).ok()
                }
                ControlMessageOwned::Ipv4Tos(tos) => datagram.traffic_class = tos,
                ControlMessageOwned::Ipv6TClass(tc) => datagram.traffic_class = tc as u8,
                ControlMessageOwned::Ipv4Ttl(ttl) => datagram.hop_limit = ttl as u8,
                ControlMessageOwned::Ipv6HopLimit(limit) => datagram.hop_limit = limit as u8,
                _ => {}
            }
        }
        Ok(datagram)
    }
}

/// The sender of a datagram.
fn gid_and_port(addr: &SockaddrStorage) -> Option<(Gid, u16)> {
    let addr = match (addr.as_sockaddr_in(), addr.as_sockaddr_in6()) {
        (Some(v4), _) => SocketAddr::from(std::net::SocketAddrV4::from(*v4)),
        (_, Some(v6)) => SocketAddr::from(std::net::SocketAddrV6::from(*v6)),
        _ => return None,
    };
    let gid = match addr.ip() {
        std::net::IpAddr::V4(ip) => Gid::from_ipv4(ip.octets()),
        std::net::IpAddr::V6(ip) => Gid(ip.octets()),
    };
    Some((gid, addr.port()))
}
