//! `feroce demo`, as a user runs it.

use std::process::{Command, Output};

use serde_json::Value;

fn demo(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_feroce")).arg("demo").args(args).output().expect("feroce runs")
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// The code of a scene stands beside it.
#[test]
fn code_in_two_languages() {
    let said = text(&demo(&["--fast", "--only", "write", "--code"]));
    for part in ["SendOp::Write(target.remote(512))", ".opcode = IBV_WR_RDMA_WRITE", "In C"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let said = text(&demo(&["--fast", "--only", "flush", "--json", "--code"]));
    let all: Value = serde_json::from_str(&said).expect("JSON");
    let code = &all["scenes"][0]["code"];
    assert!(code["rust"].as_str().is_some_and(|code| code.contains("SendOp::Flush")), "{all:#}");
    assert_eq!(code["c"], "");
}

/// Every scene plays, every check holds, and the packets are those of the operation.
#[test]
fn every_scene_is_right() {
    let output = demo(&["--fast", "--json"]);
    let all: Value = serde_json::from_str(&text(&output)).expect("JSON");
    assert_eq!((output.status.code(), &all["ok"]), (Some(0), &true.into()), "{all:#}");
    let scenes = all["scenes"].as_array().expect("scenes");
    assert_eq!(scenes.len(), 17);
    for scene in scenes {
        assert_eq!(scene["ok"], true, "{scene:#}");
        assert!(!scene["checks"].as_array().expect("checks").is_empty());
    }
    let names = |scene: &str| -> Vec<String> {
        let scene = scenes.iter().find(|s| s["name"] == scene).expect("scene");
        let story = scene["story"].as_array().expect("story");
        let packets = story.iter().filter_map(|step| step["packet"]["name"].as_str());
        packets.map(str::to_owned).collect()
    };
    assert_eq!(names("send"), ["SEND First", "SEND Middle", "SEND Last", "ACK"]);
    assert_eq!(names("read")[0], "READ Request");
    assert_eq!(names("read")[3], "READ Response Last");
    assert_eq!(names("uc"), ["WRITE Only", "SEND Only"]);
    assert_eq!(names("multicast"), ["SEND Only"]);
    assert_eq!(names("rnr").first_chunk(), Some(&["SEND Only", "RNR NAK"].map(str::to_owned)));
    assert_eq!(names("refused"), ["WRITE Only", "NAK"]);
}

#[test]
fn one_scene_as_plain_text() {
    let output = demo(&["--only", "write"]);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("1/1 [write] RDMA WRITE") && !text.contains('\x1b'), "{text}");
    assert!(text.contains("├─ WRITE First · PSN 100 · 1024 B ─"), "{text}");
    assert!(text.contains("✓ every result is right: 1 scene, 3 checks"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100));
    let ascii = demo(&["--only", "write", "--ascii"]);
    assert!(ascii.stdout.is_ascii());
}

#[test]
fn an_unknown_scene_is_wrong_use() {
    let output = demo(&["--only", "teleport"]);
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("write-imm"), "it names those there are: {message}");
}

/// Over iWARP the demo shows the messages on connections.
#[test]
fn scenes_over_iwarp() {
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_feroce"));
        command.args(["--transport", "iwarp"]).args(args).output().expect("feroce runs")
    };
    let output = run(&["--json", "demo"]);
    let all: Value = serde_json::from_str(&text(&output)).expect("JSON");
    assert_eq!((output.status.code(), &all["ok"]), (Some(0), &true.into()), "{all:#}");
    let last = |scene: usize| {
        let messages = all["scenes"][scene]["messages"].as_array().expect("messages");
        messages.last().map(|message| message["op"].clone())
    };
    let ops = ["SEND", "SEND", "READ Response", "TERMINATE"];
    for (i, op) in ops.into_iter().enumerate() {
        assert_eq!(last(i), Some(op.into()), "{all:#}");
    }
    let drawn = text(&run(&["demo", "--ascii", "--only", "read"]));
    assert!(drawn.contains("READ Request") && !drawn.contains("SEND"), "{drawn}");
    let refused = run(&["demo", "--only", "cas"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("there are send, write, read, refused"), "{said}");
}
