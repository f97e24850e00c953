//! A socket for the one peer that short packets go to.
//!
//! For a packet that leaves from a connected socket, the kernel need not look for the way: between
//! two ends of one machine that is a tenth of the latency of a short message. But its
//! identification is not zero. It counts up from a number that the kernel chose when the socket was
//! connected, and the ICRC covers it. The kernel tells whoever asks when a packet has left, and
//! shows the packet, headers and all: a datagram without content is sent first to learn the number,
//! and another to see that it counts. Now and then it is looked at again.
//!
//! Only packets that go by themselves take the lane, so that the number is always known; and only
//! while there is little else, so that there is little that they could overtake on their way.
//! Whatever goes wrong closes it, and they go from the socket that is not connected, as before.

use std::io;
use std::os::fd::AsRawFd;

use feroce_train::{Framing, Path, Single};
use feroce_wire::icrc::IcrcPrefix;
use feroce_wire::{Gid, Ipv4, ROCE_UDP_PORT, Udp};
use socket2::Socket;

use super::{DEFAULT_HOP_LIMIT, UdpConfig, UdpLink, socket, socket_addr};
use crate::icrc::{ICRC_LEN, emit_single, seal_prefix};
use crate::sys::{receive_shown, send, set_int};

/// How many packets by themselves on one path it takes.
const ALONE: u32 = 256;
/// How many of those one train counts. The acknowledgement behind one message of a ping-pong in
/// sixteen, or more, should change nothing.
const COMPANY: u32 = 8;
/// A lane that could not be opened so often is not tried again.
pub(super) const MOST_FAILURES: u32 = 8;
/// After how many packets the identification is looked at again.
const LOOK_AFTER: u32 = 1 << 16;

/// Who gets a lane.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// Where packets go by themselves.
    path: Path,
    /// How much speaks for a lane to there, up to [`ALONE`].
    alone: u32,
    lane: Option<Lane>,
    /// How often there could not be one.
    failures: u32,
}

impl Lanes {
    /// A train was sent.
    #[inline]
    pub(super) fn sent_train(&mut self) {
        self.alone = self.alone.saturating_sub(COMPANY);
        if self.alone == 0 && self.lane.is_some() {
            self.close();
        }
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
    /// The identification of the next packet, and how far the one after is from it.
    next: u16,
    step: u16,
    /// How many packets go before it is looked at again.
    left: u32,
}

impl Lane {
    /// From `from`, which is not connected, to the end of a path.
    fn new(config: &UdpConfig, path: Path, from: &Socket, sport: u16) -> io::Result<Self> {
        let scope = config.interface.as_ref().map_or(0, |(_, index)| *index);
        let socket = socket::open_sender(config, path.src, scope)?;
        socket::bind_beside(&socket, from)?;
        socket.connect(&socket_addr(path.dst, ROCE_UDP_PORT, scope).into())?;
        let prefix = (0, seal_prefix(Framing::RoceV2, path.src, path.dst, sport, 0));
        let mut lane =
            Self { dst: path.dst, socket, sport, prefix, next: 0, step: 0, left: LOOK_AFTER };
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

    /// Whether it is known what identification the next packet has.
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

    /// Sends a packet that was sealed for the identification `next`.
    #[inline]
    fn send(&mut self, packet: &[u8]) -> bool {
        self.next = self.next.wrapping_add(self.step);
        send(self.socket.as_raw_fd(), packet).is_ok()
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
    /// Sends a packet by itself if its path has a lane, or has deserved one.
    #[inline]
    pub(super) fn send_by_lane(&mut self, packet: &mut Single<'_>) -> bool {
        if self.lanes.path != *packet.path {
            self.lanes.close();
            self.lanes.path = *packet.path;
        }
        self.lanes.alone = (self.lanes.alone + 1).min(ALONE);
        if self.lanes.lane.is_none() && self.lanes.alone == ALONE {
            self.open_lane();
        }
        let Some(lane) = &mut self.lanes.lane else { return false };
        if packet.len + ICRC_LEN > self.tx_buf.len() {
            return false;
        }
        if lane.prefix.0 != packet.len {
            let prefix = self.sealer.prefix(packet.path, lane.sport, packet.len);
            lane.prefix = (packet.len, prefix);
        }
        let is_sent = lane.is_known() && {
            let prefix = lane.prefix.1.with_ipv4_id(lane.next);
            let len = emit_single(packet, prefix, &mut self.tx_buf);
            lane.send(&self.tx_buf[..len])
        };
        if !is_sent {
            self.lanes.close();
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
        let flow = self.flow_of(&path).filter(|_| is_plain && self.lanes.failures < MOST_FAILURES);
        let Some((port, flow)) = flow else { return };
        let flow = &self.ports[port].tx[flow];
        match Lane::new(&self.config, path, &flow.socket, flow.port) {
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
