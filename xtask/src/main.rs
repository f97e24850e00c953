//! The project's own tasks: `cargo xtask ci` is the one command that tests everything.
//!
//! It uses nothing but the standard library, so that the first build costs seconds. Exit
//! status: 0 all is well, 1 something failed, 2 the command line makes no sense.
#![forbid(unsafe_code)]

mod api;
mod args;
mod book;
mod campaign;
mod ci;
mod clients;
mod dist;
mod fabric;
mod fuzz;
mod interop;
mod manifest;
mod packages;
mod scale;
mod shell;
mod sim;
mod soak;
mod source;
mod swarm;
mod tidy;

use std::process::ExitCode;

use args::Args;

const HELP: &str = "\
The project's own tasks.

Usage: cargo xtask <COMMAND> [OPTIONS]

Commands:
  ci       Install what the tests need, then run every check of the project
  tidy     Check the rules of the house: crate graph, unsafe policy, layout of files
  api      Compare the public interface of `feroce` with its record
  swarm    Run seeded simulations of the whole stack, or replay one seed
  sim      Compare simulated fabrics with results of ns-3
  fabric   Compare what programs measure on a fabric in real time with its model
  scale    Build what measures how traffic spreads over processors
  soak     Run random operations, and processes that are killed, for a while
  fuzz     Run the fuzz targets for a while
  book     Build the pages of docs/ as a book, with ladders drawn from captures
  dist     Build a directory and a Debian package for others
  clients  Run clients of RDMA from package registries, as their users would
  interop  Let the Linux kernel's own driver talk to feroce
  disks    Let the Linux kernel use disks that feroce serves

`cargo xtask <COMMAND> --help` says more. Exit status: 0 fine, 1 failed, 2 wrong usage.
";

/// Why a task did not succeed.
#[derive(Debug, PartialEq, Eq)]
enum Failure {
    /// The command line makes no sense: exit status 2.
    Usage(String),
    /// A check failed or a program could not be run: exit status 1.
    Failed(String),
}

type Outcome<T = ()> = Result<T, Failure>;

/// One command: its name, its help text and what it does.
type Task = (&'static str, &'static str, fn(Args) -> Outcome);

const TASKS: &[Task] = &[
    ("ci", ci::HELP, ci::main),
    ("tidy", tidy::HELP, tidy::main),
    ("api", api::HELP, api::main),
    ("swarm", swarm::HELP, swarm::main),
    ("sim", sim::HELP, sim::main),
    ("fabric", fabric::HELP, fabric::main),
    ("scale", scale::HELP, scale::main),
    ("soak", soak::HELP, soak::main),
    ("fuzz", fuzz::HELP, fuzz::main),
    ("book", book::HELP, book::main),
    ("dist", dist::HELP, dist::main),
    ("clients", clients::HELP, clients::main),
    ("interop", interop::HELP, interop::main),
    ("disks", interop::disks::HELP, interop::disks::main),
];

fn main() -> ExitCode {
    match dispatch(std::env::args().skip(1).collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Failed(message)) => {
            eprintln!("xtask: {message}");
            ExitCode::from(1)
        }
        Err(Failure::Usage(message)) => {
            eprintln!("xtask: {message}\nTry `cargo xtask --help`.");
            ExitCode::from(2)
        }
    }
}

fn dispatch(words: Vec<String>) -> Outcome {
    let mut args = Args::new(words);
    let help = args.flag("--help") | args.flag("-h");
    let Some(name) = args.positional()? else {
        if help {
            print!("{HELP}");
            return Ok(());
        }
        return Err(Failure::Usage("a command is missing".into()));
    };
    let Some((_, text, task)) = TASKS.iter().find(|(task, ..)| *task == name) else {
        return Err(Failure::Usage(format!("no command `{name}`")));
    };
    if help {
        print!("{text}");
        return Ok(());
    }
    task(args)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage_error(words: &[&str]) -> bool {
        let words = words.iter().map(|&word| word.to_owned()).collect();
        matches!(dispatch(words), Err(Failure::Usage(_)))
    }

    #[test]
    fn senseless_command_lines_are_usage_errors() {
        assert!(usage_error(&[]));
        assert!(usage_error(&["dance"]));
        assert!(usage_error(&["--fast"]));
        assert!(usage_error(&["tidy", "--fast"]));
        assert!(usage_error(&["ci", "--only", "tidy,dance"]));
        assert!(usage_error(&["swarm", "--seed", "many"]));
        assert!(usage_error(&["swarm", "--count"]));
        assert!(usage_error(&["soak", "--kills", "many"]));
        assert!(usage_error(&["fuzz", "--seconds", "0"]));
        assert!(usage_error(&["book", "--pages", "--record"]));
        assert!(usage_error(&["interop", "--only", "no such cell"]));
    }

    #[test]
    fn every_command_has_help() {
        for (name, text, _) in TASKS {
            assert!(HELP.contains(name));
            assert!(text.contains("Usage: cargo xtask "), "{name}");
            assert_eq!(dispatch(vec![(*name).to_owned(), "--help".to_owned()]), Ok(()));
        }
    }
}
