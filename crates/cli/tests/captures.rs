//! Captures and traces, as a user asks for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const FEROCE: &str = env!("CARGO_BIN_EXE_feroce");

/// A folder of this test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// A command with none of the caller's settings, in a folder.
fn command(program: &str, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).env("XDG_CONFIG_HOME", folder).stdin(Stdio::null());
    command.env_remove("FEROCE_CONFIG").env_remove("FEROCE_FAULT");
    command
}

/// Runs the two ends of a stream of messages, each a device of its own in one process.
fn perf(folder: &Path, net: u8, settings: &[(&str, &str)]) -> Output {
    perf_of("2000", folder, net, settings)
}

/// The same with another number of messages.
fn perf_of(messages: &str, folder: &Path, net: u8, settings: &[(&str, &str)]) -> Output {
    let pair = format!("127.24.{net}.1,127.24.{net}.2");
    let mut command = command(FEROCE, folder);
    command.args(["perf", "send", "bw", "--both", "-n", messages, "-s", "3000"]);
    command.args(["--address", &pair]);
    command.envs(settings.iter().copied()).output().expect("feroce starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Packets in a capture, all of which are whole.
fn packets(folder: &Path, file: &str) -> u64 {
    let out =
        command(FEROCE, folder).args(["decode", "--limit", "0", file]).output().expect("runs");
    let (said, summary) = (text(&out.stderr), text(&out.stdout));
    assert!(out.status.success(), "{file}: {summary}{said}");
    // Findings follow the count, if there are any: a slow machine makes a requester send again.
    let count = summary.lines().find_map(|line| line.split_once(" packets, ")?.0.parse().ok());
    count.unwrap_or_else(|| panic!("{file}: no number of packets in\n{summary}{said}"))
}

#[test]
fn two_devices_with_one_file_name_get_a_file_each() {
    let folder = folder("captures-two");
    // The second run overwrites what the first one wrote.
    for _ in 0..2 {
        let out = perf(&folder, 1, &[("FEROCE_PCAP", "x.pcapng"), ("FEROCE_TRACE", "x.txt")]);
        assert!(out.status.success(), "{}", text(&out.stderr));
        let said = text(&out.stderr);
        assert!(said.contains("x-2.pcapng") && said.contains("x-2.txt"), "{said}");
        assert!(packets(&folder, "x.pcapng") >= 2000 && packets(&folder, "x-2.pcapng") >= 2000);
        for file in ["x.txt", "x-2.txt"] {
            let trace = fs::read_to_string(folder.join(file)).expect("text");
            let is_whole =
                |line: &str| line.starts_with("# feroce trace of") || line.contains(" > ");
            assert!(trace.lines().all(is_whole) && trace.lines().count() > 2000, "{file}");
        }
        assert_eq!(fs::read_dir(&folder).expect("it is there").count(), 4);
    }
}

/// Two processes write at the same time: the server begins, and ends after the client.
#[test]
fn two_processes_with_one_file_name_get_a_file_each() {
    let folder = folder("captures-processes");
    let script = "FEROCE_PCAP=x.pcapng $1 --address 127.24.7.1 & server=$!
        until grep -qsE ':4A62 0+:0000 0A' /proc/net/tcp /proc/net/tcp6
        do kill -0 $server || exit; sleep 0.05; done
        FEROCE_PCAP=x.pcapng $1 --address 127.24.7.2 127.24.7.1 && wait $server";
    let ends = format!("{FEROCE} rc-pingpong -p {} -n 500", 0x4a62);
    let out = command("sh", &folder).args(["-c", script, "sh", &ends]).output().expect("sh runs");
    assert!(out.status.success(), "{}", text(&out.stderr));
    let said = text(&out.stderr);
    assert!(said.contains("x-2.pcapng"), "{said}");
    assert!(packets(&folder, "x.pcapng") >= 1000 && packets(&folder, "x-2.pcapng") >= 1000);
}

#[test]
fn files_of_others_are_left_as_they_are() {
    let folder = folder("captures-others");
    // A capture of another program, and text.
    let foreign = [
        [0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0].as_slice(),
        &[0xff; 8],
        &[28, 0, 0, 0],
    ];
    for (name, bytes) in [("a.pcapng", foreign.concat()), ("b.txt", b"precious\n".to_vec())] {
        fs::write(folder.join(name), &bytes).expect("a file");
        for setting in ["FEROCE_PCAP", "FEROCE_TRACE"] {
            let out = perf(&folder, 2, &[(setting, name)]);
            let said = text(&out.stderr);
            assert!(!out.status.success() && said.contains(name), "{said}");
            assert!(said.contains("remove it, or choose another name"), "{said}");
            assert!(fs::read(folder.join(name)).expect("still there") == bytes, "{name} changed");
        }
    }
}

#[test]
fn settings_in_the_working_directory_are_not_read() {
    let folder = folder("captures-cwd");
    fs::write(folder.join("feroce.toml"), "pcap = \"x.pcapng\"\n").expect("a file");
    assert!(perf(&folder, 3, &[]).status.success());
    assert!(!folder.join("x.pcapng").exists(), "the file in the working directory was read");
    assert!(perf(&folder, 3, &[("FEROCE_CONFIG", "feroce.toml")]).status.success());
    assert!(folder.join("x.pcapng").exists(), "the file that is named was not read");
}

/// Runs a script where `disk` is a file system of 64 KiB.
fn on_a_small_disk(folder: &Path, script: &str) -> Output {
    fs::create_dir_all(folder.join("disk")).expect("a folder");
    let script = format!("mount -t tmpfs -o size=64k tmpfs disk && {script}");
    let mut command = command("unshare", folder);
    command.args(["-rm", "sh", "-c", &script]).output().expect("unshare is installed")
}

#[test]
fn a_full_disk_is_said_and_the_files_stay_whole() {
    let folder = folder("captures-full");
    let pair = "127.24.4.1,127.24.4.2";
    let run = format!("{FEROCE} perf send bw --both -n 2000 -s 3000 --address {pair}");
    let decode = format!("{FEROCE} decode --limit 0 disk/x.pcapng && tail -c 1 disk/x.txt | wc -l");
    let env = "FEROCE_PCAP=disk/x.pcapng FEROCE_TRACE=disk/x.txt";
    let out = on_a_small_disk(&folder, &format!("{env} {run} && {decode}"));
    let (shown, said) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{shown}{said}");
    assert!(said.contains("the capture ends here") && said.contains("No space left"), "{said}");
    assert!(said.contains("the trace ends here") && said.contains("x.txt"), "{said}");
    assert!(shown.ends_with("bad ICRC\n1\n"), "the trace ends within a line: {shown}");
}

#[test]
fn a_limit_on_the_size_of_files_does_not_end_the_program() {
    let folder = folder("captures-limit");
    // Sharing addresses with other processes needs files as well, which is another matter.
    let run = "feroce=$1; ulimit -f 16; FEROCE_SHARED=off FEROCE_PCAP=x.pcapng \
               $feroce perf send bw --both -n 2000 -s 3000 --address 127.24.5.1,127.24.5.2 && \
               $feroce decode --limit 0 x.pcapng";
    let out = command("sh", &folder).args(["-c", run, "sh", FEROCE]).output().expect("sh runs");
    let said = text(&out.stderr);
    assert!(out.status.success(), "{:?} {said}", out.status);
    assert!(said.contains("the capture ends here") && said.contains("too large"), "{said}");
}

/// What the setting `fault` did is in the records, packet by packet, as often as it was counted.
#[test]
fn packets_that_a_fault_takes_are_marked() {
    let folder = folder("marked");
    for (fault, counter, mark) in [
        ("loss=5%,seed=4", "fault_lost", "lost by the setting fault"),
        ("corrupt=5%,seed=4", "fault_corrupted", "damaged by the setting fault"),
        ("dup=5%,seed=4", "fault_duplicated", "duplicated by the setting fault"),
        ("reorder=5%:2,seed=4", "fault_reordered", "held back by the setting fault"),
        ("rate=1Gbit:9KiB", "fault_overflowed", "dropped by the setting fault"),
    ] {
        let settings = [
            ("FEROCE_FAULT", fault),
            ("FEROCE_PCAP", "%d.pcapng"),
            ("FEROCE_TRACE", "%d.txt"),
            ("FEROCE_STATS", "1"),
        ];
        let output = perf_of("300", &folder, 6, &settings);
        let said = text(&output.stderr);
        assert!(output.status.success(), "{fault}: {said}");
        let words = || said.split([' ', '\n']).map(|word| word.trim_end_matches(','));
        let counts = words().zip(words().skip(1)).filter(|(word, _)| *word == counter);
        let counted: usize =
            counts.map(|(_, count)| count.parse::<usize>().expect("a number")).sum();
        assert!(counted > 0, "{counter}: {said}");
        let (mut captured, mut traced) = (0, 0);
        for end in [1, 2] {
            let name = format!("feroce@127.24.6.{end}");
            let mut decode = command(FEROCE, &folder);
            let decode = decode.args(["--json", "decode", &format!("{name}.pcapng")]).output();
            let decoded = text(&decode.expect("feroce starts").stdout);
            let trace = fs::read_to_string(folder.join(format!("{name}.txt"))).expect("a trace");
            captured += decoded.lines().filter(|line| line.contains(mark)).count();
            traced += trace.lines().filter(|line| line.contains(mark)).count();
        }
        assert_eq!((captured, traced), (counted, counted), "{fault}: {said}");
    }
}
