//! A fabric of a test, with programs on its hosts.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread::park_timeout;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common;

/// How often to look for something that takes milliseconds on an idle machine.
const LOOKS: usize = 3000;

pub(crate) fn wait_until(is_so: impl Fn() -> bool) {
    let seen = (0..LOOKS).any(|_| {
        is_so() || {
            park_timeout(Duration::from_millis(10));
            false
        }
    });
    assert!(seen, "it does not happen");
}

/// Whether a program is there.
pub(crate) fn installed(program: &str) -> Option<()> {
    let folders = ["/usr/sbin", "/usr/bin"];
    match folders.iter().any(|folder| PathBuf::from(folder).join(program).exists()) {
        true => Some(()),
        false => common::skip(program, "opensm infiniband-diags"),
    }
}

/// A program that ends with the test.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn kill(mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        end_child(&mut self.0);
    }
}

/// Ends a program, and waits for it.
pub(crate) fn end(running: Running) {
    drop(running);
}

fn end_child(child: &mut Child) {
    if let Ok(None) = child.try_wait() {
        let _ = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM);
        for _ in 0..500 {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            park_timeout(Duration::from_millis(10));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

pub(crate) struct Fabric {
    pub(crate) folder: PathBuf,
}

impl Fabric {
    /// None yet.
    pub(crate) fn new(name: &str) -> Self {
        Self { folder: common::scratch(name) }
    }

    pub(crate) fn up(name: &str, net: &str) -> Self {
        Self::up_with(name, net, &[])
    }

    pub(crate) fn up_with(name: &str, net: &str, options: &[&str]) -> Self {
        let fabric = Self::new(name);
        fs::write(fabric.folder.join("topology.net"), net).expect("a file");
        fabric.done(&[&["up"], options, &["topology.net"]].concat());
        fabric
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(common::command());
        command.arg("fabric").args(args).current_dir(&self.folder).stdin(Stdio::null());
        command.env("FEROCE_LIB", common::library()).env("XDG_RUNTIME_DIR", &self.folder);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/usr/bin"));
        command
    }

    fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("it starts")
    }

    pub(crate) fn done(&self, args: &[&str]) -> String {
        let output = self.output(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {errors}");
        String::from_utf8(output.stdout).expect("text")
    }

    pub(crate) fn refused(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = self.output(args);
        assert!(!output.status.success(), "{args:?}");
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    }

    /// Runs a program on a host to its end: what it said, and its exit status.
    pub(crate) fn run(&self, host: &str, program: &str) -> (String, i32) {
        let words: Vec<&str> = program.split_whitespace().collect();
        // Errors and output in the order in which they were written.
        let shell = ["run", "-n", host, "--", "sh", "-c", "exec timeout 60 \"$0\" \"$@\" 2>&1"];
        let output = self.output(&[&shell[..], &words].concat());
        let status = output.status.code().unwrap_or(-1);
        (String::from_utf8_lossy(&output.stdout).into_owned(), status)
    }

    pub(crate) fn start(&self, host: &str, program: &str) -> Running {
        let words: Vec<&str> = program.split_whitespace().collect();
        let mut command = self.command(&[&["run", "-n", host, "--"], &*words].concat());
        // opensm keeps files of its own in folders that these name.
        let folder = self.folder.join(host);
        fs::create_dir_all(&folder).expect("a folder");
        command.env("OSM_TMP_DIR", &folder).env("OSM_CACHE_DIR", &folder);
        Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"))
    }

    pub(crate) fn start_opensm(&self, host: &str, options: &str) -> Running {
        let log = self.folder.join(host).join("opensm.log");
        self.start(host, &format!("opensm -d 2 -D 0x43 -f {} {options}", log.display()))
    }

    /// Starts opensm, and waits until the fabric is up.
    pub(crate) fn opensm(&self, host: &str, options: &str) -> Running {
        let opensm = self.start_opensm(host, options);
        let log = self.folder.join(host).join("opensm.log");
        wait_until(|| fs::read_to_string(&log).is_ok_and(|log| log.contains("SUBNET UP")));
        opensm
    }

    /// What the fabric says of a node.
    pub(crate) fn line(&self, node: &str) -> String {
        let status = self.done(&["status"]);
        let line = status.lines().find(|line| line.starts_with(&format!("{node} ")));
        line.unwrap_or_else(|| panic!("{status}")).to_owned()
    }

    /// Ports that programs have open on a host.
    pub(crate) fn programs(&self, host: &str) -> usize {
        let line = self.line(host);
        line.split_whitespace().nth(5).and_then(|word| word.parse().ok()).expect("a number")
    }

    /// Whether a program on a host listens for a service: a port space, and a port.
    pub(crate) fn is_listened_for(&self, host: &str, service: u64) -> bool {
        let status = self.done(&["status", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        let nodes = status["nodes"].as_array().expect("nodes");
        let node = nodes.iter().find(|node| node["name"] == host).expect("the host");
        node["services"].as_array().expect("services").contains(&service.into())
    }

    /// The process of the subnet manager that the fabric has started.
    pub(crate) fn manager_pid(&self) -> u32 {
        let own = format!("{}", self.folder.display());
        let processes = fs::read_dir("/proc").expect("processes").flatten();
        let mut found = processes.filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let words = fs::read(entry.path().join("cmdline")).ok()?;
            let words = String::from_utf8_lossy(&words).into_owned();
            (words.starts_with("opensm") && words.contains(&own)).then_some(pid)
        });
        found.next().expect("opensm runs")
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        let _ = self.output(&["down"]);
    }
}
