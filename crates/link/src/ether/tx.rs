//! Sends frames.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::AsRawFd;

use feroce_train::{Path, Single, Train};
use feroce_wire::{Ethernet, GRH_NEXT_HEADER, Grh, ROCE_V1_ETHERTYPE, VlanTag};
use nix::errno::Errno;

use super::EtherLink;
use super::interface::Tags;
use super::neighbours::{Mac, Settled};
use crate::icrc::{ICRC_LEN, MAX_TRAIN_BYTES, MAX_TRAIN_PACKETS, Sealer, emit_single};
use crate::sys::{MAX_FRAMES, send_frames};
use crate::udp::hop_limit;

/// Bytes of the packets of the longest train with their ICRCs, and some to align payload.
const BUFFER: usize = MAX_TRAIN_BYTES as usize + MAX_TRAIN_PACKETS as usize * ICRC_LEN + 4096 + 64;

/// The header of a frame up to its BTH.
#[derive(Clone, Copy, Debug)]
struct Head {
    bytes: [u8; Ethernet::MAX_LEN + Grh::LEN],
    len: usize,
}

impl Head {
    /// Of packets on a path; the length of the packet is missing.
    fn new(path: &Path, src: Mac, dst: Mac, tags: Tags) -> Self {
        let priority = u16::from(path.sl & 7) << 13;
        let vlan = match tags {
            Tags::Own(vid) if vid | priority != 0 => Some(VlanTag(priority | vid)),
            Tags::Own(_) | Tags::Kernel => None,
        };
        let ethernet = Ethernet { dst, src, vlan, ethertype: ROCE_V1_ETHERTYPE };
        let grh = Grh {
            ip_version: 6,
            traffic_class: path.traffic_class,
            flow_label: path.flow_label,
            payload_len: 0,
            next_header: GRH_NEXT_HEADER,
            hop_limit: hop_limit(path),
            sgid: path.src.gid,
            dgid: path.dst.gid,
        };
        let mut bytes = [0; Ethernet::MAX_LEN + Grh::LEN];
        let at = ethernet.emit(&mut bytes).unwrap_or(0);
        if let Some(place) = bytes[at..].first_chunk_mut() {
            grh.emit(place);
        }
        Self { bytes, len: at + Grh::LEN }
    }

    /// The same for a packet of `len` bytes, ICRC included.
    fn with_packet_len(mut self, len: usize) -> Self {
        let at = self.len - Grh::LEN + 4;
        self.bytes[at..at + 2].copy_from_slice(&(len as u16).to_be_bytes());
        self
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Frames that are about to be sent.
#[derive(Debug)]
pub(super) struct Outbox {
    sealer: Sealer,
    heads: Vec<Head>,
    /// Where the packet of each head is in `bytes`.
    packets: Vec<Range<usize>>,
    bytes: Vec<u8>,
    /// How many of the frames were sent.
    sent: usize,
    /// The epoll instance reports when the socket has room.
    is_waiting: bool,
    warned_size: bool,
    warned_neighbour: bool,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            sealer: Sealer::default(),
            heads: Vec::with_capacity(MAX_FRAMES),
            packets: Vec::with_capacity(MAX_FRAMES),
            bytes: vec![0; BUFFER],
            sent: 0,
            is_waiting: false,
            warned_size: false,
            warned_neighbour: false,
        }
    }
}

impl Outbox {
    /// Whether frames were not sent yet.
    #[inline]
    pub(super) fn has_frames(&self) -> bool {
        self.sent < self.heads.len()
    }

    fn clear(&mut self) {
        (self.sent, self.is_waiting) = (0, false);
        self.heads.clear();
        self.packets.clear();
    }

    /// Writes the frames of a train.
    fn write(&mut self, train: &Train, head: Head) {
        self.clear();
        let at = self.bytes.as_ptr().align_offset(16) + ICRC_LEN;
        self.sealer.emit_all(train, 0, &mut self.bytes[at..]);
        let mut end = at;
        for i in 0..train.count {
            let len = train.packet_len(i) + ICRC_LEN;
            self.heads.push(head.with_packet_len(len));
            self.packets.push(end..end + len);
            end += len;
        }
    }

    /// A frame in two pieces.
    fn frame(&self, i: usize) -> [IoSlice<'_>; 2] {
        [IoSlice::new(self.heads[i].as_slice()), IoSlice::new(&self.bytes[self.packets[i].clone()])]
    }
}

impl EtherLink {
    /// Sends trains in order until the socket is full, and returns how many it took.
    pub(super) fn send_trains(&mut self, trains: &[Train]) -> io::Result<usize> {
        for (taken, train) in trains.iter().enumerate() {
            if !self.flush()? {
                return Ok(taken);
            }
            self.start_train(train);
            // What does not fit now leaves when there is room: the train is taken.
            self.flush()?;
        }
        Ok(trains.len())
    }

    fn start_train(&mut self, train: &Train) {
        let len = train.total_len() + train.count as usize * ICRC_LEN;
        if len > BUFFER - 64 || train.count as usize > MAX_FRAMES {
            self.counters.tx_too_long += u64::from(train.count);
            return;
        }
        let mac = self.neighbours.find(train.path.dst.gid);
        let head = Head::new(
            &train.path,
            self.interface.mac,
            mac.unwrap_or_default(),
            self.interface.tags,
        );
        self.outbox.write(train, head);
        self.counters.tx_trains += 1;
        if mac.is_none() {
            self.wait_for_neighbour(&train.path);
        }
    }

    /// Keeps the frames in the outbox until their neighbour is known.
    #[cold]
    fn wait_for_neighbour(&mut self, path: &Path) {
        let frames = (0..self.outbox.heads.len()).map(|i| {
            let [head, packet] = self.outbox.frame(i);
            [&*head, &*packet].concat()
        });
        let gid = path.dst.gid;
        let (lost, outcome) = self.neighbours.wait(gid, frames);
        self.outbox.clear();
        match outcome {
            Ok(()) => self.counters.tx_lost += lost as u64,
            Err(e) => self.lose(lost, format_args!("no route to {} ({e})", gid.to_ip())),
        }
        // The kernel may have known by the time it was asked to ask.
        self.hear();
    }

    fn lose(&mut self, frames: usize, why: std::fmt::Arguments<'_>) {
        self.counters.tx_no_neighbour += frames as u64;
        if !self.outbox.warned_neighbour {
            self.outbox.warned_neighbour = true;
            self.config.log.warn(format_args!(
                "RoCEv1 packets are lost: {why}. RoCEv1 reaches hosts on the same Ethernet only: \
                 check the address and `ip neigh show dev {}`",
                self.config.interface.0
            ));
        }
    }

    /// Takes the announcements of the kernel about neighbours, and sends what waited for them.
    pub(super) fn hear(&mut self) {
        let mut settled = Vec::new();
        self.neighbours.hear(|outcome| settled.push(outcome));
        for outcome in settled {
            match outcome {
                Settled::Found(mac, frames) => self.send_waiting(mac, frames),
                Settled::Lost(gid, lost) => {
                    self.lose(lost, format_args!("{} does not answer", gid.to_ip()));
                }
            }
        }
    }

    /// Sends frames whose neighbour is known now. What there is no room for is lost.
    fn send_waiting(&mut self, mac: Mac, mut frames: Vec<Vec<u8>>) {
        for frame in &mut frames {
            frame[..mac.len()].copy_from_slice(&mac);
        }
        let pieces: Vec<_> =
            frames.iter().map(|frame| [IoSlice::new(frame), IoSlice::new(&[])]).collect();
        let sent = send_frames(self.socket.as_raw_fd(), &pieces).unwrap_or(0);
        self.counters.tx_packets += sent as u64;
        self.counters.tx_lost += (frames.len() - sent) as u64;
    }

    /// Sends a packet by itself. False: it was not sent, and the caller sends it as a train.
    #[inline]
    pub(super) fn send_packet(&mut self, packet: Single<'_>) -> bool {
        if self.outbox.has_frames() {
            return false;
        }
        let Some(mac) = self.neighbours.find(packet.path.dst.gid) else { return false };
        let (src, tags) = (self.interface.mac, self.interface.tags);
        let len = packet.bytes.len() + ICRC_LEN;
        let head = Head::new(packet.path, src, mac, tags).with_packet_len(len);
        let outbox = &mut self.outbox;
        let Some(out) = outbox.bytes.get_mut(..len) else { return false };
        let prefix = outbox.sealer.prefix(packet.path, 0, packet.bytes.len());
        emit_single(packet.bytes, prefix, out);
        let frame = [[IoSlice::new(head.as_slice()), IoSlice::new(out)]];
        let is_sent = send_frames(self.socket.as_raw_fd(), &frame) == Ok(1);
        self.counters.tx_trains += u64::from(is_sent);
        self.counters.tx_packets += u64::from(is_sent);
        is_sent
    }

    /// Sends what is in the outbox. False: the socket is full.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        while self.outbox.has_frames() {
            let outbox = &self.outbox;
            let none = [IoSlice::new(&[]); 2];
            let mut frames = [none; MAX_FRAMES];
            let count = outbox.heads.len() - outbox.sent;
            for (frame, i) in frames.iter_mut().zip(outbox.sent..outbox.heads.len()) {
                *frame = outbox.frame(i);
            }
            match send_frames(self.socket.as_raw_fd(), &frames[..count]) {
                Ok(sent) => {
                    self.counters.tx_packets += sent as u64;
                    self.outbox.sent += sent;
                }
                Err(Errno::EAGAIN) => {
                    self.counters.tx_full += 1;
                    if !self.outbox.is_waiting {
                        self.wait_for_room(true)?;
                        self.outbox.is_waiting = true;
                    }
                    return Ok(false);
                }
                Err(e) => self.skip(e),
            }
        }
        if self.outbox.is_waiting {
            self.wait_for_room(false)?;
        }
        if !self.outbox.heads.is_empty() {
            self.outbox.clear();
        }
        Ok(true)
    }

    /// Leaves out the first frame of the outbox, which the kernel has refused.
    #[cold]
    fn skip(&mut self, e: Errno) {
        let at = self.outbox.sent;
        self.outbox.sent += 1;
        match e {
            Errno::ENOBUFS => self.counters.tx_lost += 1,
            Errno::EMSGSIZE => {
                self.counters.tx_too_long += 1;
                if !self.outbox.warned_size {
                    self.outbox.warned_size = true;
                    let len = self.outbox.packets[at].len();
                    self.config.log.warn(format_args!(
                        "a packet of {len} bytes is longer than the MTU of {} allows: use a \
                         smaller path MTU",
                        self.config.interface.0
                    ));
                }
            }
            e => {
                self.counters.tx_errors += 1;
                self.config.log.debug(format_args!("sendmmsg: {e}"));
            }
        }
    }
}
