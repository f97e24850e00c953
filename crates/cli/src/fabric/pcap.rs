//! `feroce fabric pcap`.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use feroce_link::port::{RECORD_LEN, Record};
use feroce_link::{Direction, PcapConfig, PcapFile};
use feroce_train::{Framing, Instant, RxTrain};

use super::control::{Command, Reply};
use super::pace::monotonic_ns;
use super::place::Place;
use super::status::AnyStatus;
use super::{refuse, status};
use crate::stop;

const EXAMPLES: &str = "\
Examples:
  feroce fabric pcap leaf1:3 run.pcapng       what passes this port, until interrupted
  feroce fabric pcap -c 100 h3:0 run.pcapng   a hundred packets
  feroce fabric pcap Leaf1:7 subnet.pcapng    a port of an InfiniBand fabric, management included
  feroce decode run.pcapng

Marks of switches are in the packets. Packets that a link loses are not in the capture of the port
that they do not reach. A capture that cannot keep up misses packets.";

/// Options.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A port, such as leaf1:3.
    port: String,
    /// File to write.
    file: PathBuf,
    /// Stop after so many packets.
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
}

pub(super) fn run(args: &Args, place: &Place) -> anyhow::Result<ExitCode> {
    stop::watch()?;
    let (reply, mut packets) = place.command(&Command::Pcap { port: args.port.clone() })?;
    if let Reply::Refused(why) = reply {
        return Ok(refuse(&why));
    }
    let interface = args.port.clone();
    let framing = match status::fetch_any(place)? {
        AnyStatus::Ethernet(_) => Framing::RoceV2,
        AnyStatus::InfiniBand(_) => Framing::InfiniBand,
    };
    let config = PcapConfig { interface, epoch_ns: epoch_ns(), framing, ..PcapConfig::default() };
    let mut file = PcapFile::create(&args.file, config)?;
    // An interrupt is noticed between two reads.
    packets.get_ref().set_read_timeout(Some(Duration::from_millis(100)))?;
    let (mut pending, mut chunk, mut count) = (Vec::new(), vec![0; 1 << 16], 0);
    while !stop::requested() && args.count.is_none_or(|most| count < most) {
        match packets.read(&mut chunk) {
            Ok(0) => break,
            Ok(len) => pending.extend_from_slice(chunk.get(..len).unwrap_or_default()),
            Err(_) => continue,
        }
        while let Some((direction, record, len)) = first(&pending)
            && args.count.is_none_or(|most| count < most)
        {
            let Record { at_ns, meta, stride, bytes } = record;
            let train = RxTrain { meta, bytes, stride, trailer: 0, remote: None };
            file.record(Instant::from_nanos(at_ns), direction, &train);
            pending.drain(..len);
            count += 1;
        }
    }
    file.flush()?;
    println!("{count} packets");
    Ok(ExitCode::SUCCESS)
}

/// The first packet of what was read, and its length there.
fn first(pending: &[u8]) -> Option<(Direction, Record<'_>, usize)> {
    let (&is_sent, mut rest) = pending.split_first()?;
    let record = Record::take(&mut rest)?;
    let direction = if is_sent == 1 { Direction::Sent } else { Direction::Received };
    let len = 1 + RECORD_LEN + record.bytes.len();
    Some((direction, record, len))
}

/// What the zero of the monotonic clock is in nanoseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "captures have the time of day")]
fn epoch_ns() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let ns = u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX);
    ns.saturating_sub(monotonic_ns())
}
