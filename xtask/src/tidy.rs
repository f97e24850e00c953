//! `cargo xtask tidy`: the rules of the house, checked. Every rule is a function from the
//! tree of files to the problems it sees, and every problem is one line.

mod attacks;
mod blocking;
mod circles;
mod dead;
mod documents;
mod graph;
mod links;
mod manifests;
mod policy;
mod prose;
mod text;
mod tree;

use crate::args::Args;
use crate::shell::root;
use crate::{Failure, Outcome};
pub(crate) use policy::NO_STD;
use tree::{Problem, Tree};

pub(crate) const HELP: &str = "\
Checks the rules of the house. Each violation is one line, `path:line: message`.

Usage: cargo xtask tidy [--list]

Options:
  --list   Say which rules there are
";

type Rule = (&'static str, fn(&Tree) -> Vec<Problem>);

const RULES: &[Rule] = &[
    ("crates depend on each other as the design says", graph::check),
    ("files of a crate do not import each other in circles", circles::check),
    ("unsafe code only in mem, ring, link, local, feroce, rsocket and capi", policy::unsafe_code),
    ("the lower crates are no_std", policy::no_std),
    ("no clock, thread, environment or socket in the lower crates", policy::no_outside_world),
    ("nothing waits in engine, link and local", blocking::check),
    ("lines of at most 100 characters, no tabs, no trailing white space", text::layout),
    ("files of at most 600 lines, unit tests aside", text::size),
    ("no notes to self, no leftovers of debugging, no ignored tests", text::leftovers),
    ("no paths that exist on one machine only", text::machine_paths),
    ("no source file that is not compiled", dead::check),
    ("manifests are complete and inherit from the workspace", manifests::complete),
    ("Cargo.lock is committed", manifests::lock_file),
    ("the crate table of ARCHITECTURE.md is true", documents::crates),
    ("the functions of the seam table exist", documents::seams),
    ("every attack of docs/SECURITY.md has a test that exists", attacks::check),
    ("links between pages lead somewhere, and the book has every page", links::check),
    ("comments and messages name their actor", prose::check),
];

pub(crate) fn main(mut args: Args) -> Outcome {
    let list = args.flag("--list");
    args.finish()?;
    if list {
        RULES.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    }
    check()
}

/// Checks every rule on the tree and prints what is wrong.
pub(crate) fn check() -> Outcome {
    let tree = Tree::read(&root())?;
    let mut problems: Vec<Problem> = RULES.iter().flat_map(|(_, rule)| rule(&tree)).collect();
    problems.sort();
    problems.iter().for_each(|problem| println!("{problem}"));
    if !problems.is_empty() {
        return Err(Failure::Failed(format!("tidy: {} problems", problems.len())));
    }
    println!("tidy: {} rules, {} files, no problems", RULES.len(), tree.files().len());
    Ok(())
}
