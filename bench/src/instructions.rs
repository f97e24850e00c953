//! Instructions, counted by valgrind: nearly the same on every machine and in every run.
//!
//! The program runs itself under callgrind, once with a number of operations and once with twice
//! as many; the difference is what the operations cost, start-up aside.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::Effort;
use crate::fabric;
use crate::pair::{DEPTH, Pair, Verb, bulk, round_robin, small_writes};
use crate::report::Figure;

/// What can be counted: its name, what one operation is, and how many to count.
const SUBJECTS: &[(&str, &str, u32)] = &[
    ("write", "instructions per 8-byte WRITE, 128 deep", 4096),
    ("write-unsignalled", "instructions per 8-byte WRITE, every 64th signalled", 4096),
    ("write-single", "instructions per 8-byte WRITE, 1 deep", 1024),
    ("packet", "instructions per 4 KiB packet of a WRITE", 1024),
    ("packet-read", "instructions per 4 KiB packet of a READ", 1024),
    ("few", "instructions per 8-byte WRITE, 10 QPs in turn", 2000),
    ("many", "instructions per 8-byte WRITE, 2000 QPs in turn", 2000),
    ("fabric", "instructions per packet and its answer, simulated fat tree of 16 hosts", 3200),
];

/// Runs `count` operations of `subject`: what valgrind counts.
pub(crate) fn subject(name: &str, count: u32) -> Result<(), String> {
    let packets = |verb| {
        // Messages of 64 packets, as many as make `count` packets.
        let mut pair = Pair::new(1 << 20, 1);
        let mut addr = 0;
        bulk(&mut pair, verb, 4, 1 << 18, &mut addr);
        bulk(&mut pair, verb, count / 64, 1 << 18, &mut addr);
    };
    let writes = |depth, signal_every| {
        let mut pair = Pair::new(1 << 16, 1);
        small_writes(&mut pair, 2 * DEPTH, depth, signal_every);
        small_writes(&mut pair, count, depth, signal_every);
    };
    let in_turn = |connections: usize| {
        let mut pair = Pair::new(1 << 16, connections);
        let mut next = 0;
        round_robin(&mut pair, 2000, 10, &mut next);
        round_robin(&mut pair, count, 10, &mut next);
    };
    match name {
        "write" => writes(DEPTH, 1),
        "write-unsignalled" => writes(DEPTH, 64),
        "write-single" => writes(1, 1),
        "packet" => packets(Verb::Write),
        "packet-read" => packets(Verb::Read),
        "few" => in_turn(10),
        "many" => in_turn(2000),
        "fabric" => fabric::packets(count)?,
        _ => return Err(format!("nothing called `{name}` can be counted")),
    }
    Ok(())
}

/// Every subject, counted.
pub(crate) fn instructions(effort: Effort) -> Result<Vec<Figure>, String> {
    let own = std::env::current_exe().map_err(|e| format!("this program is nowhere: {e}"))?;
    let mut figures = Vec::new();
    for &(name, about, count) in SUBJECTS {
        let count = if effort.is_smoke() { count / 4 } else { count };
        let (once, twice) = (counted(&own, name, count)?, counted(&own, name, 2 * count)?);
        let each = (twice - once) / f64::from(count);
        figures.push(Figure::new(about, "instr", vec![each]));
    }
    Ok(figures)
}

/// Whether valgrind can be run.
pub(crate) fn is_possible() -> bool {
    let mut valgrind = Command::new("valgrind");
    valgrind.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    valgrind.status().is_ok_and(|status| status.success())
}

/// Instructions of one run.
fn counted(own: &Path, subject: &str, count: u32) -> Result<f64, String> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    valgrind.arg(own).args(["--callgrind", subject, &count.to_string()]);
    let output = valgrind.output().map_err(|e| format!("cannot run valgrind: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("valgrind failed ({}):\n{said}", output.status));
    }
    let total = said.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    total.ok_or_else(|| format!("valgrind told no total:\n{said}"))
}
