//! `feroce web`: what `feroce top` shows, as a page in a browser, and for Prometheus.
//!
//! The server listens on the loopback address. Every address begins with a secret that the command
//! prints, so that other users of this machine, and pages of other sites, get nothing. It looks
//! into the devices when a client asks and at no other time; the page remembers what it has seen.

mod http;
mod metrics;
#[cfg(feature = "otlp")]
mod otlp;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, bail, ensure};
use feroce::{FaultConfig, Qpn, watch};
use serde_json::{Value, json};

use super::{Look, json, packets};
use crate::fabric;
use http::{Request, Response, Status};
use metrics::Format;

const EXAMPLES: &str = "\
Examples:
  feroce web                       prints the address of the page: open it in a browser
  feroce web ib_write_bw           the devices of one program; or of a process, device or address
  feroce web --port 9471 --token-file ~/.feroce-token  an address that stays, for Prometheus
  feroce web --control             the page can also switch faults on and off

The page shows which queue pairs talk to which, how much, how fast, and what goes wrong; click on a
queue pair to see its last packets. A fabric that runs (`feroce fabric up`) is drawn with its queues
and pauses. The page needs no network. The server listens on 127.0.0.1; the secret in the address
keeps other users of this machine out. Prometheus finds the same numbers at /metrics, with the
content of the token file as its bearer token; docs/grafana.json is a dashboard for them.

Faults (loss=1%,delay=1ms) can be switched in devices that were opened with the setting `fault`,
which may be `off`: FEROCE_FAULT=off PROGRAM. Other devices have no layer for faults.";

/// Most clients that are served at the same time. Others are told to come again.
const MOST_CLIENTS: usize = 32;

/// Digits of a token: 128 random bits.
const TOKEN_DIGITS: usize = 32;

/// Files of the page: name, type, content.
const ASSETS: [(&str, &str, &str); 8] = [
    ("", "text/html; charset=utf-8", include_str!("assets/page.html")),
    ("page.css", "text/css; charset=utf-8", include_str!("assets/page.css")),
    ("page.js", "text/javascript; charset=utf-8", include_str!("assets/page.js")),
    ("charts.js", "text/javascript; charset=utf-8", include_str!("assets/charts.js")),
    ("fabric.js", "text/javascript; charset=utf-8", include_str!("assets/fabric.js")),
    ("faults.js", "text/javascript; charset=utf-8", include_str!("assets/faults.js")),
    ("ladder.js", "text/javascript; charset=utf-8", include_str!("assets/ladder.js")),
    ("icon.svg", "image/svg+xml", include_str!("assets/icon.svg")),
];

/// Options.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Processes, programs, devices or addresses to show [default: all]
    #[arg(value_name = "WHAT")]
    what: Vec<String>,
    /// TCP port of the page; 0 for one that is free
    #[arg(short, long, default_value_t = 0)]
    port: u16,
    /// File with the secret of the address; it is made if it does not exist
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Let the page switch faults of devices on and off; without it the page changes nothing
    #[arg(long)]
    control: bool,
    /// Also send metrics to an OpenTelemetry collector: http://HOST:PORT (OTLP over HTTP, JSON)
    #[cfg(feature = "otlp")]
    #[arg(long, value_name = "URL")]
    otlp: Option<otlp::Collector>,
    /// How often to send them
    #[cfg(feature = "otlp")]
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = super::stat::seconds)]
    otlp_interval: std::time::Duration,
}

pub(crate) fn run(args: &Args, json: bool) -> anyhow::Result<ExitCode> {
    let token = match &args.token_file {
        Some(file) => token_of(file)?,
        None => new_token()?,
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port))
        .with_context(|| format!("cannot listen on port {} of 127.0.0.1", args.port))?;
    let url = format!("http://{}/{token}/", listener.local_addr()?);
    let mut out = std::io::stdout();
    match json {
        true => writeln!(out, "{}", json!({ "url": url }))?,
        false => writeln!(out, "{url}\nOpen it in a browser; Ctrl-C ends it.")?,
    }
    out.flush()?;
    #[cfg(feature = "otlp")]
    if let Some(collector) = args.otlp.clone() {
        let (what, interval) = (args.what.clone(), args.otlp_interval);
        std::thread::Builder::new().name("otlp".to_owned()).spawn(move || {
            otlp::send_forever(&collector, interval, || Look::quiet(&what));
        })?;
    }
    Site { what: args.what.clone(), token, control: args.control }.serve(&listener)
}

/// What is served.
struct Site {
    what: Vec<String>,
    token: String,
    /// Whether clients may change anything.
    control: bool,
}

impl Site {
    /// Serves until the process ends.
    fn serve(&self, listener: &TcpListener) -> anyhow::Result<ExitCode> {
        let clients = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            loop {
                let stream = match listener.accept() {
                    Ok((stream, _)) => stream,
                    // It went away before it was served.
                    Err(e) if e.kind() == std::io::ErrorKind::ConnectionAborted => continue,
                    Err(e) => return Err(e).context("cannot accept connections"),
                };
                if clients.fetch_add(1, Ordering::Relaxed) >= MOST_CLIENTS {
                    clients.fetch_sub(1, Ordering::Relaxed);
                    refuse(&stream);
                    continue;
                }
                let clients = &clients;
                scope.spawn(move || {
                    // A client that leaves early has had enough.
                    let _ = http::serve(&stream, |request| self.answer(request));
                    clients.fetch_sub(1, Ordering::Relaxed);
                });
            }
        })
    }

    fn answer(&self, request: &Request) -> Response {
        let Some(name) = self.asked_for(request) else {
            return Response::refusal(
                Status::Forbidden,
                "the address has no token, or another one: take the address that `feroce web` \
                 printed",
            );
        };
        if request.is_post {
            return self.change(name, request);
        }
        if let Some((_, content_type, text)) = ASSETS.iter().find(|(asset, ..)| *asset == name) {
            return Response::ok(content_type, *text);
        }
        let look = || Look::quiet(&self.what);
        let found = match name {
            "look.json" => look().map(|look| {
                let mut seen = json!({ "devices": json::all(&look), "silent": look.silent });
                seen["fabrics"] = fabric::status::all().into();
                seen["control"] = self.control.into();
                seen["packets"] = packets_of(&look, request).into();
                Response::ok("application/json", seen.to_string())
            }),
            "metrics" => look().map(|look| {
                let format = Format::accepted(request.accept.as_deref());
                Response::ok(format.content_type(), metrics::write(&look, format))
            }),
            _ => return Response::refusal(Status::NotFound, "there is no such page"),
        };
        found.unwrap_or_else(|e| Response::refusal(Status::Failed, &format!("{e:#}")))
    }

    /// A client wants to change something.
    fn change(&self, name: &str, request: &Request) -> Response {
        if !self.control {
            return Response::refusal(
                Status::Forbidden,
                "this server changes nothing: start it with `feroce web --control`",
            );
        }
        if name != "fault" {
            return Response::refusal(Status::NotFound, "there is nothing to change: try fault");
        }
        let (Some((pid, device)), Some(fault)) = (device_of(request), request.value("fault"))
        else {
            let why = "expected ?pid=PID&device=NAME&fault=FAULTS";
            return Response::refusal(Status::BadRequest, why);
        };
        let fault = match fault.parse::<FaultConfig>() {
            Ok(fault) => fault,
            Err(e) => return Response::refusal(Status::BadRequest, &e.to_string()),
        };
        let look = match Look::quiet(&self.what) {
            Ok(look) => look,
            Err(e) => return Response::refusal(Status::Failed, &format!("{e:#}")),
        };
        let Some(device) = look.devices.iter().find(|d| d.pid == pid && d.device == device) else {
            return Response::refusal(Status::NotFound, "the device is not open any more");
        };
        match watch::set_fault(device, &fault) {
            Ok(()) => {
                Response::ok("application/json", json!({ "fault": fault.to_string() }).to_string())
            }
            Err(e) => Response::refusal(Status::Conflict, &e.to_string()),
        }
    }

    /// What a client that knows the token asks for: `/TOKEN/NAME`, or `/NAME` with the token as
    /// bearer token.
    fn asked_for<'a>(&self, request: &'a Request) -> Option<&'a str> {
        let path = request.path.strip_prefix('/')?;
        let bearer = request.authorization.as_deref().and_then(|text| text.strip_prefix("Bearer "));
        if bearer.is_some_and(|token| self.is_token(token)) {
            return Some(path);
        }
        let (token, name) = path.split_once('/')?;
        self.is_token(token).then_some(name)
    }

    /// Compares in a time that does not depend on where a guess is wrong.
    fn is_token(&self, guess: &str) -> bool {
        let differs = guess.bytes().zip(self.token.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
        guess.len() == self.token.len() && differs == 0
    }
}

/// The packets of the queue pair that a request names, if it names one.
fn packets_of(look: &Look, request: &Request) -> Option<Value> {
    let (pid, name) = device_of(request)?;
    let qpn = Qpn::new(request.value("qpn")?.parse().ok()?);
    let device = look.devices.iter().find(|device| device.pid == pid && device.device == name);
    let Some(device) = device.filter(|device| device.qps.iter().any(|qp| qp.qpn == qpn)) else {
        return Some(json!({ "refusal": "the queue pair does not exist any more", "steps": [] }));
    };
    Some(match watch::packets(device, qpn) {
        Ok(found) => packets::json(&found),
        Err(e) => json!({ "refusal": e.to_string(), "steps": [] }),
    })
}

/// The device that a request names: its process and its name.
fn device_of(request: &Request) -> Option<(u32, String)> {
    Some((request.value("pid")?.parse().ok()?, request.value("device")?))
}

/// Tells a client beyond the limit to come again, without waiting for it.
fn refuse(stream: &TcpStream) {
    let busy = Response::refusal(Status::Busy, "too many clients: try again later");
    let _ = stream.set_nonblocking(true);
    let _ = http::write(stream, &busy, false);
}

/// A random token.
fn new_token() -> anyhow::Result<String> {
    let mut random = [0; TOKEN_DIGITS / 2];
    let source = "/dev/urandom";
    fs::File::open(source).and_then(|mut file| file.read_exact(&mut random)).context(source)?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The token in a file that this user alone can read.
fn token_of(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    let mut options = fs::OpenOptions::new();
    match options.write(true).create_new(true).mode(0o600).open(path) {
        Ok(mut file) => {
            let token = new_token()?;
            writeln!(file, "{token}").with_context(|| format!("cannot write {shown}"))?;
            return Ok(token);
        }
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(e) => bail!("cannot make {shown}: {e}"),
    }
    let mut file = fs::File::open(path).with_context(|| format!("cannot open {shown}"))?;
    let metadata = file.metadata().with_context(|| format!("cannot look at {shown}"))?;
    ensure!(metadata.is_file(), "{shown} is not a file");
    ensure!(
        metadata.mode() & 0o077 == 0 && metadata.uid() == nix::unistd::geteuid().as_raw(),
        "{shown} is not for this user alone: `chmod 600 {shown}`"
    );
    let mut text = String::new();
    (&mut file).take(1 << 10).read_to_string(&mut text).with_context(|| shown.to_string())?;
    let token = text.trim();
    let is_plain = token.bytes().all(|byte| byte.is_ascii_alphanumeric());
    ensure!(
        token.len() >= TOKEN_DIGITS && is_plain,
        "{shown}: a token has at least {TOKEN_DIGITS} letters and digits: remove the file, and it \
         is made anew"
    );
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(path: &str, authorization: Option<&str>) -> Option<String> {
        let site = Site { what: Vec::new(), token: "5ecre7".to_owned(), control: false };
        let authorization = authorization.map(str::to_owned);
        let request = Request { path: path.to_owned(), authorization, ..Request::default() };
        site.asked_for(&request).map(str::to_owned)
    }

    #[test]
    fn only_who_knows_the_token_is_served() {
        assert_eq!(asked("/5ecre7/", None).as_deref(), Some(""));
        assert_eq!(asked("/5ecre7/metrics", None).as_deref(), Some("metrics"));
        assert_eq!(asked("/metrics", Some("Bearer 5ecre7")).as_deref(), Some("metrics"));
        for path in ["", "/", "/5ecre7", "/5ecre/", "/5ecre77/", "//", "/x/5ecre7/", "*"] {
            assert_eq!(asked(path, None), None, "{path}");
        }
        for wrong in ["5ecre7", "Bearer ", "Bearer 5ecre8", "bearer5ecre7"] {
            assert_eq!(asked("/metrics", Some(wrong)), None, "{wrong}");
        }
    }
}
