//! Options of the pingpong commands, named as rdma-core's programs name them.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::ensure;
use feroce::{Pmtu, PortAttr};

use super::exchange::SRQ_ADDRESSES;
use super::place::Choice;
use crate::size;

/// Which service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Rc,
    Uc,
    Ud,
    Srq,
}

impl Kind {
    /// Its name in records.
    pub(super) fn test(self) -> &'static str {
        match self {
            Self::Rc => "rc_pingpong",
            Self::Uc => "uc_pingpong",
            Self::Ud => "ud_pingpong",
            Self::Srq => "srq_pingpong",
        }
    }

    /// Whether messages are segmented into packets of the path MTU.
    pub(super) fn has_mtu(self) -> bool {
        self != Self::Ud
    }

    /// Whether lost packets are retransmitted.
    pub(super) fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Srq)
    }

    fn default_size(self) -> u32 {
        if self == Self::Ud { 1024 } else { 4096 }
    }
}

const RC_EXAMPLES: &str = "\
Examples:
  feroce rc-pingpong --both                 both ends here, nothing to set up
  feroce rc-pingpong                        a server on this machine ...
  feroce rc-pingpong 192.0.2.1              ... and a client of it, on another or the same one
  feroce rc-pingpong -g 0 -m 4096 -s 1048576 -n 100 192.0.2.1
  ibv_rc_pingpong -g 1 192.0.2.1            the server may serve a client of rdma-core, too";

const UC_EXAMPLES: &str = "\
Examples:
  feroce uc-pingpong --both -c              both ends here, every echo compared
  feroce uc-pingpong                        a server on this machine ...
  feroce uc-pingpong 192.0.2.1              ... and a client of it";

const UD_EXAMPLES: &str = "\
Examples:
  feroce ud-pingpong --both -e              both ends here, asleep between messages
  feroce ud-pingpong                        a server on this machine ...
  feroce ud-pingpong -s 512 192.0.2.1       ... and a client of it";

const SRQ_EXAMPLES: &str = "\
Examples:
  feroce srq-pingpong --both -q 64          64 connections between two adapters here
  feroce srq-pingpong                       a server on this machine ...
  feroce srq-pingpong 192.0.2.1             ... and a client of it";

/// Options of `rc-pingpong`.
#[derive(Debug, clap::Args)]
#[command(after_help = RC_EXAMPLES, args_override_self = true)]
pub(crate) struct RcArgs {
    #[command(flatten)]
    common: CommonArgs,
    #[command(flatten)]
    mtu: MtuArgs,
    /// Measure the time between receive completions
    #[arg(short = 't', long = "ts")]
    timestamps: bool,
}

/// Options of `uc-pingpong`.
#[derive(Debug, clap::Args)]
#[command(after_help = UC_EXAMPLES, args_override_self = true)]
pub(crate) struct UcArgs {
    #[command(flatten)]
    common: CommonArgs,
    #[command(flatten)]
    mtu: MtuArgs,
}

/// Options of `ud-pingpong`.
#[derive(Debug, clap::Args)]
#[command(after_help = UD_EXAMPLES, args_override_self = true)]
pub(crate) struct UdArgs {
    #[command(flatten)]
    common: CommonArgs,
}

/// Options of `srq-pingpong`.
#[derive(Debug, clap::Args)]
#[command(after_help = SRQ_EXAMPLES, args_override_self = true)]
pub(crate) struct SrqArgs {
    #[command(flatten)]
    common: CommonArgs,
    #[command(flatten)]
    mtu: MtuArgs,
    /// Number of queue pairs, the same at both ends
    #[arg(short = 'q', long, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..SRQ_ADDRESSES as i64))]
    num_qp: u32,
}

#[derive(Debug, clap::Args)]
struct MtuArgs {
    /// Path MTU, the same at both ends: 256, 512, 1024, 2048 or 4096
    #[arg(short = 'm', long, value_name = "BYTES", default_value = "1024",
          value_parser = parse_mtu)]
    mtu: Pmtu,
}

fn parse_mtu(text: &str) -> Result<Pmtu, String> {
    let bytes = size::parse(text, &(256..=4096)).ok().and_then(Pmtu::from_bytes);
    bytes.ok_or_else(|| "one of 256, 512, 1024, 2048, 4096".to_owned())
}

#[derive(Debug, clap::Args)]
struct CommonArgs {
    /// The server to connect to; without it, wait for a client
    host: Option<String>,
    /// Run server and client here, on two loopback addresses unless -d or --address says otherwise
    #[arg(long, conflicts_with = "host")]
    both: bool,
    /// TCP port over which the two ends find each other
    #[arg(short, long, value_name = "PORT", default_value_t = 18515)]
    port: u16,
    /// Device, or its interface [default: the one that leads to HOST; for a server, the one that
    /// the client reaches]
    #[arg(short = 'd', long = "ib-dev", visible_alias = "device", value_name = "DEV")]
    device: Vec<String>,
    /// Device by its address; two with --both, for the server and for the client
    #[arg(long, value_name = "IP", value_delimiter = ',', conflicts_with = "device")]
    address: Vec<IpAddr>,
    /// Port of the device; every device has one, number 1
    #[arg(short = 'i', long, value_name = "PORT", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=1))]
    ib_port: u8,
    /// Size of a message [default: 4096; of a datagram: 1024]
    #[arg(short, long, value_name = "BYTES",
          value_parser = |text: &str| size::parse::<u32>(text, &(0..=1 << 31)))]
    size: Option<u32>,
    /// Number of receives to post at a time
    #[arg(short, long, value_name = "N", default_value_t = 500,
          value_parser = clap::value_parser!(u32).range(2..))]
    rx_depth: u32,
    /// Number of exchanges, all queue pairs together
    #[arg(
        short = 'n',
        long,
        visible_alias = "iterations",
        value_name = "N",
        default_value_t = 1000
    )]
    iters: u64,
    /// Service level
    #[arg(short = 'l', long, value_name = "SL", default_value_t = 0,
          value_parser = clap::value_parser!(u8).range(0..=15))]
    sl: u8,
    /// Sleep on completion events instead of polling
    #[arg(short, long)]
    events: bool,
    /// Index of our address in the GID table [default: the address of the chosen device that fits;
    /// unlike rdma-core's programs this never tries LIDs, which RoCE does not have]
    #[arg(short, long, visible_alias = "gid-index", value_name = "INDEX")]
    gid_idx: Option<u16>,
    /// Check the data: the client every echo, the server the pages of the last message
    #[arg(short, long)]
    chk: bool,
    /// Give up when nothing arrives for so long; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    timeout: u64,
}

/// What to exchange, and how.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    pub(super) size: u32,
    pub(super) mtu: Pmtu,
    pub(super) num_qp: u32,
    pub(super) rx_depth: u32,
    pub(super) iters: u64,
    pub(super) sl: u8,
    pub(super) events: bool,
    pub(super) check: bool,
    pub(super) timestamps: bool,
    pub(super) patience: Option<Duration>,
}

impl Plan {
    /// Number of addresses that each side sends over the side channel.
    pub(super) fn addresses(&self) -> usize {
        if self.kind == Kind::Srq { SRQ_ADDRESSES } else { 1 }
    }

    /// Fails if the port cannot carry the messages.
    pub(super) fn check_port(&self, port: &PortAttr) -> anyhow::Result<()> {
        let carried = port.active_mtu.bytes();
        if self.kind.has_mtu() {
            ensure!(
                self.mtu <= port.active_mtu,
                "a path MTU of {} does not fit the interface: at most -m {carried} here",
                self.mtu.bytes()
            );
        } else {
            ensure!(
                self.size as usize <= carried,
                "requested size larger than port MTU ({carried}): a datagram of {} bytes does not \
                 fit one packet, give -s {carried} or less",
                self.size
            );
        }
        Ok(())
    }
}

/// A command line after parsing.
#[derive(Debug)]
pub(crate) struct Request {
    pub(super) plan: Plan,
    pub(super) host: Option<String>,
    pub(super) both: bool,
    pub(super) port: u16,
    pub(super) choice: Choice,
    /// Address of the client, if both ends run in this process.
    pub(super) second: Option<IpAddr>,
}

impl CommonArgs {
    fn request(&self, kind: Kind) -> anyhow::Result<Request> {
        let most = if self.both { 2 } else { 1 };
        ensure!(self.address.len() <= most, "--address goes with one end, two with --both");
        ensure!(
            self.device.len() <= 1,
            "-d names one device; with --both, --address IP,IP chooses those of server and client"
        );
        let plan = Plan {
            kind,
            size: self.size.unwrap_or_else(|| kind.default_size()),
            mtu: Pmtu::B1024,
            num_qp: 1,
            rx_depth: self.rx_depth,
            iters: self.iters,
            sl: self.sl,
            events: self.events,
            check: self.chk,
            timestamps: false,
            patience: (self.timeout > 0).then(|| Duration::from_secs(self.timeout)),
        };
        let choice = Choice {
            device: self.device.first().cloned(),
            address: self.address.first().copied(),
            gid_index: self.gid_idx,
        };
        let second = self.address.get(1).copied();
        let (host, both, port) = (self.host.clone(), self.both, self.port);
        Ok(Request { plan, host, both, port, choice, second })
    }
}

impl RcArgs {
    pub(super) fn request(&self) -> anyhow::Result<Request> {
        let mut request = self.common.request(Kind::Rc)?;
        request.plan.mtu = self.mtu.mtu;
        request.plan.timestamps = self.timestamps;
        Ok(request)
    }
}

impl UcArgs {
    pub(super) fn request(&self) -> anyhow::Result<Request> {
        let mut request = self.common.request(Kind::Uc)?;
        request.plan.mtu = self.mtu.mtu;
        Ok(request)
    }
}

impl UdArgs {
    pub(super) fn request(&self) -> anyhow::Result<Request> {
        self.common.request(Kind::Ud)
    }
}

impl SrqArgs {
    pub(super) fn request(&self) -> anyhow::Result<Request> {
        let mut request = self.common.request(Kind::Srq)?;
        request.plan.mtu = self.mtu.mtu;
        request.plan.num_qp = self.num_qp;
        ensure!(
            self.num_qp < self.common.rx_depth,
            "{} receives are too few for {} queue pairs: give a greater -r",
            self.common.rx_depth,
            self.num_qp
        );
        Ok(request)
    }
}
