//! One measurement: starts the server, then the client, and waits for both.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};

use crate::cable::{Cable, End, Place, SERVER};
use crate::clock::{ended_children_cpu_s, nap, now};
use crate::read::Said;
use crate::rows::{Door, Row};

/// How long a server may take to be ready, and to end after its client.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs its arguments where `/sys/class/net` has the interfaces of the network namespace. UCX looks
/// there; the other tools do not need it, so a failure to mount it is ignored.
const WITH_OWN_SYSFS: &str = r#"mount -t sysfs sysfs /sys 2>/dev/null; exec "$@""#;

/// How measurements are made.
pub(crate) struct Runner<'a> {
    pub(crate) cable: &'a Cable,
    /// How long to measure, for tools that look at the clock.
    pub(crate) seconds: u32,
    /// Run both ends at real-time priority.
    pub(crate) realtime: bool,
    /// The user wants to stop.
    pub(crate) stop: &'a AtomicBool,
}

/// A figure, and what it cost.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Measured {
    pub(crate) value: f64,
    pub(crate) cost: Option<Cost>,
}

/// Processor seconds per gigabyte moved.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Cost {
    pub(crate) client: f64,
    pub(crate) server: f64,
}

impl Runner<'_> {
    /// Measures one row with the program at `path`.
    pub(crate) fn measure(
        &self,
        place: Place,
        row: &Row,
        path: &PathBuf,
    ) -> anyhow::Result<Measured> {
        let _neighbours = self.neighbours(row)?;
        let start = |end| self.start(row, path, (place, end));
        let mut server = start(End::Server)?;
        self.wait_for_door(&mut server, row.door)?;
        let client = start(End::Client)?;
        // Tools that count messages take longer than the time asked for on a slow machine.
        let limit = Duration::from_secs(20 + 10 * u64::from(self.seconds));
        let client = match self.finish(client, limit) {
            Ok(client) => client,
            Err(why) if self.is_stopped() => return Err(why),
            Err(why) => {
                let server = self.finish(server, Duration::ZERO).err();
                let server = server.map_or(String::new(), |e| format!("; server: {e:#}"));
                return Err(anyhow!("client: {why:#}{server}"));
            }
        };
        let server = self.finish(server, PATIENCE).context("server")?;
        let said = Said { client: client.said, server: server.said };
        let figure = (row.read)(&said)?;
        ensure!(figure.value.is_finite() && figure.value > 0.0, "measured nothing: {said:?}");
        let (client_s, server_s) = figure.cpu_s.unwrap_or((client.cpu_s, server.cpu_s));
        let cost = figure.gigabytes.map(|gb| Cost { client: client_s / gb, server: server_s / gb });
        Ok(Measured { value: figure.value, cost })
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Starts the processes that keep the processors busy. They end when they are dropped.
    fn neighbours(&self, row: &Row) -> anyhow::Result<Vec<Process>> {
        let one = |_| {
            let mut command = with_us();
            command.arg(std::env::current_exe()?).arg("spin").stdin(Stdio::null());
            Process::start(&mut command)
        };
        (0..row.neighbours.unwrap_or(0)).map(one).collect()
    }

    fn start(
        &self,
        row: &Row,
        path: &PathBuf,
        (place, end): (Place, End),
    ) -> anyhow::Result<Process> {
        let mut command = with_us();
        command.args(["unshare", "--mount", "--", "sh", "-c", WITH_OWN_SYSFS, "sh"]);
        if self.realtime && row.neighbours.is_none() {
            command.args(["chrt", "-f", "50"]);
        }
        let args = match end {
            End::Client => row.client,
            End::Server => row.server,
        };
        let memory = args.contains(Memory::HOLE).then(Memory::new).transpose()?;
        let args = expand(args, f64::from(self.seconds) / f64::from(row.turns), memory.as_ref());
        command.arg(path).args(args).envs(row.env.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = self.cable.at(place, end, || Process::start(&mut command))??;
        process.memory = memory;
        Ok(process)
    }

    fn wait_for_door(&self, server: &mut Process, door: Door) -> anyhow::Result<()> {
        let since = now();
        while !is_open(server.child.id(), door) {
            ensure!(!self.is_stopped(), "interrupted");
            if server.child.try_wait()?.is_some() {
                let complaint = collected(server.stderr.take());
                let why = last_line(&complaint).unwrap_or("says nothing");
                bail!("the server ended at once: {why}");
            }
            ensure!(now() - since < PATIENCE, "the server does not open {door:?}");
            nap();
        }
        Ok(())
    }

    /// Waits for a process to end well.
    fn finish(&self, mut process: Process, limit: Duration) -> anyhow::Result<Ended> {
        let cpu_before = ended_children_cpu_s();
        let status = process.wait(now() + limit, self.stop)?;
        let cpu_s = ended_children_cpu_s() - cpu_before;
        let said = collected(process.stdout.take());
        let complaint = collected(process.stderr.take());
        let why = last_line(&complaint).or_else(|| last_line(&said)).unwrap_or("says nothing");
        ensure!(status.success(), "{status}: {why}");
        Ok(Ended { said, cpu_s })
    }
}

/// Runs the program that is added to it. However this process ends, the kernel then kills that one.
fn with_us() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]);
    command
}

/// A process that ended well.
struct Ended {
    said: String,
    cpu_s: f64,
}

/// A process that is killed when it is dropped.
struct Process {
    child: Child,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
    /// The file that the process uses, if any.
    memory: Option<Memory>,
}

/// Memory in a file, as programs share it. The file is removed when it is dropped.
struct Memory(PathBuf);

impl Memory {
    /// Where its path goes in the arguments of a row.
    const HOLE: &str = "{memory}";
    /// Enough for any row.
    const LEN: u64 = 64 << 20;

    fn new() -> anyhow::Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = format!("/dev/shm/feroce-compare-{}-{number}", std::process::id());
        let file = File::create_new(&path).with_context(|| format!("cannot make {path}"))?;
        let memory = Self(path.into());
        file.set_len(Self::LEN)?;
        Ok(memory)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Process {
    fn start(command: &mut Command) -> anyhow::Result<Self> {
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let mut process = Self { child, stdout: None, stderr: None, memory: None };
        process.stdout = process.child.stdout.take().map(collect).transpose()?;
        process.stderr = process.child.stderr.take().map(collect).transpose()?;
        Ok(process)
    }

    fn wait(&mut self, until: Instant, stop: &AtomicBool) -> anyhow::Result<ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(!stop.load(Ordering::Relaxed), "interrupted");
            if now() > until {
                self.end();
                bail!("did not end in time");
            }
            nap();
        }
    }

    fn end(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// Reads all that a process says, so that it never waits for a reader.
fn collect(mut stream: impl Read + Send + 'static) -> std::io::Result<JoinHandle<String>> {
    std::thread::Builder::new().spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error is still worth showing.
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn collected(stream: Option<JoinHandle<String>>) -> String {
    stream.and_then(|thread| thread.join().ok()).unwrap_or_default()
}

/// Programs usually print last what went wrong.
fn last_line(text: &str) -> Option<&str> {
    text.lines().map(str::trim).rfind(|line| !line.is_empty())
}

/// Fills in the arguments of a row.
fn expand(args: &str, seconds: f64, memory: Option<&Memory>) -> Vec<String> {
    let memory = memory.map(|Memory(path)| path.to_string_lossy()).unwrap_or_default();
    let one = |arg: &str| match arg {
        "{server}" => SERVER.to_owned(),
        "{seconds}" => seconds.to_string(),
        _ if arg.contains(Memory::HOLE) => arg.replace(Memory::HOLE, &memory),
        _ => match arg.strip_prefix('{').and_then(|arg| arg.strip_suffix("/s}")) {
            Some(n) => (n.parse().unwrap_or(1.0) * seconds).round().to_string(),
            None => arg.to_owned(),
        },
    };
    args.split_whitespace().map(one).collect()
}

/// Whether a process has such a socket. (Sockets of other processes in its namespace would count,
/// but there are none.)
fn is_open(process: u32, door: Door) -> bool {
    let tables = match door {
        Door::Tcp(_) => ["tcp", "tcp6"],
        Door::Udp(_) => ["udp", "udp6"],
    };
    tables.iter().any(|table| {
        let sockets = std::fs::read_to_string(format!("/proc/{process}/net/{table}"));
        sockets.is_ok_and(|sockets| has_door(&sockets, door))
    })
}

/// Whether a table of sockets, in the format of the kernel, has one that shows that the server is
/// ready.
fn has_door(sockets: &str, door: Door) -> bool {
    const LISTENING: &str = "0A";
    sockets.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, state) = (fields.next(), fields.nth(1));
        let port = local.and_then(|local| u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok());
        match door {
            Door::Tcp(wanted) => port == Some(wanted) && state == Some(LISTENING),
            Door::Udp(wanted) => port == Some(wanted),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_filled_in() {
        let args = expand("-c {server} -t {seconds} -n {1000/s} -J", 3.0, None);
        assert_eq!(args, ["-c", SERVER, "-t", "3", "-n", "3000", "-J"]);
        assert_eq!(expand("{seconds} {1000/s}", 0.25, None), ["0.25", "250"]);
        assert!(expand("", 3.0, None).is_empty());
    }

    #[test]
    fn memory_is_there_as_long_as_somebody_has_it() {
        let memory = Memory::new().unwrap();
        let path = memory.0.clone();
        let args = expand("--mmap={memory}", 3.0, Some(&memory));
        assert_eq!(args, [format!("--mmap={}", path.display())]);
        assert_eq!(path.metadata().unwrap().len(), Memory::LEN);
        drop(memory);
        assert!(!path.exists());
    }

    #[test]
    fn doors_are_seen_in_the_tables_of_the_kernel() {
        let tcp = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
                   0: 0200090A:1451 00000000:0000 0A 00000000:00000000\n   \
                   1: 0200090A:1452 0100090A:9C40 01 00000000:00000000\n";
        assert!(has_door(tcp, Door::Tcp(5201)));
        assert!(!has_door(tcp, Door::Tcp(5202)), "a connection is no listener");
        assert!(has_door(tcp, Door::Udp(5202)));
        assert!(!has_door(tcp, Door::Tcp(5203)));
        assert!(!has_door("", Door::Tcp(5201)));
    }
}
