//! The command line of `feroce perf`.

use std::net::IpAddr;
use std::path::PathBuf;

use super::spec::{Amount, AtomicKind, Memory, Mode, Op, Service, Sizes, Spec};
use crate::size;

/// Options, named as those of perftest where perftest has them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The server is started first and needs no options but the operation; the client sends it the rest.

Examples:
  feroce perf write bw --both             both ends here, on two loopback addresses
  feroce perf write bw                    server
  feroce perf write bw -s 1048576 HOST    client
  feroce perf send lat -a --plot lat.svg --both")]
pub(crate) struct Args {
    /// Operation to measure.
    #[arg(value_enum)]
    pub(crate) op: Op,
    /// What to measure: bandwidth or latency.
    #[arg(value_enum)]
    pub(crate) mode: Mode,
    /// The server to measure with; without it, be the server.
    #[arg(conflicts_with = "both")]
    pub(crate) host: Option<String>,
    /// Run both ends in this process.
    #[arg(long)]
    pub(crate) both: bool,
    /// Bytes in a message [default: 65536 for bandwidth, 2 for latency, 8 for atomics].
    #[arg(short, long, value_parser = |text: &str| size::parse(text, &(0..=usize::MAX)))]
    size: Option<usize>,
    /// Every power of two from 2 bytes to 8 MiB.
    #[arg(short, long, conflicts_with = "size")]
    all: bool,
    /// Messages to measure, on each queue pair [default: as many as fit in a second].
    #[arg(short = 'n', long, visible_alias = "iters", conflicts_with = "duration")]
    iterations: Option<u64>,
    /// Seconds to measure.
    #[arg(short = 'D', long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// Sends outstanding on a queue pair.
    #[arg(short, long, default_value_t = 128)]
    tx_depth: u32,
    /// Receives posted on a queue pair.
    #[arg(short, long, default_value_t = 512)]
    rx_depth: u32,
    /// Sends to post with one call.
    #[arg(short = 'l', long, default_value_t = 1)]
    post_list: u32,
    /// One in so many sends is signaled [default: a quarter of the depth, every one from 8 KiB on;
    /// one in 64 where latency is measured].
    #[arg(short = 'Q', long, default_value_t = 0, hide_default_value = true)]
    cq_mod: u32,
    /// Queue pairs [default: one for each thread].
    #[arg(short, long)]
    qps: Option<u32>,
    /// Threads of each side, with queue pairs and completion queues of their own. On a device with
    /// several shards (`FEROCE_SHARDS`), as many threads keep them busy.
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Service.
    #[arg(short, long = "connection", value_enum, ignore_case = true, default_value = "rc")]
    connection: Service,
    /// Atomic operation.
    #[arg(short = 'A', long, value_enum, default_value = "fetch-add")]
    atomic: AtomicKind,
    /// Send messages of at most this many bytes inline.
    #[arg(short = 'I', long, default_value_t = 0,
          value_parser = |text: &str| size::parse(text, &(0..=u32::MAX)))]
    inline: u32,
    /// Sleep until completions come instead of polling.
    #[arg(short, long)]
    events: bool,
    /// While waiting for a write, only read memory and make no verbs call [write latency].
    #[arg(long, conflicts_with = "events")]
    no_poll: bool,
    /// Both sides send.
    #[arg(short, long)]
    bidirectional: bool,
    /// Memory of both ends.
    #[arg(long, value_enum, default_value = "shareable")]
    memory: Memory,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: what both ports take].
    #[arg(short, long, value_parser = |text: &str| size::parse(text, &(256..=4096_u32)))]
    mtu: Option<u32>,
    /// Index of the address of the device to use.
    #[arg(short, long, visible_short_alias = 'x', visible_alias = "gid-idx")]
    pub(crate) gid_index: Option<u16>,
    /// Device, or the interface that it uses.
    #[arg(short, long, visible_alias = "ib-dev", conflicts_with = "address")]
    pub(crate) device: Option<String>,
    /// Address to use instead of a device; with --both, two.
    #[arg(long, value_delimiter = ',', value_name = "IP")]
    pub(crate) address: Vec<IpAddr>,
    /// Acknowledgement timeout: 4.096 us times two to this power; 0 waits for ever.
    #[arg(short = 'u', long, default_value_t = 14,
          value_parser = clap::value_parser!(u8).range(..=31))]
    qp_timeout: u8,
    /// Accepted as in perftest, without effect: times do not depend on the processor's frequency.
    #[arg(short = 'F', long = "CPU-freq")]
    cpu_freq: bool,
    /// Accepted as in perftest, without effect: bandwidth is always in Gb/s.
    #[arg(long = "report_gbits")]
    report_gbits: bool,
    /// Connect by the RDMA connection manager; iWARP always does.
    #[arg(short = 'R', long = "rdma_cm")]
    rdma_cm: bool,
    /// TCP port of the side channel.
    #[arg(short, long, default_value_t = 18515)]
    pub(crate) port: u16,
    /// Draw latency or bandwidth over size.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// With --both: also measure plain sockets between the two addresses, for comparison.
    #[arg(long, value_enum)]
    pub(crate) reference: Option<Reference>,
}

/// What to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Reference {
    /// Latency of datagrams that bounce between two UDP sockets.
    Udp,
    /// Bandwidth of a TCP stream.
    Tcp,
}

impl Args {
    /// The specification of the measurement, after checks.
    pub(crate) fn spec(&self) -> anyhow::Result<Spec> {
        let sizes = if self.all { Sizes::Sweep } else { Sizes::One(self.size) };
        let amount = match (self.iterations, self.duration) {
            (Some(n), _) => Amount::Messages(n),
            (None, seconds) => Amount::Seconds(seconds.unwrap_or(1.0)),
        };
        let spec = Spec {
            op: self.op,
            mode: self.mode,
            service: self.connection,
            atomic: self.atomic,
            sizes: sizes.list(self.op, self.mode)?,
            amount,
            tx_depth: self.tx_depth,
            rx_depth: self.rx_depth,
            cq_mod: self.cq_mod,
            post_list: self.post_list,
            qps: self.qps.unwrap_or(self.threads),
            threads: self.threads,
            mtu: self.mtu,
            inline: self.inline,
            events: self.events,
            bidirectional: self.bidirectional,
            memory: self.memory,
            no_poll: self.no_poll,
            qp_timeout: self.qp_timeout,
            by_cm: self.rdma_cm,
            iwarp: false,
        };
        spec.check()?;
        Ok(spec)
    }
}
