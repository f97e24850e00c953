//! The server, in this process or in another one.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{self, Command, Stdio};

use anyhow::{Context as _, ensure};
use feroce::cm::Listener;
use feroce_rpc::patterns::Answerer;

use super::args::BenchArgs;
use super::store::Store;

/// Serves clients, one after the other, until the process is ended.
pub(super) fn run(args: &BenchArgs, json: bool) -> anyhow::Result<()> {
    let ip = args.address.first().copied();
    let at = SocketAddr::new(ip.unwrap_or_else(|| Ipv4Addr::UNSPECIFIED.into()), args.port);
    let listener = Listener::bind(&super::manager(ip)?, at)
        .with_context(|| format!("cannot listen at {at}"))?;
    if args.child {
        println!("{}", listener.local_addr());
        std::io::stdout().flush()?;
        end_with_the_parent()?;
    } else if !json {
        println!("waiting for clients at {}; Ctrl-C ends it", listener.local_addr());
    }
    let mut store = Store::new();
    loop {
        let served = Answerer::accept(listener.accept()?).and_then(|mut answerer| {
            let pattern = answerer.pattern();
            let calls = answerer.serve(|request, reply| store.answer(request, reply), || false)?;
            Ok((pattern, calls))
        });
        match served {
            Ok((pattern, calls)) if !json && !args.child => println!("{pattern}: {calls} calls"),
            Ok(_) => {}
            // The next client is not to blame for this one.
            Err(e) => eprintln!("feroce: {e}"),
        }
    }
}

/// Ends this process when its parent closes the pipe, also if the parent is killed.
fn end_with_the_parent() -> anyhow::Result<()> {
    std::thread::Builder::new().name("rpc-parent".to_owned()).spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        process::exit(0);
    })?;
    Ok(())
}

/// A server in a process of its own, which ends with this value.
#[derive(Debug)]
pub(super) struct Child {
    process: process::Child,
    addr: SocketAddr,
}

impl Child {
    pub(super) fn start(ip: IpAddr) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let ip_text = ip.to_string();
        let mut process = Command::new(program)
            .args(["rpc", "bench", "--child", "--port", "0", "--address", &ip_text])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the server")?;
        let mut line = String::new();
        if let Some(out) = process.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        let addr = line.trim().parse();
        let mut child = Self { process, addr: SocketAddr::new(ip, 0) };
        ensure!(addr.is_ok(), "the server at {ip} has not started");
        child.addr = addr?;
        Ok(child)
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It ends when its standard input does.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}
