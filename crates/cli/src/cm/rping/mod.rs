//! `feroce rping`: the client offers memory with a text, the server reads it and writes it back.
//!
//! One ping, after the connection is established:
//!
//! ```text
//! client                                server
//! SEND where the text is          ->
//!                                 <-    READ the text
//!                                 <-    SEND go ahead
//! SEND where the echo goes        ->
//!                                 <-    WRITE the text, up to its final zero
//!                                 <-    SEND go ahead
//! ```

mod client;
mod server;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use feroce::cm::{CmId, Manager};
use feroce::{Mr, QpCap, Remote, Rkey};
use serde_json::{Value, json};

use super::place::{self, BothArgs, PatienceArgs, Place, Target};
use super::{Program, Report, Say};
use crate::size;

const EXAMPLES: &str = "\
Examples:
  feroce rping --both -v -C 5               both ends here, five pings shown
  feroce rping -s -P                        a server for any number of clients ...
  feroce rping -c -a 192.0.2.1 -C 10 -V     ... and a client that checks ten echoes
  rping -c -a 192.0.2.1 -C 10               the client may be that of rdma-core, too";

/// Longest text of a ping, with its final zero.
const MAX_SIZE: u32 = 64 * 1024 - 1;

/// Sends outstanding on a queue pair.
const DEPTH: u32 = 16;

/// Options of `rping`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, disable_version_flag = true, args_override_self = true)]
#[command(group = clap::ArgGroup::new("end").required(true).args(["server", "client", "both"]))]
pub(crate) struct Args {
    /// Be the server
    #[arg(short, long, conflicts_with = "timeout")]
    server: bool,
    /// Be the client
    #[arg(short, long, requires = "addr")]
    client: bool,
    #[command(flatten)]
    both: BothArgs,
    /// Address of the server; a server without it listens at all addresses
    #[arg(short, long, conflicts_with = "both")]
    addr: Option<String>,
    /// Address of the client
    #[arg(short = 'I', long, value_name = "ADDR", conflicts_with_all = ["server", "both"])]
    source: Option<String>,
    /// Port of the server
    #[arg(short, long, default_value_t = 7174)]
    port: u16,
    /// Bytes in a ping; a server takes what the client has
    #[arg(short = 'S', long, default_value_t = 64,
          value_parser = |text: &str| size::parse(text, &(27..=MAX_SIZE)))]
    size: u32,
    /// Number of pings; 0 means until interrupted
    #[arg(short = 'C', long, default_value_t = 0)]
    count: u32,
    #[command(flatten)]
    patience: PatienceArgs,
    /// Print the text of every ping
    #[arg(short, long)]
    verbose: bool,
    /// Compare every echo with the text that was sent
    #[arg(short = 'V', long)]
    validate: bool,
    /// Accepted for compatibility with rping, without effect; FEROCE_LOG=debug prints more
    #[arg(short, long)]
    debug: bool,
    /// Serve any number of clients, also several at once, until interrupted
    #[arg(short = 'P', long, conflicts_with_all = ["client", "both"])]
    persistent: bool,
    /// Bring the queue pair up by hand instead of leaving it to the connection manager
    #[arg(short = 'q', long)]
    own_qp: bool,
}

pub(crate) fn run(args: &Args, json: bool) -> anyhow::Result<ExitCode> {
    super::run(args, args.place()?, json)
}

impl Args {
    fn place(&self) -> anyhow::Result<Place> {
        if self.both.both {
            return self.both.place();
        }
        match &self.addr {
            Some(addr) if self.client => place::client(self.source.as_deref(), addr, self.port),
            addr => place::server(addr.as_deref(), self.port),
        }
    }
}

impl Program for Args {
    fn serve(&self, manager: &Manager, listener: &CmId, say: Say) -> Report {
        if self.persistent {
            return server::serve_all(self, manager, listener, say);
        }
        server::serve_one(self, listener, say)
    }

    fn call(&self, manager: &Manager, target: Target, say: Say) -> Report {
        let mut tally = Tally::default();
        let result = client::call(self, manager, target, say, &mut tally);
        if tally.pings > 0 {
            say.line(&tally.describe());
        }
        Report { record: tally.record("client"), result }
    }
}

/// The capacity that a queue pair needs.
fn cap() -> QpCap {
    QpCap::new(DEPTH, 2)
}

/// An advert: address, key and length of memory, in network byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Advert {
    remote: Remote,
    len: u32,
}

impl Advert {
    const LEN: usize = 16;

    fn of(mr: &Mr, len: u32) -> Self {
        Self { remote: mr.remote(0), len }
    }

    fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.remote.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.remote.rkey.0.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    fn parse(bytes: [u8; Self::LEN]) -> Self {
        let whole = u128::from_be_bytes(bytes);
        let remote = Remote { addr: (whole >> 64) as u64, rkey: Rkey((whole >> 32) as u32) };
        Self { remote, len: whole as u32 }
    }
}

/// Fails if a message is not an advert.
fn check_len(byte_len: u32) -> anyhow::Result<()> {
    let expected = Advert::LEN;
    ensure!(byte_len as usize == expected, "the peer sent {byte_len} bytes and not {expected}");
    Ok(())
}

/// Counts of what was done.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    pings: u64,
    bytes: u64,
    time: Duration,
}

impl Tally {
    fn add(&mut self, bytes: u32) {
        self.pings += 1;
        self.bytes += u64::from(bytes);
    }

    fn plus(self, other: &Self) -> Self {
        Self {
            pings: self.pings + other.pings,
            bytes: self.bytes + other.bytes,
            time: self.time + other.time,
        }
    }

    fn micros_each(&self) -> f64 {
        self.time.as_secs_f64() * 1e6 / self.pings.max(1) as f64
    }

    fn describe(&self) -> String {
        let (pings, seconds, each) = (self.pings, self.time.as_secs_f64(), self.micros_each());
        format!("{pings} pings in {seconds:.2} seconds = {each:.2} usec/ping")
    }

    fn record(&self, role: &str) -> Value {
        json!({
            "test": "rping", "role": role, "pings": self.pings, "bytes": self.bytes,
            "seconds": self.time.as_secs_f64(), "usec_per_ping": self.micros_each(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adverts_are_in_network_order() {
        let remote = Remote { addr: 0x0102_0304_0506_0708, rkey: Rkey(0x090a_0b0c) };
        let advert = Advert { remote, len: 0x0d0e_0f10 };
        assert_eq!(advert.emit(), std::array::from_fn(|i| i as u8 + 1));
        assert_eq!(Advert::parse(advert.emit()), advert);
    }
}
