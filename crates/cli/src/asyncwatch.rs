//! `feroce asyncwatch`: prints asynchronous events of a device when they occur, in the format of
//! rdma-core's `ibv_asyncwatch`.

use std::os::fd::AsRawFd;
use std::process::ExitCode;

use anyhow::Context as _;
use feroce::{AsyncEvent, Context, Device};
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  feroce asyncwatch -d eth0           events of the device on an interface, until interrupted
  feroce asyncwatch -d eth0 -n 1      wait for one event
  feroce --json asyncwatch            an object per line

Unplug the cable, or change addresses (`ip addr`) or MTU (`ip link set ... mtu`), to see some.";

/// Options.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Device, or its interface [default: the first]
    #[arg(short = 'd', long = "ib-dev", visible_alias = "device", value_name = "DEV")]
    device: Option<String>,
    /// Stop after so many events
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,
    /// Also say which entry of the GID table changed and to what, and the MTU of the port
    #[arg(short, long)]
    verbose: bool,
}

/// An event, as JSON.
#[derive(Debug, Serialize)]
struct Record {
    device: String,
    event: &'static str,
    code: u32,
    port: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<usize>,
}

pub(crate) fn run(args: &Args, json: bool) -> anyhow::Result<ExitCode> {
    let device = match &args.device {
        Some(name) => Device::named(name)?,
        None => {
            let first = Device::list()?.into_iter().next();
            first.context("this machine has no interface with an address")?
        }
    };
    let context = device.open().with_context(|| format!("cannot open {}", device.name()))?;
    if !json {
        let fd = context.async_fd()?.as_raw_fd();
        println!("{}: async event FD {fd}", device.name());
    }
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        if let Some(event) = context.wait_async_event(None)? {
            print(&context, &event, args.verbose, json)?;
            left -= 1;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print(context: &Context, event: &AsyncEvent, verbose: bool, json: bool) -> anyhow::Result<()> {
    let (name, code) = name_of(event);
    let changed = match event {
        AsyncEvent::GidChange { index, gid } => Some((*index, gid.to_string())),
        _ => None,
    };
    // Attributes of the port may have changed whenever it reports that it is active.
    let mtu = (*event == AsyncEvent::PortActive).then(|| context.port().active_mtu.bytes());
    if json {
        let (index, gid) = changed.unzip();
        let device = context.device().name().to_owned();
        let record = Record { device, event: name, code, port: 1, index, gid, mtu };
        println!("{}", serde_json::to_string(&record)?);
        return Ok(());
    }
    let detail = match (changed, mtu) {
        (Some((index, gid)), _) if verbose => format!(", GID[{index}] {gid}"),
        (_, Some(mtu)) if verbose => format!(", MTU {mtu}"),
        _ => String::new(),
    };
    println!("  event_type {name} ({code}), port 1{detail}");
    Ok(())
}

/// Name and number of an event in `ibv_event_type`.
fn name_of(event: &AsyncEvent) -> (&'static str, u32) {
    match event {
        AsyncEvent::CqError(_) => ("IBV_EVENT_CQ_ERR", 0),
        AsyncEvent::QpFatal(_) => ("IBV_EVENT_QP_FATAL", 1),
        AsyncEvent::QpRequestError(_) => ("IBV_EVENT_QP_REQ_ERR", 2),
        AsyncEvent::QpAccessError(_) => ("IBV_EVENT_QP_ACCESS_ERR", 3),
        AsyncEvent::CommEstablished(_) => ("IBV_EVENT_COMM_EST", 4),
        AsyncEvent::SqDrained(_) => ("IBV_EVENT_SQ_DRAINED", 5),
        AsyncEvent::PortActive => ("IBV_EVENT_PORT_ACTIVE", 9),
        AsyncEvent::PortError => ("IBV_EVENT_PORT_ERR", 10),
        AsyncEvent::LidChange { .. } => ("IBV_EVENT_LID_CHANGE", 11),
        AsyncEvent::PkeyChange => ("IBV_EVENT_PKEY_CHANGE", 12),
        AsyncEvent::SmChange => ("IBV_EVENT_SM_CHANGE", 13),
        AsyncEvent::ClientReregister => ("IBV_EVENT_CLIENT_REREGISTER", 17),
        AsyncEvent::SrqError(_) => ("IBV_EVENT_SRQ_ERR", 14),
        AsyncEvent::SrqLimitReached(_) => ("IBV_EVENT_SRQ_LIMIT_REACHED", 15),
        AsyncEvent::LastWqeReached(_) => ("IBV_EVENT_QP_LAST_WQE_REACHED", 16),
        AsyncEvent::GidChange { .. } => ("IBV_EVENT_GID_CHANGE", 18),
    }
}
