//! `feroce sim`, as a user runs it.

mod inputs;
mod runs;
mod sweep;
mod traffic;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn sim(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_feroce"));
    command.arg("sim").args(args);
    command
}

fn run(args: &[&str]) -> Output {
    sim(args).output().expect("feroce runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

fn ns3(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../sim/tests/ns3").join(name)
}

/// A directory of this test alone, empty.
fn scratch(test: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sim").join(test);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).expect("a directory for the test");
    dir
}

const INCAST: &str = r#"
[topology]
kind = "star"
hosts = 5
rate = "100G"
delay = "1us"

[switch]
ecn = { kmin = "50K", kmax = "200K", pmax = 0.5 }

[host]
congestion = "connectx"

[[pattern]]
kind = "incast"
to = 4
bytes = "500K"
"#;

fn scenario(dir: &Path, text: &str) -> String {
    let file = dir.join("scenario.toml");
    fs::write(&file, text).expect("a scenario");
    file.to_str().expect("UTF-8").to_owned()
}

/// Two hosts and two switches in a square, all by name.
const SQUARE: &str = r#"
[topology]
kind = "custom"
rate = "10G"
delay = "1us"

[[node]]
name = "alice"

[[node]]
name = "bob"

[[node]]
name = "left"
kind = "switch"

[[node]]
name = "right"
kind = "switch"

[[link]]
ends = ["alice", "left"]

[[link]]
ends = ["bob", "right"]
rate = "25G"

[[link]]
ends = ["left", "right"]
delay = "500us"

[[flow]]
from = "alice"
to = "bob"
bytes = "1M"
"#;

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}
