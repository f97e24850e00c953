//! A layer that writes a line about each packet that passes.

use std::fmt;
use std::io::{self, BufWriter, Write};

use feroce_train::{Ecn, Instant, RxTrain, Single, Train};
use feroce_wire::Gid;

use crate::describe::{Address, describe};
use crate::icrc::ICRC_LEN;
use crate::{Carrier, Close, LinkCounters, each_packet, forward_to_inner, impl_layer};

/// Writes one readable line per packet:
///
/// ```text
/// 0.000012345 out 10.0.0.1 > 10.0.0.2 -> 0x0012ab RC SEND Only PSN 0x000123, asks for ACK, 8 bytes
/// 0.000034567 in  10.0.0.2 > 10.0.0.1 -> 0x0012aa RC ACK PSN 0x000123, MSN 1
/// ```
///
/// Times count from the first packet. A writer that fails is not written to again.
pub struct Trace<C> {
    inner: C,
    log: Log,
}

impl<C: Carrier> Trace<C> {
    /// Traces what passes through `inner`.
    pub fn new(inner: C, out: impl Write + Send + 'static) -> Self {
        let out: Box<dyn Write + Send> = Box::new(out);
        let log = Log { out: Some(BufWriter::new(out)), start: None, packet: Vec::new() };
        Self { inner, log }
    }
}

impl<L: fmt::Debug> fmt::Debug for Trace<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// Where the lines go.
struct Log {
    /// Nothing after it has failed.
    out: Option<BufWriter<Box<dyn Write + Send>>>,
    /// When the first packet passed.
    start: Option<Instant>,
    /// A packet on its way out.
    packet: Vec<u8>,
}

/// Everything about a packet but its bytes.
struct Passing {
    now: Instant,
    is_in: bool,
    src: Gid,
    dst: Gid,
    is_congested: bool,
}

impl Log {
    fn line(&mut self, passing: &Passing, transport: &[u8]) {
        let start = *self.start.get_or_insert(passing.now);
        let ns = passing.now.nanos_since(start);
        let direction = if passing.is_in { "in " } else { "out" };
        let mark = if passing.is_congested { " CE" } else { "" };
        self.try_to(|out| {
            writeln!(
                out,
                "{}.{:09} {direction} {} > {}{mark} {}",
                ns / 1_000_000_000,
                ns % 1_000_000_000,
                Address(passing.src),
                Address(passing.dst),
                describe(transport)
            )
        });
    }

    fn sent(&mut self, now: Instant, train: &Train) {
        let (src, dst) = (train.path.src.gid, train.path.dst.gid);
        let passing = Passing { now, is_in: false, src, dst, is_congested: false };
        let mut packet = std::mem::take(&mut self.packet);
        each_packet(train, &mut packet, |_, bytes| self.line(&passing, bytes));
        self.packet = packet;
    }

    fn received(&mut self, now: Instant, train: &RxTrain<'_>) {
        let meta = &train.meta;
        let is_congested = meta.ecn == Ecn::Congested;
        let (src, dst) = (meta.src.gid, meta.dst.gid);
        let passing = Passing { now, is_in: true, src, dst, is_congested };
        for packet in train.bytes.chunks(train.stride.max(1)) {
            let len = packet.len().saturating_sub(ICRC_LEN);
            self.line(&passing, packet.get(..len).unwrap_or(&[]));
        }
    }

    /// Writes, unless writing has failed before.
    fn try_to(&mut self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
        let Some(out) = &mut self.out else { return };
        if let Err(e) = write(out) {
            tracing::warn!("the trace ends here: {e}");
            self.out = None;
        }
    }
}

impl_layer!(Trace);

impl<C: Carrier> Carrier for Trace<C> {
    forward_to_inner!();

    fn close(&mut self, why: Close) {
        if why == Close::Fork {
            // The parent writes what waits.
            self.log.out.take().map(BufWriter::into_parts);
        }
        self.inner.close(why);
    }

    fn send(&mut self, now: Instant, trains: &[Train]) -> io::Result<usize> {
        let taken = self.inner.send(now, trains)?;
        for train in &trains[..taken] {
            self.log.sent(now, train);
        }
        if taken > 0 {
            self.log.try_to(|out| out.flush());
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
        let log = &mut self.log;
        let taken = self.inner.receive(now, budget, &mut |train| {
            log.received(now, train);
            sink(train);
        })?;
        if taken > 0 {
            self.log.try_to(|out| out.flush());
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
