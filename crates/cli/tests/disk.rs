//! `feroce disk`, run as a user runs it.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

fn disk(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_feroce"));
    command.arg("disk").args(args);
    command
}

fn output(args: &[&str]) -> Output {
    disk(args).stdin(Stdio::null()).output().expect("feroce starts")
}

fn text(out: &Output) -> String {
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{err}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// A target in a process of its own.
struct Target {
    process: Child,
    address: String,
}

impl Target {
    fn start(args: &[&str]) -> Self {
        let mut process =
            disk(args).arg("--json").stdout(Stdio::piped()).spawn().expect("feroce starts");
        let mut line = String::new();
        let out = process.stdout.take().expect("a pipe");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        Self { process, address: line["address"].as_str().expect("an address").to_owned() }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("feroce-disk-{}-{name}", std::process::id()));
    std::fs::write(&path, bytes).expect("a file");
    path
}

#[test]
fn a_file_is_served_listed_written_and_read() {
    let image = file("image", &vec![0; 4 << 20]);
    let data: Vec<u8> =
        (0..3_u32 << 18).flat_map(|i| (i.wrapping_mul(0x9e37_79b9)).to_le_bytes()).collect();
    let (from, to) = (file("from", &data), file("to", b""));
    let name = |path: &PathBuf| path.to_str().expect("a name").to_owned();
    let listen = "127.33.1.1:0";
    let target = Target::start(&["serve", &name(&image), "--memory", "1M", "--listen", listen]);
    let at = target.address.as_str();
    let nqn = "nqn.2026-11.feroce:disks";
    assert!(text(&output(&["discover", at])).starts_with(nqn));
    let listed = text(&output(&["ls", at]));
    assert!(listed.contains("disk 1: 4194304 bytes in blocks of 512"), "{listed}");
    assert!(listed.contains("disk 2: 1048576 bytes"), "{listed}");
    text(&output(&["write", at, "--offset", "512K", &name(&from)]));
    text(&output(&["read", at, "--offset", "512K", "--length", "3M", "-o", &name(&to)]));
    assert!(std::fs::read(&to).expect("a copy") == data, "the copy differs");
    let all = std::fs::read(&image).expect("the image");
    assert!(all[512 << 10..][..data.len()] == data, "the image differs");
    let memory = output(&["read", at, "--disk", "2"]);
    assert_eq!(memory.stdout, vec![0; 1 << 20]);
    let mut files = [image, from, to].into_iter();
    assert!(files.all(|path| std::fs::remove_file(path).is_ok()));
}

#[test]
fn mistakes_are_explained() {
    let target = Target::start(&[
        "serve",
        "--memory",
        "1M",
        "--listen",
        "127.33.2.1:0",
        "--allow",
        "nqn.2024-01.com.example:friend",
    ]);
    let at = target.address.as_str();
    let says = |args: &[&str], what: &str| {
        let out = output(args);
        let err = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && err.contains(what), "{args:?}: {err}");
    };
    says(&["read", at], "has no disks for this host");
    says(&["read", at, "--nqn", "nqn.2026-11.feroce:disks"], "does not let this host use");
    let friend = ["--host-nqn", "nqn.2024-01.com.example:friend"];
    let with = |args: &[&'static str]| [&["read", at], args, &friend[..]].concat();
    says(&with(&["--nqn", "nqn.2024-01.com.example:none"]), "no subsystem of that name");
    says(&with(&["--disk", "2"]), "cannot use disk 2");
    says(&with(&["--offset", "100"]), "not a multiple of 512");
    says(&with(&["--length", "2M"]), "the disk ends 1048576 bytes behind the offset");
    assert_eq!(output(&with(&["--length", "1K"])).stdout, [0; 1024]);
    says(&["serve", "/nonexistent", "--listen", "127.33.2.2"], "cannot serve /nonexistent");
    says(&["serve", "--memory", "1M", "--listen", "here"], "expected an address such as");
    says(&["serve", "--listen", "127.33.2.2"], "required");
}
