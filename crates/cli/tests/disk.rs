//! `feroce disk`, run as a user runs it.

use std::io::{BufRead as _, BufReader, Write as _};
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
pub(crate) struct Target {
    process: Child,
    pub(crate) address: String,
    addresses: Vec<String>,
}

impl Target {
    fn start(args: &[&str]) -> Self {
        Self::start_by(disk(args).arg("--json"))
    }

    /// Starts it by a command that executes `feroce disk serve --json`.
    pub(crate) fn start_by(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        let out = process.stdout.take().expect("a pipe");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        let all = line["addresses"].as_array().into_iter().flatten();
        let addresses = all.filter_map(|at| at.as_str().map(str::to_owned)).collect();
        let address = line["address"].as_str().expect("an address").to_owned();
        Self { process, address, addresses }
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

#[test]
fn a_disk_is_measured_and_its_use_is_counted() {
    let target = Target::start(&["serve", "--memory", "1M", "--listen", "127.33.6.1:0"]);
    let at = target.address.as_str();
    let plot = file("plot.svg", b"");
    let name = plot.to_str().expect("a name");
    let bench = ["bench", at, "-n", "200", "--json"];
    let with = |args: &[&'static str]| [&bench[..], args].concat();
    let read = [&bench[..], &["--depth", "1,8", "--size", "4K,16K", "--plot", name]].concat();
    let rows: Vec<serde_json::Value> = text(&output(&read))
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let key = |row: &serde_json::Value| (row["size"].as_u64(), row["depth"].as_u64());
    let keys: Vec<_> = rows.iter().map(key).collect();
    let expected = [(4096, 1), (4096, 8), (16384, 1), (16384, 8)];
    assert_eq!(keys, expected.map(|(size, depth)| (Some(size), Some(depth))));
    for row in &rows {
        let figure = |name: &str| row[name].as_f64().expect("a figure");
        assert!(figure("commands") >= 200.0 && figure("commands_per_s") > 0.0, "{row}");
        assert!(figure("min_us") <= figure("p50_us") && figure("p99_us") <= figure("max_us"));
    }
    assert!(std::fs::read_to_string(&plot).expect("a drawing").contains("16384 bytes"));
    std::fs::remove_file(plot).expect("removed");
    text(&output(&with(&["--pattern", "randrw", "--overwrite", "--queues", "2"])));
    let write = ["--pattern", "write", "--overwrite", "--path", at];
    text(&output(&[&bench[..], &write].concat()));
    let refused = output(&with(&["--pattern", "write"]));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--overwrite"));
    let line = text(&output(&["stat", at, "--json"]));
    let counted: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    let reads = counted["reads"].as_u64().expect("a count");
    let writes = counted["writes"].as_u64().expect("a count");
    assert!(reads >= 800 && writes >= 200 && reads + writes >= 1200, "{counted}");
    assert!(counted["read_bytes"].as_u64() >= Some(400 * (4096 + 16384)), "{counted}");
    let rates = text(&output(&["stat", at, "--interval", "0.01", "--count", "2"]));
    assert_eq!(rates.lines().count(), 3, "{rates}");
}

#[test]
fn hosts_and_subsystems_prove_who_they_are() {
    let secret = || text(&output(&["secret"])).trim().to_owned();
    let (mine, own, other) = (secret(), secret(), secret());
    let host = "nqn.2024-01.com.example:host";
    let secrets = file("secrets", format!("# hosts\n{host} {mine} {own}\n").as_bytes());
    let known = |name: &str, text: &str| {
        let path = file(name, text.as_bytes());
        path.to_str().expect("a name").to_owned()
    };
    let target = Target::start(&[
        "serve",
        "--memory",
        "1M",
        "--listen",
        "127.33.7.1:0",
        "--secrets",
        secrets.to_str().expect("a name"),
    ]);
    let read = |host: &str, file: Option<&str>| {
        let args = ["read", target.address.as_str(), "--length", "4K", "--host-nqn", host];
        let nqn = ["--nqn", "nqn.2026-11.feroce:disks"];
        let file = file.map(|file| ["--secret", file]);
        let file = file.as_ref().map_or(&[][..], |file| &file[..]);
        output(&[&args[..], &nqn, file].concat())
    };
    let one = known("one", &mine);
    let both = known("both", &format!("{mine}\n{own}\n"));
    for file in [&one, &both] {
        let out = read(host, Some(file));
        assert_eq!(out.stdout, [0; 4096], "{}", String::from_utf8_lossy(&out.stderr));
    }
    let wrong = known("wrong", &other);
    let impostor = known("impostor", &format!("{mine} {other}"));
    let garbage = known("garbage", "DHHC-1:00:AAAA:");
    let cases = [
        (host, None, "give the secret"),
        (host, Some(&wrong), "the secrets of the two ends differ"),
        (host, Some(&impostor), "the secrets of the two ends differ"),
        (host, Some(&garbage), "the secret is too short"),
        ("nqn.2024-01.com.example:stranger", Some(&one), "does not let this host use"),
    ];
    for (name, file, what) in cases {
        let out = read(name, file.map(String::as_str));
        let err = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && err.contains(what), "{err}");
    }
    // A target that does not authenticate cannot prove who it is.
    let open = Target::start(&["serve", "--memory", "1M", "--listen", "127.33.7.2:0"]);
    let out = output(&["read", &open.address, "--length", "4K", "--secret", &both]);
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(err.contains("cannot prove who it is"), "{err}");
    let files = [one, both, wrong, impostor, garbage].map(PathBuf::from);
    assert!(files.iter().chain([&secrets]).all(|path| std::fs::remove_file(path).is_ok()));
}

/// Bytes that repeat nowhere.
fn bytes(len: u32) -> Vec<u8> {
    (0..len / 4).flat_map(|i| i.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect()
}

/// Writes `data` with `feroce disk write`, and calls `between` when a part of it has been given to
/// that process: the process writes the rest to the targets that `between` has left running.
fn write_in_parts(args: &[&str], data: &[u8], mut between: impl FnMut(usize)) -> Output {
    let mut writer = disk(args);
    let pipes = writer.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut writer = pipes.spawn().expect("feroce starts");
    let mut input = writer.stdin.take().expect("a pipe");
    for (number, part) in data.chunks(data.len() / 4).enumerate() {
        // A writer that has failed does not read.
        if input.write_all(part).is_err() {
            break;
        }
        between(number);
    }
    drop(input);
    writer.wait_with_output().expect("feroce ends")
}

#[test]
fn a_host_goes_on_when_its_target_was_killed_and_started_again() {
    let image = file("killed", &vec![0; 16 << 20]);
    let (name, listen) = (image.to_str().expect("a name"), "127.33.3.1:4420");
    let data = bytes(16 << 20);
    let start = || Some(Target::start(&["serve", name, "--listen", listen]));
    let mut target = start();
    let out = write_in_parts(&["write", listen, "--patience", "300"], &data, |part| {
        if part < 3 {
            // Killed and waited for, so that the file is not locked any more.
            drop(target.take());
            target = start();
        }
    });
    text(&out);
    assert!(std::fs::read(&image).expect("the image") == data, "the image differs");
    std::fs::remove_file(image).expect("removed");
}

#[test]
fn commands_take_the_path_that_is_left() {
    let image = file("paths", &vec![0; 16 << 20]);
    let (name, a, b) = (image.to_str().expect("a name"), "127.33.4.1:4420", "127.33.4.2:4420");
    let data = bytes(16 << 20);
    let start = |at: &str| Some(Target::start(&["serve", name, "--shared", "--listen", at]));
    let (mut first, mut second) = (start(a), start(b));
    let out = write_in_parts(&["write", a, "--path", b], &data, |part| {
        if part == 0 {
            drop(first.take());
        }
    });
    text(&out);
    assert!(std::fs::read(&image).expect("the image") == data, "the image differs");
    first = start(a);
    let out = write_in_parts(&["write", a, "--path", b], &data, |part| match part {
        0 => drop(second.take()),
        1 => drop(first.take()),
        _ => {}
    });
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success(), "written to nothing");
    assert!(err.contains("the path to 127.33.4.1:4420 is lost"), "{err}");
    assert!(err.contains("the path to 127.33.4.2:4420 is lost"), "{err}");
    std::fs::remove_file(image).expect("removed");
}

#[test]
fn one_target_has_several_addresses() {
    let listen = ["--listen", "127.33.5.1:0", "--listen", "127.33.5.2:0"];
    let target = Target::start(&[&["serve", "--memory", "1M"], &listen[..]].concat());
    let [a, b] = &target.addresses[..] else { panic!("{:?}", target.addresses) };
    let data = bytes(1 << 20);
    text(&write_in_parts(&["write", a, "--path", b], &data, |_| {}));
    for at in [a, b] {
        assert!(output(&["read", at]).stdout == data, "{at}");
    }
}
