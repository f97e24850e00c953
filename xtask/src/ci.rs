//! `cargo xtask ci`: everything that has to hold, in one command.

mod report;
mod steps;

use std::env;
use std::process::Command;

use crate::args::Args;
use crate::shell::run;
use crate::{Failure, Outcome};
use report::Report;
use steps::{STEPS, Step};

pub(crate) const HELP: &str = "\
Installs what the tests need (as root, with apt) and runs every check of the project. It
stops at the first step that fails.

Usage: cargo xtask ci [--only STEP,...] [--keep-going] [--list]

Options:
  --only STEP,...   Run these steps only
  --keep-going      Run the remaining steps after a failure
  --list            Say which steps there are

Environment:
  FEROCE_SEED   First seed of the swarm (default: 1)
  CI            If set, a package that is missing is a failure, not a warning
";

/// Settings of cargo that make a build from nothing quicker and change no program's behaviour:
/// no optimization across crates (less than half the time), no line tables (a panic names its line
/// without them), nothing kept for the next change of a file, and the same profile for what is
/// packed as for the swarm, which shares its crates and has its assertions.
const QUICK: [(&str, &str); 5] = [
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "none"),
    ("CARGO_PROFILE_DEV_DEBUG", "none"),
    ("CARGO_INCREMENTAL", "0"),
    ("XTASK_PROFILE", "swarm"),
];

/// How a step ended, if it did not fail.
enum Done {
    /// It ran; lines worth seeing again at the end.
    Ran(Vec<String>),
    /// It had nothing to do, and why.
    Skipped(String),
}

pub(crate) fn main(mut args: Args) -> Outcome {
    let list = args.flag("--list");
    let keep_going = args.flag("--keep-going");
    let only: Option<String> = args.value("--only")?;
    args.finish()?;
    let chosen = choose(only.as_deref())?;
    if list {
        for step in chosen {
            let note = if (step.is_there)() { "" } else { " (not in the tree yet)" };
            println!("{:<9} {}{note}", step.name, step.about);
        }
        return Ok(());
    }
    let unset = QUICK.into_iter().filter(|(name, _)| env::var_os(name).is_none());
    let unset: Vec<(&str, &str)> = unset.collect();
    if !unset.is_empty() {
        let own = env::current_exe().map_err(|e| Failure::Failed(format!("this program: {e}")))?;
        return run(Command::new(own).args(env::args_os().skip(1)).envs(unset));
    }
    let mut report = Report::new(chosen.len());
    for step in chosen {
        report.begin(step);
        let result =
            if (step.is_there)() { (step.run)() } else { Ok(Done::Skipped(steps::ABSENT.into())) };
        let failed = result.is_err();
        report.end(step, result);
        if failed && !keep_going {
            break;
        }
    }
    report.finish()
}

/// The steps that `--only` names, in the order of the table; all of them without it.
fn choose(only: Option<&str>) -> Outcome<Vec<&'static Step>> {
    let Some(only) = only else {
        return Ok(STEPS.iter().collect());
    };
    let names: Vec<&str> = only.split(',').map(str::trim).collect();
    if let Some(unknown) = names.iter().find(|name| STEPS.iter().all(|step| step.name != **name)) {
        let known: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
        let known = known.join(", ");
        return Err(Failure::Usage(format!("no step `{unknown}`; there are: {known}")));
    }
    Ok(STEPS.iter().filter(|step| names.contains(&step.name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_chosen_by_name() {
        let names =
            |only| choose(only).map(|steps| steps.iter().map(|s| s.name).collect::<Vec<_>>());
        assert_eq!(names(Some("test, tidy")), Ok(vec!["tidy", "test"]));
        assert_eq!(names(None).map(|all| all.len()), Ok(STEPS.len()));
        assert!(names(Some("tidy,what")).is_err());
    }
}
