//! A layer that writes a line about each packet that passes.

use std::fmt;
use std::io::{self, Write};
use std::path::Path as FilePath;
use std::sync::Arc;

use feroce_train::{Ecn, Instant, RxTrain, Single, Train};
use feroce_wire::Gid;

use crate::describe::{Address, describe};
use crate::icrc::ICRC_LEN;
use crate::output::{Kind, OutputFile};
use crate::{
    Carrier, Control, Direction, FaultSwitch, LinkCounters, Logger, each_packet, forward_to_inner,
    impl_layer,
};

/// Writes one readable line per packet:
///
/// ```text
/// 0.000012345 out 10.0.0.1 > 10.0.0.2 -> 0x0012ab RC SEND Only PSN 0x000123, asks for ACK, 8 bytes
/// 0.000034567 in  10.0.0.2 > 10.0.0.1 -> 0x0012aa RC ACK PSN 0x000123, MSN 1
/// ```
///
/// Times count from the first packet, or are the time of day ([`TraceFile::with_time`]). A
/// writer that fails is not written to again.
pub struct Trace<C> {
    inner: C,
    log: Log,
    faults: Option<Arc<FaultSwitch>>,
}

impl<C: Carrier> Trace<C> {
    /// Traces what passes through `inner`.
    pub fn new(inner: C, trace: TraceFile) -> Self {
        Self { inner, log: trace.log, faults: None }
    }

    /// Says what a [`Fault`](crate::Fault) above with this switch does to packets.
    #[must_use]
    pub fn with_faults(mut self, switch: Arc<FaultSwitch>) -> Self {
        self.faults = Some(switch);
        self
    }
}

/// What the first line of a trace in a file begins with.
const TITLE: &str = "# feroce trace of";

impl<L: fmt::Debug> fmt::Debug for Trace<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// Where a trace goes, and how its lines look.
pub struct TraceFile {
    log: Log,
}

impl TraceFile {
    /// Begins a new file, whose first line names `device`. A trace of an earlier run is
    /// overwritten, any other file is not. If another device writes to the file, this one takes a
    /// name with a number: `trace-2.txt`.
    pub fn create(file: impl AsRef<FilePath>, device: &str) -> io::Result<Self> {
        Ok(Self { log: Log::create(file.as_ref(), device)? })
    }

    /// A trace in no file.
    pub fn new(out: impl Write + Send + 'static) -> Self {
        Self { log: Log::new(out) }
    }

    /// Says where messages go.
    #[must_use]
    pub fn with_log(mut self, logger: Logger) -> Self {
        self.log.logger = logger;
        self
    }

    /// Begins lines with the time of day, so that those of several devices can be put in order:
    /// `epoch_ns` is what the clock of the device began at, in nanoseconds since 1970.
    #[must_use]
    pub fn with_time(mut self, epoch_ns: u64) -> Self {
        self.log.epoch_ns = Some(epoch_ns);
        self
    }

    /// Names the device and the process in every line: several write to the same place.
    #[must_use]
    pub fn with_name(mut self, device: &str) -> Self {
        self.log.name_lines(device);
        self
    }

    /// Adds a line.
    pub(crate) fn line(&mut self, now: Instant, direction: Direction, text: fmt::Arguments<'_>) {
        self.log.text(now, direction == Direction::Received, text);
    }

    /// Writes the lines.
    pub(crate) fn write_out(&mut self) {
        self.log.write_out();
    }
}

impl fmt::Debug for TraceFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceFile").finish_non_exhaustive()
    }
}

/// Where the lines go.
struct Log {
    /// Nothing after it has failed.
    out: Option<Box<dyn Write + Send>>,
    /// Lines that are not written yet. They are written together, and a line is never cut.
    lines: Vec<u8>,
    /// When the first packet passed.
    start: Option<Instant>,
    /// When the clock began, in nanoseconds since 1970; without it, times count from the start.
    epoch_ns: Option<u64>,
    /// What lines have behind their time.
    name: String,
    /// A packet on its way out.
    packet: Vec<u8>,
    logger: Logger,
}

/// Whole seconds, and the rest.
fn parts(ns: u64) -> (u64, u64) {
    (ns / 1_000_000_000, ns % 1_000_000_000)
}

/// Everything about a packet but its bytes.
struct Passing {
    now: Instant,
    is_in: bool,
    src: Gid,
    dst: Gid,
    is_congested: bool,
    /// What faults do to it, with commas before it.
    marks: String,
}

impl Log {
    fn new(out: impl Write + Send + 'static) -> Self {
        let out: Option<Box<dyn Write + Send>> = Some(Box::new(out));
        let (lines, packet, logger) = (Vec::new(), Vec::new(), Logger::default());
        let name = String::new();
        Self { out, lines, start: None, epoch_ns: None, name, packet, logger }
    }

    fn create(file: &FilePath, device: &str) -> io::Result<Self> {
        let kind = Kind { name: "trace", is_ours: |head| head.starts_with(TITLE.as_bytes()) };
        let mut out = OutputFile::create(file, kind)?;
        let title = format!("{TITLE} {device}, process {}\n", std::process::id());
        out.write_all(title.as_bytes())?;
        Ok(Self::new(out))
    }

    fn name_lines(&mut self, device: &str) {
        self.name = format!("{device}[{}] ", std::process::id());
    }

    fn line(&mut self, passing: &Passing, transport: &[u8]) {
        let mark = if passing.is_congested { " CE" } else { "" };
        let (src, dst) = (Address(passing.src), Address(passing.dst));
        let marks = &passing.marks;
        let text = format_args!("{src} > {dst}{mark} {}{marks}", describe(transport));
        self.text(passing.now, passing.is_in, text);
    }

    fn text(&mut self, now: Instant, is_in: bool, text: fmt::Arguments<'_>) {
        let start = *self.start.get_or_insert(now);
        let (direction, name) = (if is_in { "in " } else { "out" }, &self.name);
        // Writing to memory does not fail.
        let _ = match self.epoch_ns {
            None => {
                let (s, ns) = parts(now.nanos_since(start));
                writeln!(self.lines, "{s}.{ns:09} {name}{direction} {text}")
            }
            Some(epoch) => {
                let (s, ns) = parts(epoch.saturating_add(now.as_nanos()));
                let (h, m, s) = (s / 3600 % 24, s / 60 % 60, s % 60);
                writeln!(self.lines, "{h:02}:{m:02}:{s:02}.{ns:09} {name}{direction} {text}")
            }
        };
    }

    fn sent(&mut self, now: Instant, train: &Train) {
        let (src, dst) = (train.path.src.gid, train.path.dst.gid);
        let passing =
            Passing { now, is_in: false, src, dst, is_congested: false, marks: String::new() };
        let mut packet = std::mem::take(&mut self.packet);
        each_packet(train, &mut packet, |_, bytes| self.line(&passing, bytes));
        self.packet = packet;
    }

    fn received(&mut self, now: Instant, train: &RxTrain<'_>, marks: &[(usize, &'static str)]) {
        let meta = &train.meta;
        let is_congested = meta.ecn == Ecn::Congested;
        let (src, dst) = (meta.src.gid, meta.dst.gid);
        for (place, packet) in train.bytes.chunks(train.stride.max(1)).enumerate() {
            let marks = marks.iter().filter(|(at, _)| *at == place);
            let marks = marks.flat_map(|(_, mark)| [", ", mark]).collect();
            let passing = Passing { now, is_in: true, src, dst, is_congested, marks };
            let len = packet.len().saturating_sub(ICRC_LEN);
            self.line(&passing, packet.get(..len).unwrap_or(&[]));
        }
    }

    /// Writes the lines, unless writing has failed before.
    fn write_out(&mut self) {
        if let Some(out) = &mut self.out
            && let Err(e) = out.write_all(&self.lines)
        {
            self.logger.warn(format_args!("the trace ends here: {e}"));
            self.out = None;
        }
        self.lines.clear();
    }
}

impl_layer!(Trace);

impl<C: Carrier> Carrier for Trace<C> {
    forward_to_inner!();

    fn control(&mut self, control: Control<'_>) -> io::Result<()> {
        if control == Control::Fork {
            // The file is the parent's.
            self.log.out = None;
        }
        self.inner.control(control)
    }

    fn send(&mut self, now: Instant, trains: &[Train]) -> io::Result<usize> {
        let taken = self.inner.send(now, trains)?;
        for train in &trains[..taken] {
            self.log.sent(now, train);
        }
        if taken > 0 {
            self.log.write_out();
        }
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
        let (log, faults) = (&mut self.log, self.faults.as_deref());
        let taken = self.inner.receive(now, budget, &mut |train| {
            // What happens to its packets is decided above.
            sink(train);
            log.received(now, train, &faults.map(FaultSwitch::marks).unwrap_or_default());
        })?;
        if taken > 0 {
            self.log.write_out();
        }
        Ok(taken)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.inner.poll_timeout()
    }

    fn counters(&self) -> LinkCounters {
        self.inner.counters()
    }
}
