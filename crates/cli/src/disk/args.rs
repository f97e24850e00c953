//! The command line of `feroce disk`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use feroce_nvme::wire::Nqn;

use super::load::{Amount, Pattern};
use crate::size;

/// The port of NVMe over Fabrics.
const PORT: u16 = 4420;

/// What to do with disks.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Serve files, block devices or memory as disks.
    Serve(ServeArgs),
    /// Ask a target which subsystems it has.
    Discover(DiscoverArgs),
    /// List the disks of a target.
    Ls(LsArgs),
    /// Read from a disk of a target.
    Read(ReadArgs),
    /// Write to a disk of a target, and flush it.
    Write(WriteArgs),
    /// Measure a disk of a target, as fio does.
    Bench(BenchArgs),
    /// Show how much the disks of a target are used.
    Stat(StatArgs),
    /// Make a secret, with which a host proves who it is.
    Secret(SecretArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Linux connects with its own driver, which needs an RDMA device, Soft-RoCE for example:
  nvme connect -t rdma -a ADDRESS -s 4420 -n NQN
The name that a host gives is not checked, unless --secrets has a secret for it.
Nothing is encrypted: serve disks in networks that you trust.

Examples:
  truncate -s 1G disk.img
  feroce disk serve disk.img --listen 10.0.0.1       one disk
  feroce disk serve a.img b.img --listen 10.0.0.1    two disks, of one subsystem
  feroce disk serve --memory 64M --listen 127.0.0.1  a disk in memory, to try things
  feroce disk serve disk.img --listen 10.0.0.1 --listen 10.1.0.1    two paths to it")]
pub(crate) struct ServeArgs {
    /// Files or block devices; the first is disk 1.
    #[arg(required_unless_present = "memory")]
    pub(super) file: Vec<PathBuf>,
    /// A disk in memory of this size, behind the files; may be given more than once.
    #[arg(long, value_name = "SIZE",
          value_parser = |text: &str| size::parse(text, &(512..=1_usize << 40)))]
    pub(super) memory: Vec<usize>,
    /// Move data between hosts and disks in memory without a copy. A block that is read while it is
    /// written may then be a mixture of the old one and the new one.
    #[arg(long, requires = "memory")]
    pub(super) direct: bool,
    /// Where hosts connect: an address, and a port unless it is 4420; may be given more than once.
    #[arg(long, value_name = "ADDRESS", required = true, value_parser = address)]
    pub(super) listen: Vec<SocketAddr>,
    /// Name of the subsystem.
    #[arg(long, default_value = "nqn.2026-11.feroce:disks")]
    pub(super) nqn: Nqn,
    /// A host that may use the disks, by its name; may be given more than once [default: all].
    #[arg(long, value_name = "NQN")]
    pub(super) allow: Vec<Nqn>,
    /// A file with lines `HOST-NQN SECRET [SECRET-OF-THE-SUBSYSTEM]`: these hosts may use the disks
    /// if they prove that they have their secret.
    #[arg(long, value_name = "FILE")]
    pub(super) secrets: Option<PathBuf>,
    /// Let no host write.
    #[arg(long)]
    pub(super) read_only: bool,
    /// Let other processes serve the same files, with the same --nqn: hosts then have several paths
    /// to them, which end independently.
    #[arg(long, conflicts_with = "read_only")]
    pub(super) shared: bool,
}

/// Who we are.
#[derive(Debug, clap::Args)]
pub(super) struct HostArgs {
    /// Name of this host.
    #[arg(long, value_name = "NQN")]
    pub(super) host_nqn: Option<Nqn>,
    /// A file with the secret of this host, for targets that ask for one, and on a second line the
    /// secret that the subsystem must prove to have, if it must.
    #[arg(long, value_name = "FILE")]
    pub(super) secret: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  feroce disk discover 10.0.0.1
  feroce disk discover 10.0.0.1:4421 --json")]
pub(crate) struct DiscoverArgs {
    /// The target: an address, and a port unless it is 4420.
    #[arg(value_parser = address)]
    pub(super) address: SocketAddr,
    #[command(flatten)]
    pub(super) host: HostArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  feroce disk ls 10.0.0.1          the disks of all subsystems that we may use
  feroce disk ls 10.0.0.1 --json")]
pub(crate) struct LsArgs {
    /// The target: an address, and a port unless it is 4420.
    #[arg(value_parser = address)]
    pub(super) address: SocketAddr,
    #[command(flatten)]
    pub(super) host: HostArgs,
}

/// Which disk.
#[derive(Debug, clap::Args)]
pub(super) struct DiskArgs {
    /// The target: an address, and a port unless it is 4420.
    #[arg(value_parser = address)]
    pub(super) address: SocketAddr,
    /// The subsystem [default: the only one].
    #[arg(long)]
    pub(super) nqn: Option<Nqn>,
    /// The disk.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(super) disk: u32,
    /// Another path to the same subsystem, used in turn with ADDRESS and instead of it when it is
    /// lost; may be given more than once.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(super) path: Vec<SocketAddr>,
    /// How long to connect again when all paths are lost, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(super) patience: u32,
    /// First byte: a multiple of the block.
    #[arg(long, default_value = "0",
          value_parser = |text: &str| size::parse(text, &(0..=u64::MAX)))]
    pub(super) offset: u64,
    #[command(flatten)]
    pub(super) host: HostArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  feroce disk read 10.0.0.1 -o copy.img                     all of it
  feroce disk read 10.0.0.1 --length 4K | xxd               the first bytes
  feroce disk read 10.0.0.1 --disk 2 --offset 1M --length 64K -o part")]
pub(crate) struct ReadArgs {
    #[command(flatten)]
    pub(super) disk: DiskArgs,
    /// Bytes: a multiple of the block [default: to the end].
    #[arg(long, value_parser = |text: &str| size::parse(text, &(0..=u64::MAX)))]
    pub(super) length: Option<u64>,
    /// Where to write them [default: standard output].
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The bytes are durable when the command ends. Their number is a multiple of the block.

Examples:
  feroce disk write 10.0.0.1 image.raw              from the beginning of disk 1
  feroce disk write 10.0.0.1 --offset 1M part       from 1 MiB on
  feroce disk write 10.0.0.1 --path 10.1.0.1 --patience 60 image.raw
                                                    go on when the target is started again
  head -c 4096 /dev/zero | feroce disk write 10.0.0.1")]
pub(crate) struct WriteArgs {
    #[command(flatten)]
    pub(super) disk: DiskArgs,
    /// What to write [default: standard input].
    pub(super) file: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each --size is measured at each --depth, for a second. Commands of the patterns read and write
follow each other from --offset on, for --length bytes, again and again; the others go anywhere in
there.

Examples:
  feroce disk bench 10.0.0.1                               random reads of 4 KiB, 1 and 32 at a time
  feroce disk bench 10.0.0.1 --pattern read --size 128K    a stream
  feroce disk bench 10.0.0.1 --depth 1,2,4,8,16,32,64 --plot depths.svg
  feroce disk bench 10.0.0.1 --pattern randrw --overwrite  destroys what is on the disk")]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(super) disk: DiskArgs,
    /// Which blocks, in which order; fio's names.
    #[arg(long, value_enum, default_value_t = Pattern::Randread)]
    pub(super) pattern: Pattern,
    /// Bytes of a command: a multiple of the block.
    #[arg(short, long, value_delimiter = ',', default_value = "4K",
          value_parser = |text: &str| size::parse(text, &(512..=1_usize << 27)))]
    pub(super) size: Vec<usize>,
    /// Commands at a time.
    #[arg(long, value_delimiter = ',', default_value = "1,32",
          value_parser = clap::value_parser!(u16).range(1..=2032))]
    pub(super) depth: Vec<u16>,
    /// Queues, which the commands take in turn.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub(super) queues: u16,
    /// Bytes of the disk to use, from --offset on [default: to the end].
    #[arg(long, value_parser = |text: &str| size::parse(text, &(0..=u64::MAX)))]
    pub(super) length: Option<u64>,
    /// Let the patterns that write destroy what is on the disk.
    #[arg(long)]
    pub(super) overwrite: bool,
    /// Commands to measure, each time [default: as many as fit in a second].
    #[arg(short = 'n', long, value_name = "COMMANDS", conflicts_with = "duration",
          value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,
    /// Seconds to measure, each time.
    #[arg(short = 'D', long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// Draw commands per second over the depth, or over the size if there is one depth.
    #[arg(long, value_name = "FILE.svg")]
    pub(super) plot: Option<PathBuf>,
}

impl BenchArgs {
    pub(super) fn amount(&self) -> Amount {
        match self.iterations {
            Some(n) => Amount::Commands(n),
            None => {
                let seconds = self.duration.unwrap_or(1.0);
                Amount::Time(Duration::try_from_secs_f64(seconds).unwrap_or_default())
            }
        }
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The figures are those of the target's health log, of all hosts together since it was started; `nvme
smart-log` shows them too.

Examples:
  feroce disk stat 10.0.0.1                  totals
  feroce disk stat 10.0.0.1 --interval 1     rates, each second until Ctrl-C")]
pub(crate) struct StatArgs {
    /// The target: an address, and a port unless it is 4420.
    #[arg(value_parser = address)]
    pub(super) address: SocketAddr,
    /// The subsystem [default: the only one].
    #[arg(long)]
    pub(super) nqn: Option<Nqn>,
    /// Show rates, at intervals of so many seconds.
    #[arg(short, long, value_name = "SECONDS")]
    pub(super) interval: Option<f64>,
    /// How often to show rates [default: until Ctrl-C].
    #[arg(short, long, value_name = "TIMES", requires = "interval")]
    pub(super) count: Option<u64>,
    #[command(flatten)]
    pub(super) host: HostArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The secret is for DH-HMAC-CHAP, in the form of `nvme gen-dhchap-key`. Keep files with secrets to
yourself: chmod 600.

Examples:
  feroce disk secret > host.secret
  echo \"nqn.2024-01.com.example:host $(cat host.secret)\" > secrets
  feroce disk serve disk.img --listen 10.0.0.1 --secrets secrets
  feroce disk ls 10.0.0.1 --host-nqn nqn.2024-01.com.example:host --secret host.secret
  nvme connect ... --dhchap-secret \"$(cat host.secret)\"")]
pub(crate) struct SecretArgs {}

/// An address, with or without a port.
fn address(text: &str) -> Result<SocketAddr, String> {
    let without = text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, PORT));
    without.or_else(|_| text.parse()).map_err(|_| {
        "expected an address such as 10.0.0.1, 10.0.0.1:4420, fd00::1 or [fd00::1]:4420".to_owned()
    })
}
