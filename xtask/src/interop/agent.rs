//! Commands for the guest, and the agent there that runs them.
//!
//! Each connection runs one command. The agent sends a greeting, which shows that the guest is
//! ready; the host sends the words of the command; the command writes its output to the connection;
//! then the agent sends a NUL and the exit status. Closing the connection early ends the command.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use super::lab::Side;
use super::ready::Ready;
use super::{PAUSE, failed};
use crate::Outcome;

/// TCP port of the agent, in the guest and where QEMU forwards it from.
pub(super) const PORT: u16 = 7000;

const GREETING: &str = "ready\n";

/// Where the kernel's driver counts.
const COUNTERS: &str = "/sys/class/infiniband/rxe0/ports/1/hw_counters";

/// Where the kernel records the probes that `interop/init.sh` has set: how often it checked ICRCs,
/// and every wrong one.
const CHECKS: &str = "/sys/kernel/tracing/kprobe_profile";
const FINDINGS: &str = "/sys/kernel/tracing/trace";

/// Where the kernel says what has befallen it, and the bits of an oops and of a warning.
const TAINTS: &str = "/proc/sys/kernel/tainted";
const FAULTS: u64 = 1 << 7 | 1 << 9;

/// A task that the agent does itself, which is much faster than starting a program in an emulated
/// machine.
const WAIT_FOR: &str = "agent:wait-for";
const COUNT: &str = "agent:count";

/// A command in the guest.
#[derive(Debug)]
pub(super) struct Remote {
    stream: TcpStream,
}

impl Remote {
    /// Starts a command; `None` if the guest is not ready.
    pub(super) fn start(words: &[String]) -> io::Result<Option<Self>> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, PORT))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut greeting = [0; GREETING.len()];
        // QEMU accepts connections before the agent in the guest listens.
        if (&stream).read_exact(&mut greeting).is_err() || greeting != *GREETING.as_bytes() {
            return Ok(None);
        }
        (&stream).write_all(format!("{}\n", words.join("\0")).as_bytes())?;
        Ok(Some(Self { stream }))
    }

    /// Whether the command has ended.
    pub(super) fn has_ended(&self) -> bool {
        let mut seen = [0; 1 << 16];
        let looked = self.stream.set_nonblocking(true).and_then(|()| self.stream.peek(&mut seen));
        self.stream.set_nonblocking(false).is_err()
            || looked.is_ok_and(|len| len == 0 || seen[..len].contains(&0))
    }

    /// Waits for the end of the command: what it wrote and how it ended, or `None` if that takes
    /// longer than `limit`; then it is ended.
    pub(super) fn finish(self, limit: Duration) -> io::Result<Option<(String, String)>> {
        self.stream.set_read_timeout(Some(limit))?;
        let mut bytes = Vec::new();
        match (&self.stream).read_to_end(&mut bytes) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(e) => return Err(e),
        }
        let text = String::from_utf8_lossy(&bytes);
        let (output, status) = text.rsplit_once('\0').unwrap_or((&text, "lost"));
        Ok(Some((output.to_owned(), status.to_owned())))
    }
}

/// Waits until a server is ready in the guest.
pub(super) fn wait_for(ready: Ready, port: u16) -> Vec<String> {
    vec![WAIT_FOR.to_owned(), ready.name().to_owned(), port.to_string()]
}

/// Reads every counter of the driver and of UDP.
pub(super) fn count() -> Vec<String> {
    vec![COUNT.to_owned()]
}

/// The agent. It never ends by itself.
pub(super) fn serve() -> Outcome {
    let listener =
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).map_err(|e| failed("bind", e))?;
    thread::scope(|scope| {
        for stream in listener.incoming().flatten() {
            scope.spawn(move || {
                // The connection is the only way to report an error, and it failed.
                let _ = serve_one(&stream);
                let _ = stream.shutdown(Shutdown::Both);
            });
        }
    });
    Ok(())
}

fn serve_one(stream: &TcpStream) -> io::Result<()> {
    let mut writer = stream;
    writer.write_all(GREETING.as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let words: Vec<&str> = line.trim_end_matches('\n').split('\0').collect();
    let status = match *words {
        [WAIT_FOR, ready, port] => {
            let port = port.parse().map_err(io::Error::other)?;
            let ready = Ready::named(ready).ok_or_else(|| io::Error::other("no such thing"))?;
            while !ready.is_reached(Side::Kernel, port) {
                thread::park_timeout(PAUSE);
            }
            "exit status: 0".to_owned()
        }
        [COUNT] => {
            writer.write_all(counters()?.as_bytes())?;
            "exit status: 0".to_owned()
        }
        _ => run(stream, &words)?,
    };
    writer.write_all(format!("\0{status}").as_bytes())
}

fn run(stream: &TcpStream, words: &[&str]) -> io::Result<String> {
    let output = || Ok::<_, io::Error>(Stdio::from(OwnedFd::from(stream.try_clone()?)));
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(output()?).stderr(output()?);
    let mut child = match command.process_group(0).current_dir("/tmp").spawn() {
        Ok(child) => child,
        Err(e) => return Ok(format!("cannot run {}: {e}", words[0])),
    };
    let group = format!("-{}", child.id());
    let has_ended = AtomicBool::new(false);
    let status = thread::scope(|scope| {
        scope.spawn(|| {
            // The host sends nothing more: this read ends when the host closes the connection, or
            // with the command.
            let _ = (&*stream).read(&mut [0]);
            if !has_ended.load(Ordering::Acquire) {
                let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
            }
        });
        let status = child.wait();
        has_ended.store(true, Ordering::Release);
        let _ = stream.shutdown(Shutdown::Read);
        status
    });
    Ok(status?.to_string())
}

/// Lines of a name and a number.
fn counters() -> io::Result<String> {
    let mut text = String::new();
    if !Path::new(COUNTERS).exists() {
        // Soft-iWARP counts nothing; but the kernel remembers its own faults.
        let taints: u64 = fs::read_to_string(TAINTS)?.trim().parse().map_err(io::Error::other)?;
        return Ok(format!("kernel_faults {}\n", taints & FAULTS));
    }
    for file in fs::read_dir(COUNTERS)? {
        let file = file?;
        let name = file.file_name();
        let value = fs::read_to_string(file.path())?;
        text += &format!("{} {}\n", name.to_string_lossy(), value.trim());
    }
    let (checked, missed, wrong) = icrcs()?;
    let received = udp_received()?;
    text += &format!("udp_received {received}\n");
    text += &format!("icrc_checked {checked}\nicrc_missed {missed}\nicrc_wrong {wrong}\n");
    Ok(text)
}

/// How many ICRC checks the probe saw, how many it missed, and how many ICRCs were wrong.
fn icrcs() -> io::Result<(String, String, usize)> {
    let profile = fs::read_to_string(CHECKS)?;
    // One probe, one line: its name, and how often it was hit and missed.
    let mut words = profile.split_whitespace().skip(1).map(str::to_owned);
    let (checked, missed) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let findings = fs::read_to_string(FINDINGS)?;
    let wrong = findings.lines().filter(|line| !line.starts_with('#')).count();
    Ok((checked, missed, wrong))
}

/// Datagrams that UDP has delivered to sockets; the driver has the only one here.
fn udp_received() -> io::Result<u64> {
    let old = fs::read_to_string("/proc/net/snmp")?;
    // Two lines for each protocol: names, then values.
    let mut udp = old.lines().filter(|line| line.starts_with("Udp: "));
    let (names, values) = (udp.next().unwrap_or_default(), udp.next().unwrap_or_default());
    let both = names.split_whitespace().zip(values.split_whitespace());
    let v4 = both.into_iter().find(|(name, _)| *name == "InDatagrams").map_or("", |(_, n)| n);
    let new = fs::read_to_string("/proc/net/snmp6")?;
    let v6 = new.lines().find_map(|line| line.strip_prefix("Udp6InDatagrams")).unwrap_or_default();
    Ok([v4, v6].iter().filter_map(|number| number.trim().parse::<u64>().ok()).sum())
}
