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
//! While there is a lane, all that goes its way takes it, in order. It is opened and closed when
//! nothing waits to leave: schedulers keep sockets apart, and do not know that the packets of two
//! are one flow. Whatever goes wrong closes it as well, and what follows leaves from the socket
//! that is not connected, as before.

use std::io;
use std::os::fd::AsRawFd;

use feroce_train::{Framing, Path, Single};
use feroce_wire::icrc::IcrcPrefix;
use feroce_wire::{Gid, Ipv4, ROCE_UDP_PORT, Udp};

use super::tx::with_payload_aligned;
use super::{DEFAULT_HOP_LIMIT, Flow, UdpConfig, UdpLink, socket, socket_addr};
use crate::Sent;
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

    /// Whatever goes anywhere goes from the socket of its flow.
    #[cold]
    fn close(&mut self) {
        (self.alone, self.lane) = (0, None);
    }

    /// What is sent goes to the end of another path. Whether that can have a lane: this one can be
    /// given up.
    #[cold]
    fn turn_to(&mut self, path: &Path) -> bool {
        let can = self.flow().is_none_or(Flow::is_idle);
        if can {
            self.close();
            self.path = *path;
        }
        can
    }

    /// The socket, if there is one.
    pub(super) fn flow(&self) -> Option<&Flow> {
        self.lane.as_ref().map(|lane| &lane.flow)
    }

    pub(super) fn flow_mut(&mut self) -> Option<&mut Flow> {
        self.lane.as_mut().map(|lane| &mut lane.flow)
    }
}

/// A connected socket.
#[derive(Debug)]
struct Lane {
    /// Whom it is connected to.
    dst: Gid,
    flow: Flow,
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
    /// From the port of `from`, which is not connected, to the end of a path.
    fn new(config: &UdpConfig, path: Path, from: &Flow) -> io::Result<Self> {
        let scope = config.interface.as_ref().map_or(0, |(_, index)| *index);
        let socket = socket::open_sender(config, path.src, scope)?;
        socket::bind_beside(&socket, &from.socket)?;
        socket.connect(&socket_addr(path.dst, ROCE_UDP_PORT, scope).into())?;
        let prefix = (0, seal_prefix(Framing::RoceV2, path.src, path.dst, from.port, 0));
        let mut lane = Self {
            dst: path.dst,
            flow: Flow { socket, port: from.port, watched: false, waits: false },
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

    /// Fails unless it is known what identification the next call sends.
    #[inline]
    fn look_if_due(&mut self) -> io::Result<()> {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => self.look(),
        }
    }

    #[cold]
    fn look(&mut self) -> io::Result<()> {
        if self.dst.as_ipv4().is_some() {
            if self.learn()? != self.next {
                return Err(io::Error::other("the kernel counts otherwise"));
            }
            self.next = self.next.wrapping_add(self.step);
        }
        self.left = LOOK_AFTER;
        Ok(())
    }

    /// Sends a packet, or a train of packets of `stride` bytes, that was sealed for the
    /// identification `next`.
    #[inline]
    fn send(&mut self, packets: &[u8], stride: Option<u16>) -> io::Result<()> {
        let fd = self.flow.socket.as_raw_fd();
        match stride {
            None => send(fd, packets)?,
            Some(stride) => {
                send_segments(fd, packets, None, stride)?;
                if !self.counts_trains {
                    (self.counts_trains, self.left) = (true, 0);
                }
            }
        }
        // The kernel does not count what it has no room for.
        self.next = self.next.wrapping_add(self.step);
        Ok(())
    }

    /// Sends a datagram without content, and says what identification it had.
    fn learn(&self) -> io::Result<u16> {
        let fd = self.flow.socket.as_raw_fd();
        let ask = |flags: u32| {
            let (level, name) = (libc::SOL_SOCKET, libc::SO_TIMESTAMPING);
            set_int(&self.flow.socket, level, name, flags as i32)
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
        if self.lanes.path != *path && !self.lanes.turn_to(path) {
            return false;
        }
        self.lanes.alone = self.lanes.alone.saturating_add(1);
        if self.lanes.lane.is_none() && self.lanes.is_deserved() {
            self.open_lane();
        }
        self.lanes.lane.is_some()
    }

    /// Sends what `emit` writes for a port and an identification: packets of `stride` bytes each,
    /// or one. `None`: it was not sent, and there is no lane.
    pub(super) fn send_by_lane(
        &mut self,
        path: &Path,
        stride: Option<u16>,
        emit: impl FnOnce(&mut Sealer, (u16, u16), &mut [u8]) -> usize,
    ) -> Option<Sent> {
        if !self.has_lane(path) {
            return None;
        }
        let lane = self.lanes.lane.as_mut()?;
        let sent = lane.look_if_due().and_then(|()| {
            let out = with_payload_aligned(&mut self.tx_buf);
            let len = emit(&mut self.sealer, (lane.flow.port, lane.next), out);
            lane.send(&out[..len], stride)
        });
        self.settle_lane(sent)
    }

    /// Sends a packet by itself if its path has a lane, or has deserved one.
    #[inline]
    pub(super) fn send_packet_by_lane(&mut self, packet: &mut Single<'_>) -> Option<Sent> {
        if packet.len + ICRC_LEN > self.tx_buf.len() || !self.has_lane(packet.path) {
            return None;
        }
        let lane = self.lanes.lane.as_mut()?;
        if lane.prefix.0 != packet.len {
            let prefix = self.sealer.prefix(packet.path, lane.flow.port, packet.len);
            lane.prefix = (packet.len, prefix);
        }
        let sent = lane.look_if_due().and_then(|()| {
            let prefix = lane.prefix.1.with_ipv4_id(lane.next);
            let len = emit_single(packet, prefix, &mut self.tx_buf);
            lane.send(&self.tx_buf[..len], None)
        });
        self.settle_lane(sent)
    }

    /// What to make of what the kernel said.
    #[inline]
    fn settle_lane(&mut self, sent: io::Result<()>) -> Option<Sent> {
        match sent {
            Ok(()) => Some(Sent::Done),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Some(Sent::Full),
            Err(e) => {
                tracing::debug!("the connected socket to {}: {e}", self.lanes.path.dst);
                self.close_lane();
                self.lanes.failures += 1;
                None
            }
        }
    }

    /// Whatever goes anywhere goes from the socket of its flow. Whoever waits for room in this one
    /// finds out by trying.
    #[cold]
    pub(super) fn close_lane(&mut self) {
        self.lanes.close();
        self.is_full = self.awaits_room();
    }

    #[cold]
    fn open_lane(&mut self) {
        self.lanes.close();
        let path = self.lanes.path;
        // Without offload, the packets of a train would leave one by one from the other socket.
        let is_plain = self.config.connect
            && self.gso
            && path.traffic_class & !3 == 0
            && matches!(path.hop_limit, 0 | DEFAULT_HOP_LIMIT)
            && !path.dst.is_multicast();
        let flow = self.flow_of(&path).filter(|_| is_plain);
        let Some((port, flow)) = flow else { return };
        let flow = &self.ports[port].tx[flow];
        if !flow.is_idle() {
            return;
        }
        match Lane::new(&self.config, path, flow) {
            Ok(lane) => {
                self.lanes.lane = Some(lane);
                self.counters.tx_lanes += 1;
            }
            Err(e) => {
                tracing::debug!("no connected socket to {}: {e}", path.dst);
                self.lanes.failures += 1;
            }
        }
    }
}
