//! A socket for whoever sends to one peer.
//!
//! For what leaves from a connected socket, the kernel need not look for the way: between two ends
//! of one machine that is a tenth of the latency of a short message. But the identification of its
//! packets is not zero. It counts up from a number that the kernel chose when the socket was
//! connected, by one with each call, and from there within a train; and the ICRC covers it. The
//! kernel tells whoever asks when a packet has left, and shows the packet, headers and all: a
//! datagram without content is sent first to learn the number, and another to see that it counts.
//! After the first train, and now and then, it is looked at again.
//!
//! While there is a lane, all that goes its way takes it, in order. Whatever goes wrong closes it,
//! and what follows leaves from the socket that is not connected, as before.

use std::io;
use std::os::fd::AsRawFd;

use feroce_train::{Framing, Path, Single};
use feroce_wire::icrc::IcrcPrefix;
use feroce_wire::{Gid, Ipv4, ROCE_UDP_PORT, Udp};
use socket2::Socket;

use super::tx::with_payload_aligned;
use super::{DEFAULT_HOP_LIMIT, UdpConfig, UdpLink, socket, socket_addr};
use crate::icrc::{ICRC_LEN, Sealer, emit_single, seal_prefix};
use crate::sys::{receive_shown, send, send_segments, set_int};

/// How many calls in a row on one path it takes.
const ALONE: u32 = 256;
/// Each failure doubles that, so often.
const DOUBLINGS: u32 = 8;
/// After how many calls the identification is looked at again.
const LOOK_AFTER: u32 = 1 << 16;

/// Who gets a lane.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// Where the last calls sent to.
    path: Path,
    /// How many did.
    alone: u32,
    lane: Option<Lane>,
    /// How often one could not be opened, or did not work.
    failures: u32,
}

impl Lanes {
    /// Whether enough speaks for a lane.
    #[inline]
    fn is_deserved(&self) -> bool {
        self.alone >= ALONE << self.failures.min(DOUBLINGS)
    }

    /// There is none, and more must speak for the next.
    #[cold]
    fn fail(&mut self) {
        self.close();
        self.failures += 1;
    }

    /// Whatever goes anywhere goes from the socket of its flow.
    #[cold]
    pub(super) fn close(&mut self) {
        (self.alone, self.lane) = (0, None);
    }
}

/// A connected socket.
#[derive(Debug)]
struct Lane {
    /// Whom it is connected to.
    dst: Gid,
    socket: Socket,
    sport: u16,
    /// Length of the last packet, and what its ICRC began with.
    prefix: (usize, IcrcPrefix),
    /// The identification of what the next call sends, and how far that of the one after is from
    /// it.
    next: u16,
    step: u16,
    /// How many calls go before it is looked at again.
    left: u32,
    /// Whether it was, since a train was sent.
    counts_trains: bool,
}

impl Lane {
    /// From `from`, which is not connected, to the end of a path.
    fn new(config: &UdpConfig, path: Path, from: &Socket, sport: u16) -> io::Result<Self> {
        let scope = config.interface.as_ref().map_or(0, |(_, index)| *index);
        let socket = socket::open_sender(config, path.src, scope)?;
        socket::bind_beside(&socket, from)?;
        socket.connect(&socket_addr(path.dst, ROCE_UDP_PORT, scope).into())?;
        let prefix = (0, seal_prefix(Framing::RoceV2, path.src, path.dst, sport, 0));
        let mut lane = Self {
            dst: path.dst,
            socket,
            sport,
            prefix,
            next: 0,
            step: 0,
            left: LOOK_AFTER,
            counts_trains: false,
        };
        if path.dst.as_ipv4().is_some() {
            let (first, second) = (lane.learn()?, lane.learn()?);
            lane.step = match second.wrapping_sub(first) {
                0 if first == 0 => 0,
                1 => 1,
                _ => return Err(io::Error::other("identifications do not count up")),
            };
            lane.next = second.wrapping_add(lane.step);
        }
        Ok(lane)
    }

    /// Whether it is known what identification the next call sends.
    #[inline]
    fn is_known(&mut self) -> bool {
        self.left = self.left.wrapping_sub(1);
        self.left < LOOK_AFTER || self.look()
    }

    #[cold]
    fn look(&mut self) -> bool {
        let expected = self.next;
        (self.next, self.left) = (expected.wrapping_add(self.step), LOOK_AFTER);
        self.dst.as_ipv4().is_none() || self.learn().is_ok_and(|id| id == expected)
    }

    /// Sends a packet, or a train of packets of `stride` bytes, that was sealed for the
    /// identification `next`.
    #[inline]
    fn send(&mut self, packets: &[u8], stride: Option<u16>) -> bool {
        self.next = self.next.wrapping_add(self.step);
        let fd = self.socket.as_raw_fd();
        let sent = match stride {
            None => send(fd, packets),
            Some(stride) => {
                if !self.counts_trains {
                    (self.counts_trains, self.left) = (true, 0);
                }
                send_segments(fd, packets, None, stride)
            }
        };
        sent.is_ok()
    }

    /// Sends a datagram without content, and says what identification it had.
    fn learn(&self) -> io::Result<u16> {
        let fd = self.socket.as_raw_fd();
        let ask = |flags: u32| {
            let (level, name) = (libc::SOL_SOCKET, libc::SO_TIMESTAMPING);
            set_int(&self.socket, level, name, flags as i32)
        };
        let mut packet = [0; 256];
        ask(libc::SOF_TIMESTAMPING_TX_SCHED | libc::SOF_TIMESTAMPING_SOFTWARE)?;
        let sent = send(fd, &[]);
        ask(0)?;
        sent?;
        // A device on top of another shows it twice.
        let mut id = None;
        while let Ok(len) = receive_shown(fd, &mut packet) {
            // Whatever comes before them, it ends with these headers.
            let headers = packet[..len].last_chunk::<{ Ipv4::MIN_LEN + Udp::LEN }>();
            let shown = headers.and_then(|headers| Ipv4::parse(headers).ok());
            let shown = shown.filter(|(ip, _)| Gid::from_ipv4(ip.dst) == self.dst);
            match (shown, id) {
                (Some((ip, _)), None) => id = Some(ip.id),
                (Some((ip, _)), Some(id)) if ip.id == id => {}
                _ => return Err(io::Error::other("the kernel shows other packets, too")),
            }
        }
        id.ok_or_else(|| io::Error::other("the kernel does not show what it sent"))
    }
}

impl UdpLink {
    /// Whether a path has a lane, or has deserved one. What is sent next goes there.
    #[inline]
    fn has_lane(&mut self, path: &Path) -> bool {
        if self.lanes.path != *path {
            self.lanes.close();
            self.lanes.path = *path;
        }
        self.lanes.alone = self.lanes.alone.saturating_add(1);
        if self.lanes.lane.is_none() && self.lanes.is_deserved() {
            self.open_lane();
        }
        self.lanes.lane.is_some()
    }

    /// Sends what `emit` writes for a port and an identification: packets of `stride` bytes each,
    /// or one. False: it was not sent, and there is no lane.
    pub(super) fn send_by_lane(
        &mut self,
        path: &Path,
        stride: Option<u16>,
        emit: impl FnOnce(&mut Sealer, (u16, u16), &mut [u8]) -> usize,
    ) -> bool {
        if !self.has_lane(path) {
            return false;
        }
        let Some(lane) = &mut self.lanes.lane else { return false };
        let is_sent = lane.is_known() && {
            let out = with_payload_aligned(&mut self.tx_buf);
            let len = emit(&mut self.sealer, (lane.sport, lane.next), out);
            lane.send(&out[..len], stride)
        };
        if !is_sent {
            self.lanes.fail();
        }
        is_sent
    }

    /// Sends a packet by itself if its path has a lane, or has deserved one.
    #[inline]
    pub(super) fn send_packet_by_lane(&mut self, packet: &mut Single<'_>) -> bool {
        if packet.len + ICRC_LEN > self.tx_buf.len() || !self.has_lane(packet.path) {
            return false;
        }
        let Some(lane) = &mut self.lanes.lane else { return false };
        if lane.prefix.0 != packet.len {
            let prefix = self.sealer.prefix(packet.path, lane.sport, packet.len);
            lane.prefix = (packet.len, prefix);
        }
        let is_sent = lane.is_known() && {
            let prefix = lane.prefix.1.with_ipv4_id(lane.next);
            let len = emit_single(packet, prefix, &mut self.tx_buf);
            lane.send(&self.tx_buf[..len], None)
        };
        if !is_sent {
            self.lanes.fail();
        }
        is_sent
    }

    #[cold]
    fn open_lane(&mut self) {
        self.lanes.close();
        let path = self.lanes.path;
        let is_plain = self.config.connect
            && path.traffic_class & !3 == 0
            && matches!(path.hop_limit, 0 | DEFAULT_HOP_LIMIT)
            && !path.dst.is_multicast();
        let flow = self.flow_of(&path).filter(|_| is_plain);
        let Some((port, flow)) = flow else { return };
        let flow = &self.ports[port].tx[flow];
        match Lane::new(&self.config, path, &flow.socket, flow.port) {
            Ok(lane) => {
                self.lanes.lane = Some(lane);
                self.counters.tx_lanes += 1;
            }
            Err(e) => {
                tracing::debug!("no connected socket to {}: {e}", path.dst);
                self.lanes.fail();
            }
        }
    }
}
