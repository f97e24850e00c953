//! A layer that records passing packets in a pcapng file, for Wireshark and similar tools.
//!
//! Links do not have the headers below the transport, so the layer rebuilds them. They are those on
//! the network, as far as a user of sockets can know them. It cannot know the identification of
//! packets that were damaged on the way or left the sender one by one, nor the UDP checksum, which
//! is recorded as 0 for "none".

mod erf;
mod format;

use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::path::Path as FilePath;
use std::sync::Arc;

use feroce_train::{Framing, Instant, RxMeta, RxTrain, Single, Train};
use feroce_wire::{Ethernet, Frame, Gid, Grh, IbFrame, Ipv4, Ipv6, Net, TooLong, Udp, VlanTag};

use crate::describe::describe;
use crate::icrc::{Covered, ICRC_LEN, Ids};
use crate::output::{Kind, OutputFile};
use crate::{
    Carrier, Control, FaultSwitch, LinkCounters, Logger, annotate, each_packet, forward_to_inner,
    impl_layer,
};
use format::{Direction, LinkType};

/// How a [`Pcap`] records.
#[derive(Clone, Debug)]
pub struct PcapConfig {
    /// Name of the interface in the file.
    pub interface: String,
    /// What [`Instant::ZERO`] is in nanoseconds since 1970: the layer has no clock.
    pub epoch_ns: u64,
    /// How most packets are framed; those of another framing get an interface of their own in the
    /// file. RoCEv1 frames get made-up Ethernet addresses; packets of InfiniBand get their VCRC,
    /// and are in records of ERF.
    pub framing: Framing,
    /// Bytes to collect before they are written.
    pub buffer: usize,
    /// Longest time in nanoseconds that a packet stays in the buffer, if the layer is called.
    pub flush_ns: u64,
    /// Where messages go.
    pub log: Logger,
}

impl Default for PcapConfig {
    fn default() -> Self {
        Self {
            interface: "feroce".to_owned(),
            epoch_ns: 0,
            framing: Framing::RoceV2,
            buffer: 256 << 10,
            flush_ns: 100_000_000,
            log: Logger::default(),
        }
    }
}

/// Records the packets that pass, each with a comment that says what it is.
///
/// A file that can no longer be written ends the recording, not the traffic.
pub struct Pcap<C> {
    inner: C,
    recorder: Recorder,
    faults: Option<Arc<FaultSwitch>>,
}

/// A capture of packets that the caller has from somewhere.
pub struct PcapFile {
    recorder: Recorder,
}

impl PcapFile {
    /// Begins a file, as [`Pcap::create`] does.
    pub fn create(file: impl AsRef<FilePath>, config: PcapConfig) -> io::Result<Self> {
        Ok(Self { recorder: Recorder::new(create(file.as_ref())?, config)? })
    }

    /// Records packets, which have their ICRCs.
    pub fn record(&mut self, now: Instant, direction: crate::Direction, train: &RxTrain<'_>) {
        let direction = match direction {
            crate::Direction::Sent => Direction::Out,
            crate::Direction::Received => Direction::In,
        };
        self.recorder.record(now, direction, train, &[]);
    }

    /// Writes what is still in the buffer.
    pub fn flush(&mut self) -> io::Result<()> {
        self.recorder.write_out()
    }

    /// Records an IP packet, which `write` appends, with a comment.
    pub(crate) fn raw(
        &mut self,
        now: Instant,
        direction: crate::Direction,
        comment: &str,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let direction = match direction {
            crate::Direction::Sent => Direction::Out,
            crate::Direction::Received => Direction::In,
        };
        self.recorder.comment.clear();
        self.recorder.comment.push_str(comment);
        let framing = self.recorder.config.framing;
        self.recorder.add(now, direction, framing, write);
    }

    /// When what is in the buffer should be written.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.recorder.deadline()
    }

    /// Writes what has been in the buffer for long.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.recorder.handle_timeout(now);
    }

    /// Writes what is still in the buffer; the recording ends if that fails.
    pub(crate) fn write_or_stop(&mut self) {
        self.recorder.write_or_stop();
    }

    /// The file is another process's: writes nothing any more.
    pub(crate) fn abandon(&mut self) {
        self.recorder.out = None;
    }

    pub(crate) fn counters(&self) -> LinkCounters {
        self.recorder.counters()
    }
}

impl fmt::Debug for PcapFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PcapFile").finish_non_exhaustive()
    }
}

fn create(file: &FilePath) -> io::Result<OutputFile> {
    OutputFile::create(file, Kind { name: "capture", is_ours: format::is_ours })
}

impl<C: Carrier> Pcap<C> {
    /// Records what passes through `inner` in a new file. A capture of an earlier run is
    /// overwritten, any other file is not. If another device writes to the file, this one takes a
    /// name with a number: `run-2.pcapng`.
    pub fn create(inner: C, file: impl AsRef<FilePath>, config: PcapConfig) -> io::Result<Self> {
        Self::new(inner, create(file.as_ref())?, config)
    }

    /// Records what passes through `inner`.
    pub fn new(inner: C, out: impl Write + Send + 'static, config: PcapConfig) -> io::Result<Self> {
        Ok(Self { inner, recorder: Recorder::new(out, config)?, faults: None })
    }

    /// Says in comments what a [`Fault`](crate::Fault) above with this switch does to packets.
    #[must_use]
    pub fn with_faults(mut self, switch: Arc<FaultSwitch>) -> Self {
        self.faults = Some(switch);
        self
    }

    /// Writes what is still in the buffer.
    pub fn flush(&mut self) -> io::Result<()> {
        self.recorder.write_out()
    }
}

impl<L: fmt::Debug> fmt::Debug for Pcap<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pcap").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// The file, and what is not yet in it.
struct Recorder {
    config: PcapConfig,
    /// Nothing after it has failed.
    out: Option<Box<dyn Write + Send>>,
    pending: Vec<u8>,
    /// When the oldest packet in `pending` passed.
    oldest: Option<Instant>,
    /// A packet on its way out.
    transport: Vec<u8>,
    comment: String,
    /// What faults do to the next packet.
    marks: Vec<&'static str>,
    packets: u64,
    /// Packets that are not in the file because it failed.
    missed: u64,
    /// The framing of each interface in the file. A packet of another one adds its own.
    interfaces: Vec<Framing>,
}

impl Recorder {
    fn new(out: impl Write + Send + 'static, config: PcapConfig) -> io::Result<Self> {
        let mut pending = Vec::with_capacity(config.buffer + (16 << 10));
        format::section_header(&mut pending, format::APPLICATION);
        format::interface(&mut pending, link_type(config.framing), &config.interface);
        let mut recorder = Self {
            interfaces: vec![config.framing],
            config,
            out: Some(Box::new(out)),
            pending,
            oldest: None,
            transport: Vec::new(),
            comment: String::new(),
            marks: Vec::new(),
            packets: 0,
            missed: 0,
        };
        recorder.write_out()?;
        Ok(recorder)
    }

    /// `meta` is what the headers of its packets say.
    fn sent(&mut self, now: Instant, meta: RxMeta, train: &Train) {
        let covered = Covered::from(&meta);
        let flow_label = train.path.flow_label;
        let headers = Headers { flow_label, ..Headers::of_meta(&meta) };
        let mut transport = std::mem::take(&mut self.transport);
        each_packet(train, &mut transport, |i, bytes| {
            let mut prefix = covered.prefix(bytes.len());
            let mut id = 0;
            if covered.is_ipv4() {
                id = i as u16;
                prefix = prefix.with_ipv4_id(id);
            }
            if meta.framing == Framing::InfiniBand {
                let frame = erf::frame(&meta, flow_label, bytes, prefix.icrc(bytes));
                return self.link_packet(now, Direction::Out, frame);
            }
            self.packet(now, Direction::Out, headers.frame(id, bytes, prefix.icrc(bytes)));
        });
        self.transport = transport;
    }

    /// Records packets that have their ICRCs.
    fn record(
        &mut self,
        now: Instant,
        direction: Direction,
        train: &RxTrain<'_>,
        marks: &[(usize, &'static str)],
    ) {
        let meta = &train.meta;
        let mut ids = Ids::default();
        for (i, packet) in train.bytes.chunks(train.stride.max(1)).enumerate() {
            self.marks.extend(marks.iter().filter(|(place, _)| *place == i).map(|(_, mark)| mark));
            let (transport, icrc) = packet.split_last_chunk().unwrap_or((packet, &[0; ICRC_LEN]));
            if meta.framing == Framing::InfiniBand {
                let frame = erf::frame(meta, 0, transport, u32::from_le_bytes(*icrc));
                self.link_packet(now, direction, frame);
                continue;
            }
            let covered = Covered::from(meta);
            let mut id = 0;
            if covered.is_ipv4() {
                let prefix = covered.prefix(transport.len());
                id = ids.find(&prefix, transport, *icrc, i as u16).unwrap_or(i as u16);
            }
            let frame = Headers::of_meta(meta).frame(id, transport, u32::from_le_bytes(*icrc));
            self.packet(now, direction, frame);
        }
    }

    /// Prepares the comment of a packet.
    fn describe(&mut self, transport: &[u8]) {
        let marks = self.marks.drain(..);
        self.comment.clear();
        if self.out.is_none() {
            return;
        }
        let _ = write!(self.comment, "{}", describe(transport));
        marks.for_each(|mark| self.comment.extend([", ", mark]));
    }

    fn packet(&mut self, now: Instant, direction: Direction, frame: Frame<'_>) {
        self.describe(frame.transport);
        let framing = match frame.net {
            Net::Grh(_) => Framing::RoceV1,
            Net::V4(..) | Net::V6(..) => Framing::RoceV2,
        };
        self.add(now, direction, framing, |out| {
            let start = out.len();
            out.resize(start + MAX_HEADERS + frame.transport.len(), 0);
            let len = frame.emit(&mut out[start..]).unwrap_or(0);
            out.truncate(start + len);
        });
    }

    /// Records a packet of an InfiniBand link; one that no link can carry counts as missed.
    fn link_packet(
        &mut self,
        now: Instant,
        direction: Direction,
        frame: Result<IbFrame<'_>, TooLong>,
    ) {
        let Ok(frame) = frame else {
            self.missed += 1;
            return;
        };
        self.describe(frame.transport);
        let nanos = self.config.epoch_ns.saturating_add(now.as_nanos());
        let framing = Framing::InfiniBand;
        self.add(now, direction, framing, |out| erf::record(out, nanos, &frame));
    }

    /// Adds a packet, which `write` appends, with the comment that was prepared.
    fn add(
        &mut self,
        now: Instant,
        direction: Direction,
        framing: Framing,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        if self.out.is_none() {
            self.missed += 1;
            return;
        }
        let nanos = self.config.epoch_ns.saturating_add(now.as_nanos());
        let known = self.interfaces.iter().position(|known| *known == framing);
        let interface = known.unwrap_or_else(|| {
            format::interface(&mut self.pending, link_type(framing), &self.config.interface);
            self.interfaces.push(framing);
            self.interfaces.len() - 1
        });
        let from = (interface as u32, nanos);
        format::packet(&mut self.pending, from, direction, &self.comment, write);
        self.packets += 1;
        self.oldest.get_or_insert(now);
        if self.pending.len() >= self.config.buffer {
            self.write_or_stop();
        }
    }

    fn counters(&self) -> LinkCounters {
        vec![("pcap_packets", self.packets), ("pcap_missed", self.missed)]
    }

    /// When what is in the buffer should be written.
    fn deadline(&self) -> Option<Instant> {
        self.oldest.map(|at| at.plus_nanos(self.config.flush_ns))
    }

    fn handle_timeout(&mut self, now: Instant) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.write_or_stop();
        }
    }

    fn write_or_stop(&mut self) {
        if let Err(e) = self.write_out() {
            self.config.log.warn(format_args!("the capture ends here: {e}"));
            self.out = None;
        }
    }

    fn write_out(&mut self) -> io::Result<()> {
        self.oldest = None;
        let Some(out) = &mut self.out else { return Ok(()) };
        let result = out.write_all(&self.pending).and_then(|()| out.flush());
        self.pending.clear();
        result.map_err(|e| {
            let text = format!("cannot write the capture: {e}");
            annotate(e, text)
        })
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.write_or_stop();
    }
}

/// What the packets of a framing begin with in the file.
fn link_type(framing: Framing) -> LinkType {
    match framing {
        Framing::RoceV2 => LinkType::RawIp,
        Framing::RoceV1 => LinkType::Ethernet,
        Framing::InfiniBand => LinkType::Erf,
    }
}

/// Room for everything around the transport packet.
const MAX_HEADERS: usize = 128;

/// What goes into the headers below the transport.
struct Headers {
    framing: Framing,
    src: Gid,
    dst: Gid,
    udp_sport: u16,
    flow_label: u32,
    traffic_class: u8,
    hop_limit: u8,
    /// VLAN priority.
    sl: u8,
}

impl Headers {
    fn of_meta(meta: &RxMeta) -> Self {
        Self {
            framing: meta.framing,
            src: meta.src.gid,
            dst: meta.dst.gid,
            udp_sport: meta.udp_sport,
            flow_label: 0,
            traffic_class: meta.traffic_class | meta.ecn.to_bits(),
            hop_limit: meta.hop_limit,
            sl: meta.sl,
        }
    }

    fn frame<'a>(&self, id: u16, transport: &'a [u8], icrc: u32) -> Frame<'a> {
        let len = u16::try_from(transport.len() + ICRC_LEN).unwrap_or(u16::MAX);
        let frame = Frame { eth: None, net: self.net(id, len), transport, icrc, trailer: &[] };
        match self.framing {
            Framing::RoceV2 => frame,
            // Addresses that are locally administered, and differ. Packets of InfiniBand links are
            // recorded without Ethernet.
            Framing::RoceV1 | Framing::InfiniBand => {
                let mac = |gid: Gid| [2, 0, 0, 0, gid.0[14], gid.0[15]];
                let frame = frame.on_ethernet(mac(self.src), mac(self.dst));
                // The VLAN of a tag is not known here, and its priority is.
                let vlan = (self.sl > 0).then(|| VlanTag(u16::from(self.sl) << 13));
                Frame { eth: frame.eth.map(|eth| Ethernet { vlan, ..eth }), ..frame }
            }
        }
    }

    /// The network header of a packet of `len` bytes, ICRC included.
    fn net(&self, id: u16, len: u16) -> Net {
        let (dscp, ecn) = (self.traffic_class >> 2, self.traffic_class & 3);
        let udp_len = len.saturating_add(Udp::LEN as u16);
        let udp = Udp::roce(self.udp_sport, udp_len);
        match (self.framing, self.src.as_ipv4(), self.dst.as_ipv4()) {
            (Framing::RoceV2, Some(src), Some(dst)) => {
                let ip = Ipv4::udp(src, dst, udp_len);
                Net::V4(Ipv4 { id, dscp, ecn, ttl: self.hop_limit, ..ip }, udp)
            }
            (Framing::RoceV2, ..) => {
                let ip = Ipv6::udp(self.src.0, self.dst.0, udp_len);
                let (hop_limit, flow_label) = (self.hop_limit, self.flow_label);
                Net::V6(Ipv6 { dscp, ecn, hop_limit, flow_label, ..ip }, udp)
            }
            _ => {
                let grh = Grh::new(self.src, self.dst, len);
                let (traffic_class, flow_label) = (self.traffic_class, self.flow_label);
                Net::Grh(Grh { traffic_class, flow_label, hop_limit: self.hop_limit, ..grh })
            }
        }
    }
}

impl_layer!(Pcap);

impl<C: Carrier> Carrier for Pcap<C> {
    forward_to_inner!();

    fn control(&mut self, control: Control<'_>) -> io::Result<()> {
        match control {
            Control::Exit => self.recorder.write_or_stop(),
            // The parent writes what waits.
            Control::Fork => self.recorder.out = None,
            Control::Addresses(_) | Control::Join(_) | Control::Leave(_) => {}
        }
        self.inner.control(control)
    }

    fn send(&mut self, now: Instant, trains: &[Train]) -> io::Result<usize> {
        let taken = self.inner.send(now, trains)?;
        for train in &trains[..taken] {
            let meta = self.inner.headers(&train.path);
            self.recorder.sent(now, meta, train);
        }
        self.recorder.handle_timeout(now);
        Ok(taken)
    }

    fn send_single(&mut self, _: Single<'_>) -> bool {
        false
    }

    fn receive(
        &mut self,
        now: Instant,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> io::Result<usize> {
        let (recorder, faults) = (&mut self.recorder, self.faults.as_deref());
        let taken = self.inner.receive(now, budget, &mut |train| {
            // What happens to its packets is decided above.
            sink(train);
            let marks = faults.map(FaultSwitch::marks).unwrap_or_default();
            recorder.record(now, Direction::In, train, &marks);
        })?;
        self.recorder.handle_timeout(now);
        Ok(taken)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        [self.inner.poll_timeout(), self.recorder.deadline()].into_iter().flatten().min()
    }

    fn counters(&self) -> LinkCounters {
        let mut counters = self.inner.counters();
        counters.extend(self.recorder.counters());
        counters
    }
}
