//! Runs: figures, files, plots, what happens meanwhile, and what is wrong.

use std::fs;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::{INCAST, SQUARE, ns3, run, scenario, scratch, sim, stderr};

#[test]
fn a_run_reports_its_figures_and_writes_its_files() {
    let dir = scratch("files");
    let file = scenario(&dir, INCAST);
    let out = dir.join("out");
    let output = run(&["run", "--json", &file, "-o", out.to_str().expect("UTF-8")]);
    assert!(output.status.success(), "{}", stderr(&output));
    let summary: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&summary["flows"], &summary["finished"]), (&4.into(), &4.into()));
    assert_eq!(summary["drops"]["buffer"], 0);
    assert!(summary["marked"].as_u64() > Some(0), "{summary}");
    let p50 = summary["slowdown"]["p50"].as_f64().expect("a number");
    assert!((2.0..10.0).contains(&p50), "four flows share a link: {p50}");
    let kept: Value =
        serde_json::from_str(&fs::read_to_string(out.join("summary.json")).expect("a summary"))
            .expect("JSON");
    assert_eq!(kept["slowdown"], summary["slowdown"]);
    let fct = fs::read_to_string(out.join("fct.txt")).expect("completion times");
    assert_eq!(fct.lines().count(), 4);
    assert!(out.join("pfc.txt").exists());
    // Every queue that was ever used, with its greatest and its mean length.
    let queues = summary["queues"].as_array().expect("a list");
    assert!(queues.len() >= 5, "four hosts and the port to the fifth: {summary}");
    assert_eq!(queues[0]["port"], "s0:4");
    assert!(queues[0]["max_bytes"].as_f64() > queues[0]["mean_bytes"].as_f64());
    let flows = fs::read_to_string(out.join("flows.csv")).expect("flows");
    assert!(
        flows.lines().nth(1).is_some_and(|line| line.starts_with("0,h0,h4,500000,3,0,")),
        "{flows}"
    );
    assert!(flows.lines().skip(1).all(|line| line.ends_with(",success")), "{flows}");
    // Of the queue to the fifth host: looked at as often as microseconds passed.
    let qlen = fs::read_to_string(out.join("qlen.txt")).expect("histograms");
    let us = (summary["simulated_s"].as_f64().expect("a number") * 1e6) as u64;
    let line = qlen.lines().find(|line| line.starts_with("5 5 ")).expect("the port to the fifth");
    let looks: u64 = line.split(' ').skip(2).map(|n| n.parse::<u64>().expect("a count")).sum();
    assert!(looks.abs_diff(us) <= 1, "{looks} looks in {us} us");
    assert!(line.split(' ').count() > 50, "hundreds of kilobytes were queued: {line}");
    let series = fs::read_to_string(out.join("series.csv")).expect("queues and rates over time");
    let of = |port: &str, column: usize| -> u64 {
        let rows = series.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let rows = rows.filter(|row| row[1] == port);
        rows.map(|row| row[column].parse::<u64>().expect("a number")).sum()
    };
    assert!(of("s0:4", 3) > 4 * 500_000, "all bytes pass that port, with headers");
    assert!(of("s0:4", 2) > 0 && of("h0:0", 3) > 500_000);
}

#[test]
fn the_same_seed_gives_the_same_files_and_another_seed_others() {
    let dir = scratch("seeds");
    let file = scenario(&dir, INCAST);
    let files = |name: &str, seed: &str| {
        let out = dir.join(name);
        let output = run(&["run", &file, "--seed", seed, "-o", out.to_str().expect("UTF-8")]);
        assert!(output.status.success(), "{}", stderr(&output));
        ["fct.txt", "pfc.txt", "qlen.txt", "flows.csv", "series.csv"]
            .map(|name| fs::read_to_string(out.join(name)).expect("a file of the run"))
    };
    let first = files("a", "7");
    assert_eq!(first, files("b", "7"));
    assert_ne!(first, files("c", "8"));
}

#[test]
fn a_deadlock_is_named_and_the_run_ends() {
    let output = run(&["run", ns3("s5_ring5_1_none").to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.contains("deadlock: ports 5:1, 6:2, 7:2, 8:2, 9:2 wait for each other"), "{text}");
    let stuck = "not ended, in the deadlock: flows 0 (0 to 2), 1 (1 to 3), 2 (2 to 4), 3 (3 to 0)";
    assert!(text.contains(stuck), "{text}");
}

#[test]
fn links_fail_and_lose_at_times() {
    let dir = scratch("events");
    let summary = |events: &str, code: i32| -> Value {
        let output = run(&["run", "--json", &scenario(&dir, &format!("{SQUARE}{events}"))]);
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let down = "[[event]]\nat = \"600us\"\nlink = \"left:1\"\nstate = \"down\"\n";
    let up = "[[event]]\nat = \"5ms\"\nlink = [\"left\", \"right\"]\nstate = \"up\"\n";
    let short = summary(&format!("{down}{up}"), 0);
    assert!(short["drops"]["link_down"].as_u64() > Some(0), "{short}");
    assert!(short["simulated_s"].as_f64() > Some(0.005), "{short}");
    let lossy = summary("[[event]]\nat = \"0us\"\nlink = \"left:1\"\nloss = \"5%\"\n", 0);
    assert!(lossy["drops"]["loss"].as_u64() > Some(0), "{lossy}");
    let slow = summary("[[event]]\nat = \"0us\"\nlink = \"bob:0\"\nrate = \"1G\"\n", 0);
    assert!(slow["simulated_s"].as_f64() > Some(0.008), "a megabyte at 1 Gb/s: {slow}");
    let refuse = |events: &str, what: &str| {
        let output = run(&["run", &scenario(&dir, &format!("{SQUARE}{events}"))]);
        assert_eq!(output.status.code(), Some(2), "{events}");
        assert!(stderr(&output).contains(&format!("scenario.toml:{what}")), "{}", stderr(&output));
    };
    refuse(
        "[[event]]\nat = \"1us\"\nlink = \"left:9\"\nstate = \"up\"\n",
        "36: event.link: there is",
    );
    refuse("[[event]]\nat = \"1us\"\nlink = \"left:1\"\n", "36: event: a link with state");
    refuse("[[event]]\nat = \"1us\"\nhost = \"bob\"\n", "36: event.pause: missing");
}

#[test]
fn a_plot_shows_slowdowns_queues_and_rates() {
    let dir = scratch("plot");
    let (file, svg) = (scenario(&dir, INCAST), dir.join("run.svg"));
    let output = run(&["run", &file, "--plot", svg.to_str().expect("UTF-8")]);
    assert!(output.status.success(), "{}", stderr(&output));
    let picture = fs::read_to_string(&svg).expect("a picture");
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    for words in ["Slowdown of 4 flows by size", "Longest queues", ">s0:4<", "Gb/s", ">h3<"] {
        assert!(picture.contains(words), "{words}");
    }
    assert_eq!(picture.matches("<circle").count(), 4);
    let output = run(&["run", &file, "--sample", "often"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--sample: \"often\" is not a time"), "{}", stderr(&output));
}

/// Two leaves: hosts of the first send to h4 of the second, and h3 of the first to h5.
const VICTIM: &str = r#"
stop = "20ms"

[topology]
kind = "leaf-spine"
leaves = 2
spines = 1
hosts = 4
rate = "10G"
delay = "1us"

[switch]
buffer = "1MiB"

[[flow]]
from = 0
to = 4
bytes = "2M"

[[flow]]
from = 1
to = 4
bytes = "2M"

[[flow]]
from = 2
to = 4
bytes = "2M"

[[flow]]
from = 3
to = 5
bytes = "1M"
"#;

#[test]
fn victims_storms_and_flows_that_cannot_end_are_named() {
    let dir = scratch("diagnosis");
    let report = |text: &str, code: i32| {
        let file = scenario(&dir, text);
        let output = run(&["run", &file]);
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let three = |rate: &str| {
        // The spine's links are fast, so that only the port to h4 is congested.
        let fast =
            |leaf: &str| format!("[[link]]\nends = [\"{leaf}\", \"spine0\"]\nrate = \"{rate}\"\n");
        format!("{VICTIM}{}{}", fast("leaf0"), fast("leaf1"))
    };
    let text = report(&three("40G"), 0);
    assert!(text.contains("victim: flow 3, h3 to h5, took "), "{text}");
    assert!(!text.contains("victim: flow 0") && !text.contains("storm"), "{text}");
    let storm = "[[event]]\nat = \"10us\"\nhost = \"h4\"\npause = true\n";
    let text = report(&(three("40G") + storm), 1);
    assert!(text.contains("storm: host h4 stopped port leaf1:0 for 19"), "{text}");
    assert!(text.contains("not ended, stopped by host h4: flows 0 (h0 to h4), 1"), "{text}");
    assert!(text.contains("victim: flow 3, h3 to h5, "), "{text}");
    let down = "[[event]]\nat = \"10us\"\nlink = \"h5:0\"\nstate = \"down\"\n\
                [[flow]]\nfrom = 5\nto = 6\nbytes = 1\nafter = [3]\n";
    let text = report(&(VICTIM.replace("20ms", "10ms") + down), 1);
    assert!(text.contains("not ended, no path, links are down: flows 3 (h3 to h5)"), "{text}");
    assert!(text.contains("not ended, waits for flow 3: flows 4 (h5 to h6)"), "{text}");
    let text = report(&VICTIM.replace("20ms", "100us"), 1);
    assert!(text.contains("not ended, the time was over: flows 0 (h0 to h4)"), "{text}");
}

#[test]
fn a_capture_has_the_frames_of_a_port_without_payload() {
    let dir = scratch("pcap");
    let path = |name: &str| dir.join(name).to_str().expect("UTF-8").to_owned();
    let text = INCAST.replace("[switch]", "[switch]\nbuffer = \"300K\"");
    let file = scenario(&dir, &text);
    let both = [format!("s0:4={}", path("last.pcap")), format!("h0:0={}", path("first.pcap"))];
    let output = run(&["run", "--json", &file, "--pcap", &both[0], "--pcap", &both[1]]);
    assert!(output.status.success(), "{}", stderr(&output));
    let summary: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(summary["pauses"].as_u64() > Some(0), "{summary}");
    let records = |name: &str| -> Vec<(u64, usize, Vec<u8>)> {
        let bytes = fs::read(path(name)).expect("a capture");
        let word = |at: usize| {
            u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
        };
        let (mut at, mut records) = (24, Vec::new());
        while at < bytes.len() {
            let ns = word(at) as u64 * 1_000_000_000 + word(at + 4) as u64;
            let frame = bytes[at + 16..at + 16 + word(at + 8)].to_vec();
            records.push((ns, word(at + 12), frame));
            at += 16 + word(at + 8);
        }
        records
    };
    let frames = records("last.pcap");
    assert!(frames.windows(2).all(|pair| pair[0].0 <= pair[1].0), "in the order of time");
    let with_payload = frames.iter().filter(|(_, len, bytes)| *len > bytes.len());
    let payload: usize = with_payload.map(|(_, len, bytes)| len - bytes.len() - 4).sum();
    assert_eq!(payload, 4 * 500_000, "all four flows pass, and nothing was lost");
    // Answers are whole, with a sound ICRC; marked packets carry their mark.
    let parsed = |bytes: &[u8]| {
        let frame = feroce_wire::Frame::parse_ethernet(bytes).expect("a frame");
        assert!(frame.icrc_ok());
    };
    let answers: Vec<_> = frames.iter().filter(|(_, len, bytes)| *len == bytes.len()).collect();
    assert!(!answers.is_empty());
    answers.iter().for_each(|(_, _, bytes)| parsed(bytes));
    let marked = frames.iter().filter(|(_, _, bytes)| bytes[15] & 3 == 3).count() as u64;
    assert_eq!(Some(marked), summary["marked"].as_u64());
    // The switch told the first host to stop and to go on.
    let first = records("first.pcap");
    let pauses: Vec<_> = first.iter().filter(|(_, _, b)| b[12..16] == [0x88, 8, 1, 1]).collect();
    assert!(pauses.len() >= 2, "{} pause frames", pauses.len());
    assert!(pauses.iter().all(|(_, len, b)| (*len, b.len(), b[17]) == (60, 60, 1 << 3)));
    for (word, what) in
        [("s0:9=x", "--pcap: there is no port s0:9"), ("s0:4", "--pcap: \"s0:4\" is not PORT=FILE")]
    {
        let output = run(&["run", &file, "--pcap", word]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(what), "{}", stderr(&output));
    }
}

#[test]
fn an_interrupted_run_writes_what_there_is() {
    let dir = scratch("interrupt");
    // Flows that take minutes to simulate.
    let file = scenario(&dir, &INCAST.replace("500K", "4G"));
    let out = dir.join("out");
    let mut child = sim(&["run", "--json", &file, "-o", out.to_str().expect("UTF-8")])
        .stdout(Stdio::piped())
        .spawn()
        .expect("feroce runs");
    // The signal is caught before the directory is made.
    while !out.exists() {
        std::thread::yield_now();
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).expect("the run goes on");
    let output = {
        let status = child.wait().expect("it ends");
        assert_eq!(status.code(), Some(1), "the flows have not ended");
        fs::read_to_string(out.join("summary.json")).expect("a summary")
    };
    let summary: Value = serde_json::from_str(&output).expect("JSON");
    assert_eq!(summary["finished"], 0);
    assert_eq!(summary["unfinished"].as_array().map(Vec::len), Some(4));
}
