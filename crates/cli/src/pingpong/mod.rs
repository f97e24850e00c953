//! `feroce rc-pingpong`, `uc-pingpong`, `ud-pingpong` and `srq-pingpong`.
//!
//! They do what the programs of those names in rdma-core do, take the same options, print the same
//! lines and use the same protocol on the side channel, so that the other end may be one of those.

#![expect(clippy::disallowed_methods, reason = "measuring takes a clock")]

mod args;
mod exchange;
mod memory;
mod place;
mod report;
mod session;

use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::backend;

use args::{Kind, Plan, Request};
pub(crate) use args::{RcArgs, SrqArgs, UcArgs, UdArgs};
use exchange::{Address, Channel};
use place::{Choice, Place};
use report::{Done, Record, Role};
use session::Session;

/// Exit status after an interrupt: 128 plus the signal number, as in shells.
const INTERRUPTED: u8 = 130;

/// How long a reliable end stays reachable after its last message: its last acknowledgement may
/// have been lost, and the peer retransmits after a timeout of 67 ms.
const LINGER: Duration = Duration::from_millis(100);

pub(crate) fn rc(args: &RcArgs, json: bool) -> anyhow::Result<ExitCode> {
    run(&args.request()?, json)
}

pub(crate) fn uc(args: &UcArgs, json: bool) -> anyhow::Result<ExitCode> {
    run(&args.request()?, json)
}

pub(crate) fn ud(args: &UdArgs, json: bool) -> anyhow::Result<ExitCode> {
    run(&args.request()?, json)
}

pub(crate) fn srq(args: &SrqArgs, json: bool) -> anyhow::Result<ExitCode> {
    run(&args.request()?, json)
}

fn run(request: &Request, json: bool) -> anyhow::Result<ExitCode> {
    if request.both { run_both(request, json) } else { run_one(request, json) }
}

/// One end in this process, the other in another.
fn run_one(request: &Request, json: bool) -> anyhow::Result<ExitCode> {
    let plan = &request.plan;
    let show = if json { Show::Nothing } else { Show::One };
    let end = match &request.host {
        Some(host) => {
            let channel = exchange::connect(host, request.port)?;
            meet_server(plan, &request.choice, None, channel, show)?
        }
        None => {
            let place = match request.choice.names_device() {
                true => Some(Place::chosen(&request.choice)?),
                false => None,
            };
            let listener = exchange::listen(request.port)?;
            meet_client(plan, &request.choice, place, &listener, show)?
        }
    };
    let (session, done) = end.exchange(&stop_on_signals()?)?;
    if plan.kind.is_reliable() && !done.outcome.interrupted {
        std::thread::sleep(LINGER);
    }
    drop(session);
    if json {
        print_json(&done.record(plan))?;
    } else {
        done.outcome.print(plan);
    }
    Ok(exit_code(&[&done]))
}

/// Both ends in this process, each in a thread of its own.
fn run_both(request: &Request, json: bool) -> anyhow::Result<ExitCode> {
    #[derive(Serialize)]
    struct Both {
        server: Record,
        client: Record,
    }
    let plan = &request.plan;
    let places = places_for_both(request)?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot listen on the loopback")?;
    let port = listener.local_addr()?.port();
    let stop = stop_on_signals()?;
    // An end that fails sets `stop`; the other end would otherwise wait for it until its timeout.
    let watch = |result: anyhow::Result<(Session, Done)>| {
        result.inspect_err(|_| stop.store(true, Ordering::Relaxed))
    };
    let serve = || {
        let show = Show::Nothing;
        let end = meet_client(plan, &request.choice, Some(places.0.clone()), &listener, show)?;
        end.exchange(&stop)
    };
    // Before the server waits for it: the server's wait has no end.
    let channel = exchange::connect("127.0.0.1", port)?;
    let call = || {
        let show = if json { Show::Nothing } else { Show::Both };
        let end = meet_server(plan, &request.choice, Some(places.1.clone()), channel, show)?;
        end.exchange(&stop)
    };
    let (server, client) = std::thread::scope(|scope| {
        let server = scope.spawn(|| watch(serve()));
        let client = watch(call());
        (server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), client)
    });
    if let (Err(server), Err(client)) = (&server, &client) {
        // One failed because the other did, and only the user can tell which.
        bail!("the server: {server:#}\nthe client: {client:#}");
    }
    // Both sessions live until both ends are done.
    let ((_server, served), (_client, called)) = (server?, client?);
    if json {
        print_json(&Both { server: served.record(plan), client: called.record(plan) })?;
    } else {
        called.outcome.print(plan);
        for page in &served.outcome.invalid_pages {
            println!("invalid data in page {page}");
        }
    }
    Ok(exit_code(&[&served, &called]))
}

fn places_for_both(request: &Request) -> anyhow::Result<(Place, Place)> {
    let choice = &request.choice;
    if choice.names_device() || backend::are_given()? {
        let server = Place::chosen(choice)?;
        let client = match request.second {
            Some(address) => Place::chosen(&Choice { address: Some(address), ..choice.clone() })?,
            None => server.clone(),
        };
        return Ok((server, client));
    }
    Ok((Place::on_loopback(choice, 1)?, Place::on_loopback(choice, 2)?))
}

/// An end that knows its peer.
struct End {
    session: Session,
    role: Role,
    local: Vec<Address>,
    remote: Vec<Address>,
}

impl End {
    fn exchange(self, stop: &Arc<AtomicBool>) -> anyhow::Result<(Session, Done)> {
        let place = self.session.place();
        let (device, gid_index) = (place.context.device().name().to_owned(), place.gid_index);
        let (session, outcome) = self.session.exchange(stop)?;
        let (role, local, remote) = (self.role, self.local, self.remote);
        Ok((session, Done { role, device, gid_index, local, remote, outcome }))
    }
}

/// The server's part of the side channel. The server connects its queue pairs before it answers,
/// because the client may send as soon as it has the answer.
fn meet_client(
    plan: &Plan,
    choice: &Choice,
    place: Option<Place>,
    listener: &TcpListener,
    show: Show,
) -> anyhow::Result<End> {
    let open = |place| {
        let session = Session::new(plan, Role::Server, place)?;
        let local = session.addresses();
        show.local(&local);
        Ok::<_, anyhow::Error>((session, local))
    };
    let early = place.map(open).transpose()?;
    if early.is_none() {
        show.note("waiting for a client; its connection decides on the device");
    }
    let mut channel = exchange::accept(listener)?;
    let mut remote = channel.receive(plan.addresses())?;
    let (mut session, local) = match early {
        Some(end) => end,
        None => open(Place::of_server(choice, channel.ends()?.0)?)?,
    };
    session.connect(&remote)?;
    channel.send(&local, plan.addresses())?;
    channel.await_done()?;
    remote.truncate(local.len());
    show.remote(&remote);
    Ok(End { session, role: Role::Server, local, remote })
}

/// The client's part of the side channel.
fn meet_server(
    plan: &Plan,
    choice: &Choice,
    place: Option<Place>,
    mut channel: Channel,
    show: Show,
) -> anyhow::Result<End> {
    let place = match place {
        Some(place) => place,
        None if choice.names_device() => Place::chosen(choice)?,
        None => {
            let (own, peer) = channel.ends()?;
            Place::of_client(choice, own, peer)?
        }
    };
    let mut session = Session::new(plan, Role::Client, place)?;
    let local = session.addresses();
    show.local(&local);
    channel.send(&local, plan.addresses())?;
    let mut remote = channel.receive(plan.addresses())?;
    channel.say_done()?;
    remote.truncate(local.len());
    show.remote(&remote);
    session.connect(&remote)?;
    Ok(End { session, role: Role::Client, local, remote })
}

/// What to print during the run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Show {
    Nothing,
    /// This end.
    One,
    /// Both ends, by the client.
    Both,
}

impl Show {
    fn local(self, addresses: &[Address]) {
        self.print(if self == Self::Both { "client" } else { "local" }, addresses);
    }

    fn remote(self, addresses: &[Address]) {
        self.print(if self == Self::Both { "server" } else { "remote" }, addresses);
    }

    fn print(self, whose: &str, addresses: &[Address]) {
        if self == Self::Nothing {
            return;
        }
        let whose = format!("{whose} address:");
        for address in addresses {
            println!("  {whose:<15} {address}");
        }
    }

    fn note(self, text: &str) {
        if self != Self::Nothing {
            eprintln!("{text}");
        }
    }
}

fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(value)?);
    Ok(())
}

/// Set by the first interrupt; the second ends the process.
fn stop_on_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let (code, flag) = (i32::from(INTERRUPTED), Arc::clone(&stop));
        signal_hook::flag::register_conditional_shutdown(signal, code, flag)?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

fn exit_code(ends: &[&Done]) -> ExitCode {
    if ends.iter().any(|end| !end.outcome.is_valid()) {
        ExitCode::FAILURE
    } else if ends.iter().any(|end| end.outcome.interrupted) {
        ExitCode::from(INTERRUPTED)
    } else {
        ExitCode::SUCCESS
    }
}
