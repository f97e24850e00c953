//! A short measurement: a few operations at a few sizes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use feroce::{Access, Mr, Qp, QpCap, SendFlags, SendOp, SendWr, Settings, WcOpcode, WcStatus};
use serde_json::{Value, json};

use super::stage::{Host, bytes, open_two, patiently, pattern};

/// Message sizes.
pub(super) const SIZES: [usize; 5] = [8, 512, 4 << 10, 64 << 10, 1 << 20];

/// Time for each number.
const LATENCY_TIME: Duration = Duration::from_millis(100);
const BANDWIDTH_TIME: Duration = Duration::from_millis(200);

/// Operations whose times are kept.
const MAX_SAMPLES: usize = 20_000;

/// Work requests outstanding when bandwidth is measured, and their bytes.
const MAX_DEPTH: usize = 64;
const MAX_FLIGHT: usize = 4 << 20;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Write,
    Read,
    Send,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Write, Self::Read, Self::Send];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Write => "WRITE",
            Self::Read => "READ",
            Self::Send => "SEND",
        }
    }
}

/// One row of the result.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Measured {
    pub(super) kind: Kind,
    pub(super) size: usize,
    /// From posting to completion, one at a time; the median.
    pub(super) latency_ns: u64,
    /// Many at a time.
    pub(super) gbit_s: f64,
}

impl Measured {
    pub(super) fn json(&self) -> Value {
        json!({
            "op": self.kind.name(), "bytes": self.size,
            "latency_ns": self.latency_ns, "gbit_s": self.gbit_s })
    }
}

/// Measures everything; tells `progress` how much of it is done, and what comes next.
pub(super) fn measure(
    mut progress: impl FnMut(usize, usize, &str),
) -> anyhow::Result<Vec<Measured>> {
    let [a, b] = open_two([Settings::load()?, Settings::load()?])?;
    let cap = QpCap::new(128, 128);
    let mut qa = a.pd.rc_qp(&a.cq, &a.cq, cap).create()?;
    let mut qb = b.pd.rc_qp(&b.cq, &b.cq, cap).create()?;
    qa.connect(&qb.endpoint()?)?;
    qb.connect(&qa.endpoint()?)?;
    let largest = SIZES[SIZES.len() - 1];
    let here = a.pd.alloc_mr(largest, Access::LOCAL_WRITE)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let there = b.pd.alloc_mr(largest, access)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let far_end = scope.spawn(|| serve(&b, &mut qb, &there, &stop));
        let mut end = NearEnd { host: &a, qp: qa, here: &here, there: &there };
        let result = end.run_all(&mut progress);
        stop.store(true, Ordering::Relaxed);
        far_end.join().map_err(|_| anyhow::anyhow!("the far end broke down"))??;
        result
    })
}

/// Keeps receives posted and drives the adapter of B by polling, until `stop` is set.
fn serve(host: &Host, qp: &mut Qp, buffer: &Mr, stop: &AtomicBool) -> anyhow::Result<()> {
    let receive = || buffer.recv(0, 0..buffer.len());
    qp.post_recv((0..128).map(|_| receive()))?;
    while !stop.load(Ordering::Relaxed) {
        match host.cq.poll_one() {
            Some(cqe) if cqe.status != WcStatus::Success => bail!("receive: {}", cqe.status),
            Some(cqe) if cqe.opcode == WcOpcode::Recv => qp.post_recv([receive()])?,
            Some(_) => {}
            None => std::thread::yield_now(),
        }
    }
    Ok(())
}

/// The requesting side.
struct NearEnd<'a> {
    host: &'a Host,
    qp: Qp,
    here: &'a Mr,
    there: &'a Mr,
}

impl NearEnd<'_> {
    fn run_all(
        &mut self,
        progress: &mut impl FnMut(usize, usize, &str),
    ) -> anyhow::Result<Vec<Measured>> {
        let mut rows = Vec::new();
        let total = Kind::ALL.len() * SIZES.len();
        for kind in Kind::ALL {
            for size in SIZES {
                progress(rows.len(), total, &format!("{} of {size} bytes", kind.name()));
                rows.push(self.run(kind, size)?);
            }
        }
        progress(total, total, "");
        Ok(rows)
    }

    fn run(&mut self, kind: Kind, size: usize) -> anyhow::Result<Measured> {
        let (from, to) = match kind {
            Kind::Read => (self.there, self.here),
            Kind::Write | Kind::Send => (self.here, self.there),
        };
        from.write_at(0, &pattern(size as u8 ^ kind as u8 ^ 0x5a, size))?;
        to.write_at(0, &vec![0; size])?;
        let latency_ns = self.latency(kind, size)?;
        let gbit_s = self.bandwidth(kind, size)?;
        let is_right = bytes(to, 0, size)? == bytes(from, 0, size)?;
        ensure!(is_right, "{} of {size} bytes: the data is wrong", kind.name());
        Ok(Measured { kind, size, latency_ns, gbit_s })
    }

    fn post(&mut self, kind: Kind, size: usize) -> anyhow::Result<()> {
        let op = match kind {
            Kind::Write => SendOp::Write(self.there.remote(0)),
            Kind::Read => SendOp::Read(self.there.remote(0)),
            Kind::Send => SendOp::Send,
        };
        let mut wr = SendWr::new(0, op, self.here.data(0..size));
        wr.flags = SendFlags::SIGNALED;
        Ok(self.qp.post_send([wr])?)
    }

    fn wait(&self) -> anyhow::Result<()> {
        for _ in 0..2_000 {
            if let Some(cqe) = self.host.cq.poll_one() {
                ensure!(cqe.status == WcStatus::Success, "{}", cqe.status);
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let cqe = patiently(|| self.host.cq.poll_one()).context("no completion in time")?;
        ensure!(cqe.status == WcStatus::Success, "{}", cqe.status);
        Ok(())
    }

    /// The median time of one operation.
    #[expect(clippy::disallowed_methods, reason = "this measures time")]
    fn latency(&mut self, kind: Kind, size: usize) -> anyhow::Result<u64> {
        for _ in 0..20 {
            self.post(kind, size)?;
            self.wait()?;
        }
        let mut samples = Vec::new();
        let begin = Instant::now();
        while begin.elapsed() < LATENCY_TIME && samples.len() < MAX_SAMPLES {
            let start = Instant::now();
            self.post(kind, size)?;
            self.wait()?;
            samples.push(start.elapsed());
        }
        samples.sort_unstable();
        let median = samples.get(samples.len() / 2).context("no time to measure")?;
        Ok(u64::try_from(median.as_nanos())?)
    }

    /// Gigabits per second with many operations outstanding.
    #[expect(clippy::disallowed_methods, reason = "this measures time")]
    fn bandwidth(&mut self, kind: Kind, size: usize) -> anyhow::Result<f64> {
        let depth = (MAX_FLIGHT / size).clamp(2, MAX_DEPTH);
        let begin = Instant::now();
        let (mut posted, mut done) = (0, 0_u64);
        let mut is_over = false;
        while !is_over || posted > 0 {
            while !is_over && posted < depth {
                self.post(kind, size)?;
                posted += 1;
            }
            self.wait()?;
            posted -= 1;
            done += 1;
            is_over = begin.elapsed() >= BANDWIDTH_TIME;
        }
        let seconds = begin.elapsed().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "for people to read")]
        let bits = (done * 8 * size as u64) as f64;
        Ok(bits / seconds / 1e9)
    }
}
