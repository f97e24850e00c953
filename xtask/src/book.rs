//! `cargo xtask book`: the pages of `docs/` as a book, with ladders drawn from captures of programs
//! that run for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::args::Args;
use crate::shell::{cache_dir, cargo, is_on_path, root, run, target_dir};
use crate::{Failure, Outcome};

mod pages;
mod pictures;

pub(crate) const HELP: &str = "\
Builds the pages of docs/ as a book, in target/book. Two things are checked. Every ladder of the
tutorial is drawn again from a capture of its program, and what it shows must be what the page
shows; times, numbers and keys may differ. And mdBook must have nothing to complain about.

Usage: cargo xtask book [--record] [--pictures | --pages]

      --record    Put the ladders that were drawn into the pages
      --pictures  Only draw and compare the ladders
      --pages     Only build the book, from the pages as they are

mdBook is installed if it is not there, which needs the network once and takes about four minutes
of a processor. Nothing else needs the network.
";

/// The version that was tried.
const MDBOOK: &str = "0.5.4";

pub(crate) fn main(mut args: Args) -> Outcome {
    let record = args.flag("--record");
    let (pictures, pages) = (args.flag("--pictures"), args.flag("--pages"));
    args.finish()?;
    if pages && (pictures || record) {
        return Err(Failure::Usage("`--pages` draws no pictures".into()));
    }
    if !pages {
        pictures::check(record)?;
    }
    if !pictures {
        build()?;
    }
    Ok(())
}

/// Builds the book.
fn build() -> Outcome {
    let mdbook = mdbook()?;
    let (from, to) = (target_dir().join("book-pages"), target_dir().join("book"));
    for folder in [&from, &to] {
        if folder.exists() {
            fs::remove_dir_all(folder).map_err(|e| failed("cannot clear", folder, &e))?;
        }
    }
    pages::gather(&root(), &from)?;
    let mut command = Command::new(mdbook);
    command.arg("build").arg(&from).arg("--dest-dir").arg(&to);
    let output = command.output().map_err(|e| Failure::Failed(format!("mdbook: {e}")))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() || complains(&said) {
        return Err(Failure::Failed(format!("mdbook complains:\n{said}")));
    }
    println!("{}", to.join("index.html").display());
    Ok(())
}

/// Whether mdBook has written more than what it does.
fn complains(said: &str) -> bool {
    said.lines().any(|line| !line.trim().is_empty() && !line.trim_start().starts_with("INFO"))
}

/// Where mdBook is. It is installed if it is not there.
fn mdbook() -> Outcome<PathBuf> {
    if is_on_path("mdbook") {
        return Ok("mdbook".into());
    }
    let place = cache_dir().join("tools");
    let program = place.join("bin/mdbook");
    if !program.exists() {
        println!("mdBook {MDBOOK} is installed into {}", place.display());
        let mut command = cargo(["install", "mdbook", "--version", MDBOOK, "--locked"]);
        // Neither the server nor the watcher, which are two thirds of its dependencies.
        command.args(["--no-default-features", "--features", "search", "--root"]).arg(&place);
        run(&mut command)?;
    }
    Ok(program)
}

fn failed(what: &str, path: &Path, why: &dyn std::fmt::Display) -> Failure {
    Failure::Failed(format!("{what} {}: {why}", path.display()))
}

fn read(path: &Path) -> Outcome<String> {
    fs::read_to_string(path).map_err(|e| failed("cannot read", path, &e))
}

fn write(path: &Path, text: &str) -> Outcome {
    let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
    folder.and_then(|()| fs::write(path, text)).map_err(|e| failed("cannot write", path, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_mdbook_does_is_no_complaint() {
        assert!(!complains(" INFO Book building has started\n INFO Running the html backend\n"));
        assert!(complains(" INFO Book building has started\n WARN Potential missing chapter\n"));
    }
}
