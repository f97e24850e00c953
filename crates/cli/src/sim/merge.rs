//! `feroce sim merge`: the parts of a sweep together.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use super::grid::Header;
use super::refuse;
use super::table::{self, Row};

const EXAMPLES: &str = "\
Examples:
  feroce sim merge part-*.jsonl              the table of the whole sweep
  feroce sim merge part-*.jsonl -o all.jsonl  and its figures in one file

Exit status: 0 all points are there, 1 some are missing, 2 the input is wrong.";

/// Options.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Files of `feroce sim sweep -o`.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Write the figures of all runs to this file.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn run(args: &Args, json: bool) -> anyhow::Result<ExitCode> {
    let (header, rows) = match read_all(args) {
        Ok(all) => all,
        Err(e) => return Ok(refuse(&e)),
    };
    if let Some(file) = &args.output {
        table::write(file, &header, &rows)?;
    }
    table::print(&header, &rows, json)?;
    let missing = header.points.saturating_sub(rows.len());
    if missing > 0 {
        eprintln!("feroce: {missing} of {} points are missing", header.points);
    }
    Ok(ExitCode::from(u8::from(missing > 0)))
}

fn read_all(args: &Args) -> Result<(Header, Vec<Row>), String> {
    let mut whole: Option<Header> = None;
    let mut rows: BTreeMap<usize, Row> = BTreeMap::new();
    for file in &args.files {
        let (header, part) = table::read(file)?;
        if whole.as_ref().is_some_and(|whole| *whole != header) {
            return Err(format!("{}:1: a part of another sweep", file.display()));
        }
        whole = Some(header);
        for (n, row) in (2..).zip(part) {
            let index = row.point.index;
            if rows.insert(index, row).is_some() {
                return Err(format!("{}:{n}: point {index} is there twice", file.display()));
            }
        }
    }
    let header = whole.ok_or("no file")?;
    Ok((header, rows.into_values().collect()))
}
