//! Commands that connect by address: counterparts of the example programs of librdmacm.
//!
//! Each does what its namesake in rdma-core does, takes its options and uses its protocol, so that
//! either end may be the original. They differ in what they do with a connection. Where an end
//! runs, how it waits and how it reports is the same for all and is implemented here.

#![expect(clippy::disallowed_methods, reason = "measuring takes a clock")]

mod cmtime;
mod datagrams;
mod end;
mod greet;
mod mckey;
mod place;
mod rping;
mod ucmatose;
mod udaddy;

use std::process::ExitCode;

use feroce::cm::{CmId, Manager, PortSpace};
use serde_json::{Value, json};

use crate::explain::explain;
use crate::stop;
pub(crate) use cmtime::{Args as CmtimeArgs, run as cmtime};
use end::Ended;
pub(crate) use end::{expect, judge, resolve};
pub(crate) use greet::{ClientArgs, ServerArgs, client, server};
pub(crate) use mckey::{Args as MckeyArgs, run as mckey};
use place::Place;
pub(crate) use place::Target;
pub(crate) use rping::{Args as RpingArgs, run as rping};
pub(crate) use ucmatose::{Args as UcmatoseArgs, run as ucmatose};
pub(crate) use udaddy::{Args as UdaddyArgs, run as udaddy};

/// Exit status after an interrupt: 128 plus the signal number, as in shells.
const INTERRUPTED: u8 = 130;

/// A command with a server and a client.
trait Program: Sync {
    /// The port space that it uses.
    fn space(&self) -> PortSpace {
        PortSpace::Tcp
    }

    /// The server's part, on an id that listens.
    fn serve(&self, manager: &Manager, listener: &CmId, say: Say) -> Report;

    /// The client's part.
    fn call(&self, manager: &Manager, target: Target, say: Say) -> Report;
}

/// The result of one end, whether it succeeded or not.
#[derive(Debug)]
struct Report {
    /// As JSON.
    record: Value,
    /// Whether the end succeeded.
    result: anyhow::Result<()>,
}

impl Report {
    fn is_interrupted(&self) -> bool {
        matches!(&self.result, Err(e) if e.downcast_ref() == Some(&Ended::Interrupted))
    }

    /// The record, with the error if there is one.
    fn complete(&self) -> Value {
        let mut record = self.record.clone();
        record["interrupted"] = json!(self.is_interrupted());
        if let (Err(e), false) = (&self.result, self.is_interrupted()) {
            record["error"] = json!(explain(e));
        }
        record
    }
}

/// What to print during the run.
#[derive(Clone, Copy, Debug)]
struct Say {
    on: bool,
}

impl Say {
    /// A line of the output.
    fn line(self, text: &str) {
        if self.on {
            println!("{text}");
        }
    }

    /// Prints a progress line.
    fn note(self, text: &str) {
        if self.on {
            eprintln!("{text}");
        }
    }
}

/// Runs one end, or both.
fn run(program: &impl Program, place: Place, json: bool) -> anyhow::Result<ExitCode> {
    stop::watch()?;
    let say = Say { on: !json };
    let (reports, record) = match place {
        Place::Server(at) => {
            let manager = Manager::new();
            let listener = place::listen(&manager, program.space(), at)?;
            say.note(&format!("listening at {}", place::local_addr(&listener)?));
            let report = program.serve(&manager, &listener, say);
            let record = report.complete();
            (vec![report], record)
        }
        Place::Client(target) => {
            let report = program.call(&Manager::new(), target, say);
            let record = report.complete();
            (vec![report], record)
        }
        Place::Both(server, client) => {
            let (served, called) = run_both(program, (server, client), say)?;
            let record = json!({ "server": served.complete(), "client": called.complete() });
            (vec![served, called], record)
        }
    };
    if json {
        println!("{record}");
    }
    conclude(reports)
}

/// Both ends in this process: the server in a thread of its own, without output.
fn run_both(
    program: &impl Program,
    (server, client): (place::Local, place::Local),
    say: Say,
) -> anyhow::Result<(Report, Report)> {
    let (there, here) = (server.manager()?, client.manager()?);
    let listener = place::listen(&there, program.space(), (server.ip, 0).into())?;
    let to = place::local_addr(&listener)?;
    let target = Target { from: Some((client.ip, 0).into()), to };
    Ok(both_ends(
        || program.serve(&there, &listener, Say { on: false }),
        || program.call(&here, target, say),
    ))
}

/// Runs both ends, the first in a thread of its own. An end that fails requests a stop, so that the
/// other end does not wait for it.
fn both_ends(
    there: impl FnOnce() -> Report + Send,
    here: impl FnOnce() -> Report,
) -> (Report, Report) {
    let watch = |report: Report| {
        if report.result.is_err() {
            stop::request();
        }
        report
    };
    std::thread::scope(|scope| {
        let there = scope.spawn(|| watch(there()));
        let here = watch(here());
        (there.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), here)
    })
}

/// The exit status. Reports the first failure; an interrupt is not a failure.
fn conclude(reports: Vec<Report>) -> anyhow::Result<ExitCode> {
    let is_interrupted = reports.iter().any(Report::is_interrupted);
    for report in reports {
        if !report.is_interrupted() {
            report.result?;
        }
    }
    Ok(if is_interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}
