//! The `feroce` command.

mod asyncwatch;
mod backend;
mod cm;
mod config;
mod decode;
mod demo;
mod devices;
mod disk;
mod doctor;
mod dropin;
mod explain;
mod fabric;
mod generate;
mod inside;
mod ladder;
mod limits;
mod perf;
mod pingpong;
mod plot;
mod portd;
mod rpc;
mod sim;
mod size;
mod stop;
mod style;
mod words;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::anyhow;
use clap::{CommandFactory, Parser, Subcommand};
use feroce::{Settings, TransportKind};
use signal_hook::consts::SIGPIPE;
use tracing_subscriber::filter::LevelFilter;

const EXAMPLES: &str = "\
Examples:
  feroce demo                    see every operation and its packets
  feroce run -- ib_write_bw ...  run an RDMA program as it is, without RDMA hardware
  feroce rc-pingpong --both      bounce messages between two adapters on this machine
  feroce devinfo -v              what the adapters of this machine can do
  feroce ps                      what runs on them now, and `feroce stat` what it did
  feroce web                     the same as a page in a browser
  feroce doctor                  what is missing on this machine, if something is
  feroce --backend rdma-core devices  the adapters that the kernel has drivers for
  feroce run --transport iwarp -- rping ...  RDMA over TCP

FEROCE_LOG=debug tells what happens inside.";

const DEMO_EXAMPLES: &str = "\
Examples:
  feroce demo                       every scene, then how fast it all is
  feroce demo --fast --only write   one scene, nothing measured
  feroce demo --code --only read    the scene beside its code, in Rust and in C
  feroce demo --pcap demo.pcap      keep the packets, for `feroce decode` or Wireshark";

const DECODE_EXAMPLES: &str = "\
Examples:
  feroce decode demo.pcap                     a line per packet, and what they add up to
  feroce decode --ladder --qp 0x11 demo.pcap  who sent what to whom on one queue pair
  feroce decode --summary demo.pcap           who sent how much, how fast, and what went wrong
  feroce decode --op NAK demo.pcap            only what receivers refused
  feroce decode a.pcapng b.pcapng             the captures of both ends: what one sent, and whether
                                              it arrived at the other";

const RPC_EXAMPLES: &str = "\
Examples:
  feroce rpc bench --both                      all patterns, two processes on this machine
  feroce rpc bench --pattern write-poll HOST   one pattern, against `feroce rpc bench` at HOST";

const DISK_EXAMPLES: &str = "\
Examples:
  feroce disk serve disk.img --listen 10.0.0.1  a file, as a disk that Linux can mount
  feroce disk ls 10.0.0.1                       the disks of a target
  feroce disk read 10.0.0.1 -o copy.img         a copy of the first disk";

const SIM_EXAMPLES: &str = "\
Examples:
  feroce sim run incast.toml       flows over a fabric, and how long they took
  feroce sim run -o a incast.toml  the same, and keep the times of all flows
  feroce sim run --plot a.svg incast.toml  the same as a picture
  feroce sim compare a b           two runs side by side
  feroce sim new leaf-spine        a scenario to begin with
  feroce sim sweep incast.toml     many seeds, and how far the figures can be trusted

`feroce sim run --help` shows a scenario.";

/// RDMA without RDMA hardware: a software adapter in user space.
#[derive(Debug, Parser)]
#[command(name = "feroce", version, propagate_version = true, after_help = EXAMPLES)]
struct Cli {
    /// Print JSON instead of text.
    #[arg(long, global = true, help_heading = "Global options")]
    json: bool,
    /// Devices to use: the software adapter, or those of the kernel's drivers [default: feroce]
    #[arg(long, global = true, value_name = "BACKEND", value_parser = backend::NAMES)]
    #[arg(help_heading = "Global options")]
    backend: Option<String>,
    /// What devices speak: RoCE over UDP, or iWARP over TCP [default: roce]
    #[arg(long, global = true, value_name = "TRANSPORT", value_parser = Settings::TRANSPORTS)]
    #[arg(help_heading = "Global options")]
    transport: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what RDMA is: two adapters on this machine, every operation, its packets, its speed.
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(demo::Args),
    /// Run a program that uses libibverbs or librdmacm, as it is, on the software adapter.
    Run(dropin::RunArgs),
    /// Print the environment that makes programs of a shell run on the software adapter.
    Env(dropin::EnvArgs),
    /// List the devices.
    Devices(devices::ListArgs),
    /// Show the attributes of devices.
    Devinfo(devices::InfoArgs),
    /// Bounce messages over a reliable connection.
    RcPingpong(pingpong::RcArgs),
    /// Bounce messages over an unreliable connection.
    UcPingpong(pingpong::UcArgs),
    /// Bounce datagrams.
    UdPingpong(pingpong::UdArgs),
    /// Bounce messages over reliable connections that share a receive queue.
    SrqPingpong(pingpong::SrqArgs),
    /// Connect by address and ping with RDMA reads and writes.
    Rping(cm::RpingArgs),
    /// Wait for `client` and exchange a message with it.
    Server(cm::ServerArgs),
    /// Connect to `server` and exchange a message with it.
    Client(cm::ClientArgs),
    /// Make many connections, exchange messages on them and end them.
    Ucmatose(cm::UcmatoseArgs),
    /// Find a datagram service by address and exchange datagrams with it.
    Udaddy(cm::UdaddyArgs),
    /// Join a multicast group, to send or to receive.
    Mckey(cm::MckeyArgs),
    /// Measure how long connections take, step by step.
    Cmtime(cm::CmtimeArgs),
    /// Print asynchronous events as they happen.
    Asyncwatch(asyncwatch::Args),
    /// Show the settings that apply here, and where each comes from.
    Config(config::Args),
    /// Check what the adapter needs on this machine, and the path to another one.
    Doctor(doctor::Args),
    /// Hold the UDP port of this host for all programs of the user.
    Portd(portd::Args),
    /// Show what the open devices of this user did: messages, bytes, packets, errors.
    Stat(inside::StatArgs),
    /// Follow what the open devices of this user do, in a view that fills the terminal.
    Top(inside::TopArgs),
    /// Show what the open devices of this user do, as a page in a browser, and to Prometheus.
    Web(inside::WebArgs),
    /// Show the open devices of this user: queue pairs, memory, connections.
    Ps(inside::PsArgs),
    /// Measure bandwidth and latency.
    Perf(perf::Args),
    /// Measure calls over verbs.
    #[command(subcommand, after_help = RPC_EXAMPLES)]
    Rpc(rpc::Command),
    /// Serve disks to other computers over NVMe over Fabrics, and use theirs.
    #[command(subcommand, after_help = DISK_EXAMPLES)]
    Disk(disk::Command),
    /// Simulate flows over a network of switches.
    #[command(subcommand, after_help = SIM_EXAMPLES)]
    Sim(sim::Command),
    /// Run programs over a network of switches, in real time.
    Fabric(fabric::Args),
    /// Show what a packet capture holds.
    #[command(after_help = DECODE_EXAMPLES)]
    Decode(decode::Args),
    /// Print a script that completes commands in a shell.
    Completions(generate::CompletionsArgs),
    /// Print or write manual pages.
    Man(generate::ManArgs),
}

fn main() -> ExitCode {
    end_with_the_reader();
    end_with_the_output();
    let cli = Cli::parse();
    if let Err(e) = show_messages() {
        eprintln!("feroce: {}", explain::explain(&e));
        return ExitCode::from(1);
    }
    let json = cli.json;
    if let Some(name) = &cli.backend {
        backend::choose(name);
    }
    // The argument parser accepts no other names.
    match cli.transport.as_deref() {
        Some("iwarp") => Settings::choose_transport(TransportKind::Iwarp),
        Some(_) => Settings::choose_transport(TransportKind::InfiniBand),
        None => {}
    }
    if let Command::Run(_) | Command::Env(_) | Command::Completions(_) | Command::Man(_) =
        cli.command
        && json
    {
        eprintln!("feroce: --json: this command has no results to print");
        return ExitCode::from(2);
    }
    let result = match cli.command {
        Command::Demo(args) => demo::run(&args, json),
        Command::Run(args) => dropin::run(&args),
        Command::Env(args) => dropin::env(&args),
        Command::Devices(args) => devices::list(&args, json),
        Command::Devinfo(args) => devices::info(&args, json),
        Command::RcPingpong(args) => pingpong::rc(&args, json),
        Command::UcPingpong(args) => pingpong::uc(&args, json),
        Command::UdPingpong(args) => pingpong::ud(&args, json),
        Command::SrqPingpong(args) => pingpong::srq(&args, json),
        Command::Rping(args) => cm::rping(&args, json),
        Command::Server(args) => cm::server(&args, json),
        Command::Client(args) => cm::client(&args, json),
        Command::Ucmatose(args) => cm::ucmatose(&args, json),
        Command::Udaddy(args) => cm::udaddy(&args, json),
        Command::Mckey(args) => cm::mckey(&args, json),
        Command::Cmtime(args) => cm::cmtime(&args, json),
        Command::Asyncwatch(args) => asyncwatch::run(&args, json),
        Command::Config(args) => {
            let options =
                [("backend", cli.backend.as_deref()), ("transport", cli.transport.as_deref())];
            config::run(&args, json, &options)
        }
        Command::Doctor(args) => doctor::run(&args, json),
        Command::Portd(args) => portd::run(&args, json),
        Command::Stat(args) => inside::stat(&args, json),
        Command::Top(args) => inside::top(&args, json),
        Command::Web(args) => inside::web(&args, json),
        Command::Ps(args) => inside::ps(&args, json),
        Command::Perf(args) => perf::run(&args, json),
        Command::Rpc(command) => rpc::run(&command, json),
        Command::Disk(command) => disk::run(&command, json),
        Command::Sim(command) => sim::run(&command, json),
        Command::Fabric(args) => fabric::run(&args, json),
        Command::Decode(args) => decode::run(&args, json),
        Command::Completions(args) => Ok(generate::completions(&args, Cli::command())),
        Command::Man(args) => generate::man(&args, Cli::command()),
    };
    match result {
        Ok(code) => code,
        Err(e) => {
            eprintln!("feroce: {}", explain::explain(&e));
            ExitCode::from(1)
        }
    }
}

/// Shows messages of the adapter on standard error, from the level of `FEROCE_LOG` upwards.
fn show_messages() -> anyhow::Result<()> {
    let named = std::env::var("FEROCE_LOG").ok().filter(|level| !level.is_empty());
    let level = named.as_deref().unwrap_or("warn").parse::<LevelFilter>();
    let level = level.map_err(|_| {
        let named = named.unwrap_or_default();
        anyhow!("FEROCE_LOG={named:?}: expected error, warn, info, debug or trace")
    })?;
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .without_time()
        .with_writer(std::io::stderr)
        .init();
    Ok(())
}

/// Ends the process with an error when standard output cannot be written, on a full disk for
/// example, where `println!` would panic.
fn end_with_the_output() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload_as_str().unwrap_or_default();
        match text.strip_prefix("failed printing to stdout: ") {
            Some(why) => {
                eprintln!("feroce: cannot write the output: {why}");
                std::process::exit(1);
            }
            None => usual(panic),
        }
    }));
}

/// Restores the default action of SIGPIPE: the process ends, as is usual for commands, when the
/// reader of its output has closed the pipe.
fn end_with_the_reader() {
    let always = Arc::new(AtomicBool::new(true));
    // If this fails, the next `println!` to the closed pipe panics, which also ends the process.
    let _ = signal_hook::flag::register_conditional_default(SIGPIPE, always);
}
