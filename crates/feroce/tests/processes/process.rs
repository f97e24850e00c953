//! Child processes, as the tests see them.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::child;

/// Set in children: the address they use.
pub(crate) const ADDRESS: &str = "FEROCE_TEST_ADDRESS";

/// A child process. It is killed when this is dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    /// Starts one at the address of a namespace, in the namespace of this thread.
    pub(crate) fn start(address: [u8; 4]) -> Self {
        let mut process = Self::start_with(address, |_| {});
        assert_eq!(process.hear(), "open");
        process
    }

    pub(crate) fn start_with(address: [u8; 4], change: impl FnOnce(&mut Command)) -> Self {
        Self::start_through(&[], address, change)
    }

    /// Starts one through a command that executes its arguments.
    pub(crate) fn start_through(
        wrapper: &[&str],
        address: [u8; 4],
        change: impl FnOnce(&mut Command),
    ) -> Self {
        let exe = std::env::current_exe().expect("we run");
        let words: Vec<_> = wrapper.iter().map(OsString::from).chain([exe.into()]).collect();
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .args(["--exact", "child_process", "--nocapture"])
            .env(ADDRESS, std::net::Ipv4Addr::from(address).to_string())
            .env_remove("FEROCE_FAULT")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().expect("it starts");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, stdin, stdout }
    }

    pub(crate) fn tell(&mut self, text: &str) {
        let stdin = self.stdin.as_mut().expect("not closed");
        writeln!(stdin, "{text}").expect("it listens");
    }

    /// The next line that it prints; `None` if it has died.
    pub(crate) fn hear_any(&mut self) -> Option<String> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.stdout.read_line(&mut line).expect("readable") == 0 {
                return None;
            }
            // The harness prints the name of the test in front of the first line.
            if let Some((_, said)) = line.trim_end().split_once('@') {
                return Some(said.to_owned());
            }
        }
    }

    pub(crate) fn hear(&mut self) -> String {
        self.hear_any().expect("it lives")
    }

    /// The next line that it prints, except progress reports.
    pub(crate) fn result(&mut self) -> String {
        loop {
            let said = self.hear();
            if !said.starts_with("progress") {
                return said;
            }
        }
    }

    /// What a counter of its link, or of its engine, says.
    pub(crate) fn counter(&mut self, name: &str) -> u64 {
        self.tell(&format!("counter {name}"));
        let said = self.result();
        let count = said.strip_prefix("counter ").and_then(|count| count.parse().ok());
        count.unwrap_or_else(|| panic!("it said {said:?}"))
    }

    /// How many descriptors it has open, and how many deleted files it has mapped.
    pub(crate) fn holds(&self) -> [usize; 2] {
        let of = |what| format!("/proc/{}/{what}", self.child.id());
        let descriptors = std::fs::read_dir(of("fd")).expect("our child").count();
        let maps = std::fs::read_to_string(of("maps")).expect("our child");
        [descriptors, maps.lines().filter(|line| line.ends_with("(deleted)")).count()]
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("our child");
    }

    /// Lets it exit by itself, and checks that it succeeded.
    pub(crate) fn finish(mut self) {
        drop(self.stdin.take());
        while self.hear_any().is_some() {}
        let status = self.child.wait().expect("our child");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Connects two processes and lets them exchange `rounds` messages each.
pub(crate) fn pair(a: &mut Process, b: &mut Process, rounds: u64) {
    let [of_a, of_b] = [&mut *a, &mut *b].map(|process| {
        process.tell("pair");
        let said = process.hear();
        said.strip_prefix("endpoint ").unwrap_or_else(|| panic!("{said}")).to_owned()
    });
    a.tell(&format!("connect {of_b} {rounds}"));
    b.tell(&format!("connect {of_a} {rounds}"));
}

/// Connects two processes, and waits until they have exchanged `rounds` messages each.
pub(crate) fn talk(a: &mut Process, b: &mut Process, rounds: u64) {
    pair(a, b, rounds);
    assert_eq!([a, b].map(Process::result), [done(rounds), done(rounds)]);
}

/// The line that a process prints after it has exchanged `rounds` messages.
pub(crate) fn done(rounds: u64) -> String {
    format!("done {}", child::messages(rounds))
}

/// The registry directory of the processes in the namespace of this thread.
pub(crate) fn registry() -> PathBuf {
    let namespace = std::fs::metadata("/proc/thread-self/ns/net").expect("/proc is there").ino();
    let user = nix::unistd::geteuid();
    let prefix = format!("feroce-{user}-{namespace}-");
    let all = std::fs::read_dir("/dev/shm").expect("/dev/shm is there").flatten();
    let mut names = all.filter(|e| e.file_name().to_string_lossy().starts_with(&prefix));
    names.next().map_or_else(PathBuf::new, |entry| entry.path())
}
