//! Trains out.

use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;

use feroce_train::{Framing, Train};
use feroce_wire::ROCE_UDP_PORT;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg};

use super::socket::ECT0;
use super::{UdpLink, socket_addr};
use crate::Sent;
use crate::icrc::{ICRC_LEN, seal_prefix};

/// What the kernel made of a datagram.
enum Outcome {
    Done,
    Full,
    /// It does not do segmentation offload here.
    NoOffload,
    TooLong,
    Failed(Errno),
}

impl UdpLink {
    pub(super) fn send_train(&mut self, train: &Train) -> io::Result<Sent> {
        let scope = self.interface_index();
        let Some(port) = self.ports.iter().find(|p| p.addr == train.path.src) else {
            self.counters.tx_errors += 1;
            return Ok(Sent::Done);
        };
        let flow = usize::from(train.path.udp_sport) % port.tx.len();
        let (socket, sport) = &port.tx[flow];
        let fd = socket.as_raw_fd();
        let to = socket_addr(train.path.dst, ROCE_UDP_PORT, scope);
        let offload = self.gso && train.count > 1;
        let len = emit_sealed(train, *sport, offload, &mut self.tx_buf);
        let stride = train.packet_len(0) + ICRC_LEN;
        let dest = Destination {
            fd,
            to: SockaddrStorage::from(to),
            traffic_class: (train.path.traffic_class & !3) | if self.config.ecn { ECT0 } else { 0 },
            hop_limit: train.path.hop_limit,
            is_v4: to.is_ipv4(),
        };
        let outcome = if offload || train.count == 1 {
            dest.send(&self.tx_buf[..len], (train.count > 1).then_some(stride as u16))
        } else {
            send_each(&dest, &self.tx_buf[..len], stride)
        };
        self.settle(train, outcome)
    }

    /// Counts what happened, and gives up offload where it does not work.
    fn settle(&mut self, train: &Train, outcome: Outcome) -> io::Result<Sent> {
        match outcome {
            Outcome::Done => {
                self.counters.tx_trains += 1;
                self.counters.tx_packets += u64::from(train.count);
            }
            Outcome::Full => {
                self.counters.tx_full += 1;
                return Ok(Sent::Full);
            }
            Outcome::NoOffload => {
                tracing::warn!("UDP_SEGMENT refused: packets are sent one by one from now on");
                self.gso = false;
                return self.send_train(train);
            }
            Outcome::TooLong => {
                self.counters.tx_errors += 1;
                if !self.warned_size {
                    self.warned_size = true;
                    tracing::warn!(
                        "a packet of {} bytes is longer than the path allows: use a smaller path \
                         MTU",
                        train.packet_len(0)
                    );
                }
            }
            Outcome::Failed(errno) => {
                self.counters.tx_errors += 1;
                tracing::debug!("sendmsg to {}: {errno}", train.path.dst);
            }
        }
        Ok(Sent::Done)
    }
}

/// Where a datagram goes and how it is marked.
struct Destination {
    fd: i32,
    to: SockaddrStorage,
    traffic_class: u8,
    hop_limit: u8,
    is_v4: bool,
}

impl Destination {
    /// Sends one datagram, or a run of datagrams of `segment` bytes each.
    fn send(&self, bytes: &[u8], segment: Option<u16>) -> Outcome {
        let (ttl, tclass) = (i32::from(self.hop_limit), i32::from(self.traffic_class));
        let mut control = [const { None }; 3];
        if let Some(segment) = &segment {
            control[0] = Some(ControlMessage::UdpGsoSegments(segment));
        }
        // The sockets have these values already; only what differs is said.
        if self.traffic_class & !3 != 0 {
            control[1] = Some(match self.is_v4 {
                true => ControlMessage::Ipv4Tos(&self.traffic_class),
                false => ControlMessage::Ipv6TClass(&tclass),
            });
        }
        if self.hop_limit != 64 {
            control[2] = Some(match self.is_v4 {
                true => ControlMessage::Ipv4Ttl(&ttl),
                false => ControlMessage::Ipv6HopLimit(&ttl),
            });
        }
        let control: Vec<_> = control.into_iter().flatten().collect();
        let iov = [IoSlice::new(bytes)];
        match sendmsg(self.fd, &iov, &control, MsgFlags::MSG_DONTWAIT, Some(&self.to)) {
            Ok(_) => Outcome::Done,
            Err(Errno::EAGAIN | Errno::ENOBUFS) => Outcome::Full,
            Err(Errno::EIO | Errno::EOPNOTSUPP | Errno::EINVAL) if segment.is_some() => {
                Outcome::NoOffload
            }
            Err(Errno::EMSGSIZE) => Outcome::TooLong,
            Err(e) => Outcome::Failed(e),
        }
    }
}

/// Sends packets one by one. What follows a full buffer is lost, as on any network.
fn send_each(dest: &Destination, bytes: &[u8], stride: usize) -> Outcome {
    for (i, packet) in bytes.chunks(stride).enumerate() {
        match dest.send(packet, None) {
            Outcome::Done => {}
            Outcome::Full if i > 0 => return Outcome::Done,
            other => return other,
        }
    }
    Outcome::Done
}

/// Writes the packets of a train one after the other, each with its ICRC, and returns the length.
fn emit_sealed(train: &Train, sport: u16, offload: bool, out: &mut [u8]) -> usize {
    let path = &train.path;
    let prefix = |len| seal_prefix(Framing::RoceV2, path.src, path.dst, sport, len);
    let longest = train.packet_len(0);
    let full = prefix(longest);
    let mut at = 0;
    for i in 0..train.count {
        let len = train.emit(i, &mut out[at..]);
        let prefix = if len == longest { full } else { prefix(len) };
        // Segments of one offloaded datagram have identifications 0, 1, 2 …
        let prefix = if offload && i > 0 { prefix.with_ipv4_id(i as u16) } else { prefix };
        let icrc = prefix.seal(&out[at..at + len]);
        at += len;
        out[at..at + ICRC_LEN].copy_from_slice(&icrc);
        at += ICRC_LEN;
    }
    at
}
