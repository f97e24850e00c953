//! `feroce perf`: measures bandwidth and latency between two adapters, as perftest does.

mod args;
mod bw;
mod by_cm;
pub(crate) mod clock;
mod end;
mod lat;
mod measure;
mod path;
mod plot;
mod progress;
mod reference;
mod session;
mod side;
mod spec;
mod threads;

use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use crate::explain::explain;
use crate::{backend, stop};

pub(crate) use args::Args;
use end::Place;
use measure::{Row, Table};
pub(crate) use measure::{Sample, round};
use side::{Message, Side};
use spec::{Mode, Spec};

/// Measures as the options say.
pub(crate) fn run(args: &Args, json: bool) -> anyhow::Result<ExitCode> {
    stop::watch()?;
    let spec = args.spec()?;
    ensure!(args.address.len() <= 1 || args.both, "--address: two addresses are for --both");
    ensure!(
        args.reference.is_none() || args.both,
        "--reference measures sockets between two ends of this process: it needs --both"
    );
    if let Some(path) = &args.plot {
        crate::plot::prepare(path)?;
    }
    let rows = match &args.host {
        _ if args.both => both(args, &spec, json)?,
        Some(host) => client(args, &spec, host, json)?,
        None => {
            serve(args, &spec, json)?;
            Vec::new()
        }
    };
    if let Some(path) = args.plot.as_ref().filter(|_| !rows.is_empty()) {
        plot::draw(path, &spec, &rows)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Both ends in this process.
fn both(args: &Args, spec: &Spec, json: bool) -> anyhow::Result<Vec<Row>> {
    let (here, there) = match *args.address {
        [] => (Ipv4Addr::new(127, 0, 0, 1).into(), Ipv4Addr::new(127, 0, 0, 2).into()),
        [here, there] => (here, there),
        _ => anyhow::bail!("--both needs two addresses: --address A,B"),
    };
    let table = Table { json, mode: spec.mode };
    let (mut near, mut far) = Side::pair();
    let (from, to) = if args.address.is_empty() && backend::are_given()? {
        let place = match &args.device {
            Some(name) => Place::named(name, args.gid_index)?,
            None => Place::first(args.gid_index)?,
        };
        (place.clone(), place)
    } else {
        ensure!(args.device.is_none(), "--both: say --address A,B instead of -d");
        let place = |ip| anyhow::Ok(Place::at(ip)?.with_index(args.gid_index));
        (place(here)?, place(there)?)
    };
    let rows = std::thread::scope(|scope| {
        let server = std::thread::Builder::new()
            .name("perf-server".to_owned())
            .spawn_scoped(scope, move || session::follow(&to, &mut far, spec))?;
        let led = session::lead(&from, &mut near, spec, table);
        // Closes our end of the side channel, so that the server thread stops waiting for it.
        drop(near);
        match (led, server.join()) {
            (Ok(rows), _) => Ok(rows),
            // Reports the error of the side that failed first: the other error only says that the
            // other side is gone.
            (Err(_), Ok(Err(e))) if !e.to_string().contains("the other side") => Err(e),
            (Err(e), _) => Err(e),
        }
    })?;
    compare(args, spec, here, there, table)?;
    Ok(rows)
}

/// Measures plain sockets, if the user asked for it.
fn compare(
    args: &Args,
    spec: &Spec,
    here: IpAddr,
    there: IpAddr,
    table: Table,
) -> anyhow::Result<()> {
    let Some(reference) = args.reference else { return Ok(()) };
    for &size in spec.sizes.iter().take_while(|_| !stop::requested()) {
        let row = match reference {
            args::Reference::Udp => reference::udp(spec, here, there, size)?,
            args::Reference::Tcp => reference::tcp(spec, here, there, size)?,
        };
        // The columns follow what the reference measures, which may differ from `spec.mode`.
        let mode = if row.mode == "lat" { Mode::Lat } else { Mode::Bw };
        if !table.json {
            println!("for comparison, {}:", row.op);
        }
        Table { mode, ..table }.row(&row)?;
    }
    Ok(())
}

/// The device and address of this side, if the user chose them.
fn chosen_place(args: &Args) -> anyhow::Result<Option<Place>> {
    let place = match (&args.device, args.address.first()) {
        (Some(name), _) => Place::named(name, args.gid_index)?,
        (None, Some(ip)) => Place::at(*ip)?.with_index(args.gid_index),
        (None, None) => return Ok(None),
    };
    Ok(Some(place))
}

/// Measures with a server.
fn client(args: &Args, spec: &Spec, host: &str, json: bool) -> anyhow::Result<Vec<Row>> {
    let stream = TcpStream::connect((host, args.port)).with_context(|| {
        format!(
            "no server at {host} port {}: start `feroce perf {} {}` there first",
            args.port,
            spec.op.name(),
            spec.mode.name()
        )
    })?;
    let place = match chosen_place(args)? {
        Some(place) => place,
        None => Place::toward(stream.peer_addr()?.ip())?.with_index(args.gid_index),
    };
    let mut side = Side::tcp(stream, true)?;
    let led = session::lead(&place, &mut side, spec, Table { json, mode: spec.mode });
    if let Err(e) = &led {
        let _ = side.send(Message::Error(explain(e)));
    }
    led
}

/// Waits for a client and serves it.
fn serve(args: &Args, spec: &Spec, json: bool) -> anyhow::Result<()> {
    let any: IpAddr = match args.address.first() {
        Some(IpAddr::V6(_)) => [0_u16; 8].into(),
        _ => [0_u8; 4].into(),
    };
    let listener = TcpListener::bind((any, args.port))
        .with_context(|| format!("cannot listen on TCP port {}", args.port))?;
    listener.set_nonblocking(true)?;
    if !json {
        println!("waiting for a client on TCP port {}", args.port);
    }
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(_) if stop::requested() => return Ok(()),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::park_timeout(Duration::from_millis(20));
            }
            Err(e) => return Err(e.into()),
        }
    };
    stream.set_nonblocking(false)?;
    let place = match chosen_place(args)? {
        Some(place) => place,
        None => Place::reached_at(stream.local_addr()?.ip())?.with_index(args.gid_index),
    };
    let mut side = Side::tcp(stream, false)?;
    side.heeds_stop = true;
    let followed = session::follow(&place, &mut side, spec);
    match followed {
        Err(e) => {
            let _ = side.send(Message::Error(explain(&e)));
            if stop::requested() { Ok(()) } else { Err(e) }
        }
        Ok(()) => Ok(()),
    }
}
