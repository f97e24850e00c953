//! Sends trains.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use feroce_train::{Ecn, Path, Single, Train};
use feroce_wire::ROCE_UDP_PORT;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg};

use super::{DEFAULT_HOP_LIMIT, Outbox, UdpLink, socket_addr};
use crate::icrc::{ICRC_LEN, MAX_TRAIN_PACKETS, emit_single};
use crate::sys::{send_segments, send_to};

/// Most bytes in one datagram: what IPv4 allows.
const MAX_DATAGRAM: usize = 65_507;

/// What became of a train.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    /// It is on its way, or was lost as on any network.
    Done,
    /// The socket is full and has taken nothing.
    Full,
}

/// What the kernel made of a datagram.
#[derive(Clone, Copy)]
enum Outcome {
    Done,
    Full,
    /// Segmentation offload does not work here, or the call failed for another reason.
    Refused,
    TooLong,
    Failed(Errno),
}

impl UdpLink {
    /// Sends trains in order until the socket of one is full, and returns how many it took.
    pub(super) fn send_trains(&mut self, trains: &[Train]) -> io::Result<usize> {
        let mut taken = 0;
        while let Some(first) = trains.get(taken) {
            let together = if self.outbox.gso { run_of_packets(&trains[taken..]) } else { 1 };
            let sent = match together {
                1 => self.send_train(first)?,
                n => self.send_together(&trains[taken..taken + n])?,
            };
            if sent == Sent::Full {
                break;
            }
            taken += together;
        }
        Ok(taken)
    }

    /// Sends trains of one packet each, of one length and on one path, in one call.
    fn send_together(&mut self, trains: &[Train]) -> io::Result<Sent> {
        let Some((dest, port, flow)) = self.destination(&trains[0].path) else {
            return self.send_one_by_one(trains);
        };
        let stride = (trains[0].packet_len(0) + ICRC_LEN) as u16;
        let sport = self.ports[port].tx[flow].port;
        let Outbox { sealer, bytes, .. } = &mut self.outbox;
        let len = trains.iter().zip(0..).fold(0, |len, (train, id)| {
            len + sealer.emit(train, sport, (0, id), &mut bytes[len..])
        });
        match dest.send(&bytes[..len], Some(stride)) {
            Outcome::Done => {
                self.counters.tx_trains += 1;
                self.counters.tx_packets += trains.len() as u64;
                Ok(Sent::Done)
            }
            Outcome::Full => {
                self.counters.tx_full += 1;
                self.sockets.add_full(&mut self.ports[port].tx[flow])?;
                Ok(Sent::Full)
            }
            // Sent one by one, they arrive or fail with an error of their own.
            _ => self.send_one_by_one(trains),
        }
    }

    /// Sends every train, even if one before it was lost. A train for which the socket is full is
    /// lost, as on any network.
    fn send_one_by_one(&mut self, trains: &[Train]) -> io::Result<Sent> {
        for train in trains {
            if self.send_train(train)? == Sent::Full {
                self.counters.tx_lost += u64::from(train.count);
            }
        }
        Ok(Sent::Done)
    }

    /// Sends a packet by itself. False: it was not sent, and the caller sends it as a train, which
    /// deals with errors and full sockets.
    #[inline]
    pub(super) fn send_packet(&mut self, packet: Single<'_>) -> bool {
        let Some((dest, port, flow)) = self.destination(packet.path) else { return false };
        let sport = self.ports[port].tx[flow].port;
        let Outbox { sealer, bytes, .. } = &mut self.outbox;
        let packet_len = packet.bytes.len();
        if packet_len + ICRC_LEN > bytes.len() {
            return false;
        }
        let prefix = sealer.prefix(packet.path, sport, packet_len);
        let len = emit_single(packet.bytes, prefix, bytes);
        let is_sent = matches!(dest.send(&bytes[..len], None), Outcome::Done);
        self.counters.tx_trains += u64::from(is_sent);
        self.counters.tx_packets += u64::from(is_sent);
        is_sent
    }

    /// The way to the end of a path, with the port and the socket that packets leave from.
    fn destination(&mut self, path: &Path) -> Option<(Destination, usize, usize)> {
        self.open_flow(path);
        let (port, flow) = self.flow_of(path)?;
        let to = socket_addr(path.dst.gid, ROCE_UDP_PORT, self.interface_index());
        let dest = Destination {
            fd: self.ports[port].tx[flow].socket.as_raw_fd(),
            to,
            traffic_class: (path.traffic_class & !3) | self.ecn().to_bits(),
            hop_limit: hop_limit(path),
            is_v4: to.is_ipv4(),
        };
        Some((dest, port, flow))
    }

    fn send_train(&mut self, train: &Train) -> io::Result<Sent> {
        let len = train.total_len() + train.count as usize * ICRC_LEN;
        let fits = len <= MAX_DATAGRAM && train.count <= u32::from(MAX_TRAIN_PACKETS);
        let Some((dest, port, flow)) = self.destination(&train.path) else {
            self.counters.tx_no_address += u64::from(train.count);
            return Ok(Sent::Done);
        };
        let sport = self.ports[port].tx[flow].port;
        let (sent, outcome) = if self.outbox.gso && fits && train.count > 1 {
            self.send_offloaded(train, &dest, sport)
        } else {
            self.send_each(train, &dest, sport)
        };
        self.settle(train, sent, outcome);
        if matches!(outcome, Outcome::Full) {
            self.sockets.add_full(&mut self.ports[port].tx[flow])?;
            return Ok(Sent::Full);
        }
        Ok(Sent::Done)
    }

    /// The ECN code point of our packets.
    pub(super) fn ecn(&self) -> Ecn {
        if self.config.ecn { Ecn::Capable } else { Ecn::NotCapable }
    }

    /// Sends a train in one call. If the kernel refuses that but sends the packets one by one, it
    /// does not support the offload here, and the link does not try it again.
    fn send_offloaded(&mut self, train: &Train, dest: &Destination, sport: u16) -> (u32, Outcome) {
        let out = with_payload_aligned(&mut self.outbox.bytes);
        let len = self.outbox.sealer.emit_all(train, sport, out);
        let stride = (train.packet_len(0) + ICRC_LEN) as u16;
        match dest.send(&out[..len], Some(stride)) {
            Outcome::Done => (train.count, Outcome::Done),
            Outcome::Refused => {
                let (sent, outcome) = self.send_each(train, dest, sport);
                if sent > 0 {
                    self.outbox.gso = false;
                    self.config.log.warn(format_args!(
                        "UDP_SEGMENT refused: packets are sent one by one from now on"
                    ));
                }
                (sent, outcome)
            }
            other => (0, other),
        }
    }

    /// Sends packets one by one, and returns how many were sent. What follows a full buffer is
    /// lost, as on any network.
    fn send_each(&mut self, train: &Train, dest: &Destination, sport: u16) -> (u32, Outcome) {
        for i in 0..train.count {
            if train.packet_len(i) + ICRC_LEN > self.outbox.bytes.len() {
                return (i, Outcome::TooLong);
            }
            let len = self.outbox.sealer.emit(train, sport, (i, 0), &mut self.outbox.bytes);
            match dest.send(&self.outbox.bytes[..len], None) {
                Outcome::Done => {}
                Outcome::Full if i > 0 => return (i, Outcome::Done),
                other => return (i, other),
            }
        }
        (train.count, Outcome::Done)
    }

    /// Counts the outcome, and logs an error whose cause the user can fix.
    fn settle(&mut self, train: &Train, sent: u32, outcome: Outcome) {
        let lost = u64::from(train.count - sent);
        self.counters.tx_trains += u64::from(sent > 0);
        self.counters.tx_packets += u64::from(sent);
        match outcome {
            Outcome::Done => self.counters.tx_lost += lost,
            Outcome::Full => self.counters.tx_full += 1,
            Outcome::TooLong => {
                self.counters.tx_too_long += lost;
                if !self.outbox.warned_size {
                    self.outbox.warned_size = true;
                    self.config.log.warn(format_args!(
                        "a packet of {} bytes is longer than the way to {} allows: use a smaller \
                         path MTU",
                        train.packet_len(0),
                        train.path.dst.gid
                    ));
                }
            }
            Outcome::Refused | Outcome::Failed(_) => {
                self.counters.tx_errors += lost;
                if let Outcome::Failed(errno) = outcome {
                    self.config
                        .log
                        .debug(format_args!("sendmsg to {}: {errno}", train.path.dst.gid));
                }
            }
        }
    }
}

/// How many trains from the first on are one packet each, on one path and of one length; the last
/// may be shorter.
fn run_of_packets(trains: &[Train]) -> usize {
    let Some(first) = trains.first().filter(|t| t.count == 1) else { return 1 };
    let len = first.packet_len(0);
    let most = usize::from(MAX_TRAIN_PACKETS).min(MAX_DATAGRAM / (len + ICRC_LEN)).max(1);
    let mut together = 1;
    for train in trains.iter().take(most).skip(1) {
        let next = train.packet_len(0);
        if train.count != 1 || train.path != first.path || next > len {
            break;
        }
        together += 1;
        if next < len {
            break;
        }
    }
    together
}

/// Where a datagram goes and how it is marked.
struct Destination {
    fd: i32,
    to: SocketAddr,
    traffic_class: u8,
    hop_limit: u8,
    is_v4: bool,
}

impl Destination {
    /// Sends one datagram, or a run of datagrams of `segment` bytes each.
    fn send(&self, bytes: &[u8], segment: Option<u16>) -> Outcome {
        let (ttl, tclass) = (i32::from(self.hop_limit), i32::from(self.traffic_class));
        let segment_len = segment.unwrap_or(0);
        let mut control = [ControlMessage::UdpGsoSegments(&segment_len); 3];
        let mut n = usize::from(segment.is_some());
        // The sockets have these values already; control messages give only those that differ.
        if self.traffic_class & !3 != 0 {
            control[n] = match self.is_v4 {
                true => ControlMessage::Ipv4Tos(&self.traffic_class),
                false => ControlMessage::Ipv6TClass(&tclass),
            };
            n += 1;
        }
        if self.hop_limit != DEFAULT_HOP_LIMIT {
            control[n] = match self.is_v4 {
                true => ControlMessage::Ipv4Ttl(&ttl),
                false => ControlMessage::Ipv6HopLimit(&ttl),
            };
            n += 1;
        }
        let flags = MsgFlags::MSG_DONTWAIT;
        let sent = match &control[..n] {
            // These calls do the same, with less for the kernel to read or without allocating.
            [] => send_to(self.fd, bytes, &self.to),
            [ControlMessage::UdpGsoSegments(segment)] => {
                send_segments(self.fd, bytes, &self.to, **segment)
            }
            control => {
                let bytes = [IoSlice::new(bytes)];
                sendmsg(self.fd, &bytes, control, flags, Some(&SockaddrStorage::from(self.to)))
                    .map(|_| ())
            }
        };
        match sent {
            Ok(()) => Outcome::Done,
            Err(Errno::EAGAIN) => Outcome::Full,
            Err(Errno::EIO | Errno::EOPNOTSUPP | Errno::EINVAL) if segment.is_some() => {
                Outcome::Refused
            }
            Err(Errno::EMSGSIZE) => Outcome::TooLong,
            Err(e) => Outcome::Failed(e),
        }
    }
}

/// The part of a buffer in which payload of trains begins at multiples of 16: headers are 12 bytes
/// longer than a multiple of that, and with the ICRC behind it a packet is one.
fn with_payload_aligned(buffer: &mut [u8]) -> &mut [u8] {
    let at = buffer.as_ptr().align_offset(16) + ICRC_LEN;
    &mut buffer[at..]
}

/// The hop limit of packets on a path.
pub(crate) fn hop_limit(path: &Path) -> u8 {
    if path.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { path.hop_limit }
}
