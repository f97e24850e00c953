//! `feroce decode`, as a user runs it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn capture(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/captures");
    dir.join(format!("{name}.pcap"))
}

fn decode(args: &[&str], file: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_feroce"))
        .arg("decode")
        .args(args)
        .arg(file)
        .output()
        .expect("feroce runs")
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// The last line and the exit status.
fn summary(name: &str) -> (String, Option<i32>) {
    let output = decode(&[], &capture(name));
    (text(&output).lines().last().unwrap_or_default().to_owned(), output.status.code())
}

#[test]
fn counts_are_those_of_the_files() {
    let known = [
        ("rc_pingpong", "20 packets, 20 RoCE, 0 bad ICRC", 0),
        ("rc_pingpong_ipv6", "18 packets, 18 RoCE, 0 bad ICRC", 0),
        ("ib_atomic_cas", "10 packets, 10 RoCE, 0 bad ICRC", 0),
        ("cm_gcm", "22 packets, 22 RoCE, 0 bad ICRC", 0),
        ("crafted_reserved_opcode", "3 packets, 3 RoCE, 0 bad ICRC", 0),
        ("crafted_bad_icrc", "3 packets, 3 RoCE, 1 bad ICRC", 1),
    ];
    for (name, line, code) in known {
        assert_eq!(summary(name), (line.to_owned(), Some(code)), "{name}");
    }
}

#[test]
fn messages_of_iwarp() {
    snapshot(&[], "iwarp/crafted_top3", "decode_iwarp.txt");
    snapshot(&["--ladder"], "iwarp/inv", "decode_iwarp_ladder.txt");
    let (line, code) = summary("iwarp/crafted_crcbad");
    assert!(line.contains("wrong CRC"), "{line}");
    assert_eq!(code, Some(1));
    let said = text(&decode(&["--op", "terminate"], &capture("iwarp/crafted_top3")));
    // In the table and among what went wrong, and no other message.
    assert_eq!(said.lines().filter(|line| line.contains("→ 10.")).count(), 2, "{said}");
    // The option stands in front of the command.
    let json = Command::new(env!("CARGO_BIN_EXE_feroce"))
        .args(["--json", "decode"])
        .arg(capture("iwarp/crafted_top3"))
        .output()
        .expect("feroce runs");
    let objects: Vec<Value> =
        text(&json).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(objects[0]["op"], "MPA Request");
    assert_eq!(objects[0]["framing"], "iWARP");
    assert_eq!(objects[0]["dst_port"], 7471);
    assert_eq!(objects.last().expect("a summary")["summary"]["iwarp"], 4);
}

/// What a device captures is what decode shows.
#[test]
fn a_capture_of_ours_over_iwarp() {
    let file = std::env::temp_dir().join(format!("feroce-decode-{}.pcapng", std::process::id()));
    let ran = Command::new(env!("CARGO_BIN_EXE_feroce"))
        .args(["--transport", "iwarp", "rping", "--both", "-C", "3", "-V"])
        .args(["--address", "127.180.0.1,127.180.0.2"])
        .env("FEROCE_PCAP", &file)
        .output()
        .expect("feroce runs");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let second = file.with_file_name(format!("feroce-decode-{}-2.pcapng", std::process::id()));
    for file in [&file, &second] {
        let output = decode(&["--ascii"], file);
        let said = text(&output);
        std::fs::remove_file(file).expect("the capture");
        assert_eq!(output.status.code(), Some(0), "{said}");
        for what in ["MPA Request", "MPA Reply", "SEND", "READ Request", "READ Response", "WRITE"] {
            assert!(said.contains(what), "{what}: {said}");
        }
        assert!(!said.contains("what went wrong"), "{said}");
    }
}

/// Compares with a file in `snapshots`. `UPDATE_SNAPSHOTS=1` writes the file again.
fn snapshot(args: &[&str], name: &str, file: &str) {
    let output = text(&decode(args, &capture(name)));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(file);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &output).expect("snapshot written");
    }
    let expected = std::fs::read_to_string(&path).expect("snapshot");
    assert_eq!(output, expected, "UPDATE_SNAPSHOTS=1 accepts the change");
}

#[test]
fn table_of_every_operation() {
    snapshot(&[], "ops_rc", "decode_ops_rc.txt");
}

#[test]
fn table_of_connection_management() {
    snapshot(&[], "cm_gcm", "decode_cm_gcm.txt");
}

#[test]
fn summary_of_a_request_that_was_lost() {
    snapshot(&["--summary"], "loss_req_last", "decode_loss_summary.txt");
}

#[test]
fn ladder_of_a_receiver_that_is_not_ready() {
    snapshot(&["--ladder"], "rnr_retry", "decode_rnr_retry_ladder.txt");
}

#[test]
fn filters_choose_packets() {
    let shown = |args: &[&str]| text(&decode(args, &capture("ops_rc"))).lines().count();
    let sends = text(&decode(&["--op", "send"], &capture("ops_rc")));
    let mut lines = sends.lines().skip(1).collect::<Vec<_>>();
    assert_eq!(lines.pop(), Some("60 packets, 60 RoCE, 0 bad ICRC"));
    assert!(!lines.is_empty() && lines.iter().all(|line| line.contains("RC SEND")), "{sends}");
    assert_eq!(shown(&["--limit", "5"]), 5 + 2);
    assert_eq!(shown(&["--op", "nothing of the kind"]), 1);
    let to = |qp: &str| shown(&["--qp", qp]) - 2;
    assert_eq!(to("0x8e") + to("0x92"), 60);
    assert_eq!(to("142"), to("0x8e"));
}

#[test]
fn json_has_one_object_per_packet() {
    let output = text(&decode(&["--json"], &capture("rnr_retry")));
    let objects: Vec<Value> =
        output.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let (summary, packets) = objects.split_last().expect("lines");
    assert_eq!(summary["summary"]["packets"], packets.len());
    let first = &packets[0];
    assert_eq!((&first["service"], &first["op"]), (&"RC".into(), &"SEND Only".into()));
    assert_eq!((&first["icrc"], &first["packet"]), (&"ok".into(), &1.into()));
    assert_eq!(packets[1]["name"], "RNR NAK");
    let means = packets[1]["aeth"]["means"].as_str().expect("words");
    assert!(means.starts_with("receiver not ready"), "{means}");
}

#[test]
fn wrong_use_is_told_from_wrong_files() {
    let status = |args: &[&str], file: &Path| decode(args, file).status.code();
    assert_eq!(status(&[], Path::new("no/such/file")), Some(2));
    assert_eq!(status(&["--qp", "seventeen"], &capture("ops_rc")), Some(2));
    assert_eq!(status(&[], Path::new(env!("CARGO_MANIFEST_PATH"))), Some(1));
}

#[test]
fn output_that_is_no_terminal_has_no_escapes() {
    for args in [&[][..], &["--ladder"], &["--ladder", "--ascii"]] {
        let output = text(&decode(args, &capture("ops_rc")));
        assert!(!output.contains('\x1b'));
        assert!(!args.contains(&"--ascii") || output.is_ascii());
    }
}

#[test]
fn marks_of_congestion_are_shown_and_counted() {
    let file = capture("crafted_ce_marked");
    let said = text(&decode(&["--ascii"], &file));
    assert!(said.contains("CE: marked by congestion"), "{said}");
    assert!(said.contains(", 1 marked by congestion\n"), "{said}");
    let said = text(&decode(&["--summary"], &file));
    assert!(said.contains(" marked by congestion on the way (CE or FECN)"), "{said}");
    let json = text(&decode(&["--json"], &file));
    let objects: Vec<Value> =
        json.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let (summary, packets) = objects.split_last().expect("lines");
    let marked = packets.iter().filter(|packet| packet["ecn"] == "CE").count();
    assert!(marked > 0, "{json}");
    assert_eq!(summary["summary"]["ecn_marked"], marked);
}

#[test]
fn standard_input_is_a_capture_too() {
    let run = |file: std::process::Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_feroce"));
        command.args(["decode", "-"]).stdin(file).output().expect("feroce runs")
    };
    let file = std::fs::File::open(capture("rc_pingpong")).expect("the capture");
    let piped = run(file.into());
    assert_eq!(text(&piped), text(&decode(&[], &capture("rc_pingpong"))));
    let empty = run(std::process::Stdio::null());
    let said = String::from_utf8_lossy(&empty.stderr);
    assert_eq!(said, "feroce: cannot read standard input: it is empty\n");
}

/// The captures of both ends of a connection, as one.
#[test]
fn captures_of_both_ends_are_put_together() {
    let folder = std::env::temp_dir().join(format!("feroce-decode-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let status = Command::new(env!("CARGO_BIN_EXE_feroce"))
        .args("rc-pingpong --both -n 5 -s 3000 --address 127.18.60.1,127.18.60.2".split(' '))
        .env("FEROCE_PCAP", folder.join("%d.pcapng"))
        .output()
        .expect("feroce runs")
        .status;
    assert!(status.success());
    let ends = ["feroce@127.18.60.1.pcapng", "feroce@127.18.60.2.pcapng"];
    let one = text(&decode(&["--json"], &folder.join(ends[0])));
    let file = folder.join(ends[1]);
    let both = decode(&["--json", file.to_str().expect("UTF-8")], &folder.join(ends[0]));
    assert!(both.status.success());
    let lines: Vec<Value> =
        text(&both).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let (summary, packets) = lines.split_last().expect("a summary");
    let found: Vec<&Value> = packets.iter().map(|packet| &packet["files"]).collect();
    // What the ends exchanged is in both, the last acknowledgement perhaps in one only.
    let is_both = |files: &&&Value| files.as_array().is_some_and(|files| files.len() == 2);
    assert!(found.iter().filter(is_both).count() + 2 >= one.lines().count(), "{both:?}");
    assert_eq!(summary["summary"]["captures"][0]["file"], ends[1]);
    assert_eq!(summary["summary"]["requests"][0]["sent_again"], 0);
    let said = text(&decode(&["--summary", file.to_str().expect("UTF-8")], &folder.join(ends[0])));
    assert!(said.contains(&format!("{}: ", ends[0])), "{said}");
    // A name that is wrong is named.
    let wrong = decode(&["nowhere.pcap"], &file);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("nowhere.pcap"));
    std::fs::remove_dir_all(&folder).expect("it is there");
}
