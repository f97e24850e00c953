//! `feroce sim compare`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use feroce_sim::scenario::percentile;
use serde_json::json;

use super::refuse;

const EXAMPLES: &str = "\
Examples:
  feroce sim compare none dcqcn          two directories of `feroce sim run -o`
  feroce sim compare results ns3/fct.txt  with the results of another simulator";

/// Options.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// fct.txt of a run, or its directory.
    a: PathBuf,
    /// The same of another run.
    b: PathBuf,
}

/// What tells flows apart: addresses, ports and start, as they are written.
type FlowName = Vec<String>;

/// Duration, and duration alone, of every flow.
type Times = BTreeMap<FlowName, (f64, f64)>;

fn read(path: &Path) -> Result<Times, String> {
    let file = if path.is_dir() { path.join("fct.txt") } else { path.to_owned() };
    let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let mut times = Times::new();
    for (n, line) in (1..).zip(text.lines()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |i: usize| words.get(i).and_then(|word| word.parse::<f64>().ok());
        let (Some(duration), Some(ideal), 8) = (number(6), number(7), words.len()) else {
            return Err(format!("{}:{n}: expected eight columns of a flow", file.display()));
        };
        let name = words[..6].iter().map(|word| (*word).to_owned()).collect();
        times.insert(name, (duration, ideal));
    }
    Ok(times)
}

pub(super) fn run(args: &Args, json: bool) -> anyhow::Result<ExitCode> {
    let (a, b) = match (read(&args.a), read(&args.b)) {
        (Ok(a), Ok(b)) => (a, b),
        (Err(e), _) | (_, Err(e)) => return Ok(refuse(&e)),
    };
    let of = |times: &Times| {
        let mut all: Vec<f64> =
            times.values().map(|(ns, ideal)| (ns / ideal.max(1.0)).max(1.0)).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let (slow_a, slow_b) = (of(&a), of(&b));
    let mut ratios: Vec<f64> = a
        .iter()
        .filter_map(|(name, (ns, _))| b.get(name).map(|(other, _)| ns / other.max(1.0)))
        .collect();
    ratios.sort_by(f64::total_cmp);
    let figures = [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)];
    if json {
        let all = |values: &[f64]| -> serde_json::Map<_, _> {
            let entry = |&(name, p): &(&str, f64)| (name.to_owned(), json!(percentile(values, p)));
            figures.iter().map(entry).collect()
        };
        let side =
            |times: &Times, slow: &[f64]| json!({ "flows": times.len(), "slowdown": all(slow) });
        let report = json!({
            "a": side(&a, &slow_a),
            "b": side(&b, &slow_b),
            "common": ratios.len(),
            "ratio": all(&ratios),
        });
        println!("{report:#}");
        return Ok(ExitCode::SUCCESS);
    }
    let show = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.3}"));
    println!("{:<10} {:>12} {:>12} {:>12}", "", "A", "B", "A / B");
    println!("{:<10} {:>12} {:>12} {:>12}", "flows", a.len(), b.len(), ratios.len());
    for (name, p) in figures {
        println!(
            "{name:<10} {:>12} {:>12} {:>12}",
            show(percentile(&slow_a, p)),
            show(percentile(&slow_b, p)),
            show(percentile(&ratios, p))
        );
    }
    println!("\nA and B: how many times longer than alone flows took; A / B: of each flow, by its");
    println!("addresses, ports, bytes and start.");
    Ok(ExitCode::SUCCESS)
}
