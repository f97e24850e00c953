//! `cargo xtask soak --resume`: a long campaign of swarm seeds and fuzzing, in pieces.
//!
//! What the campaign has done is in a file outside the tree, so that it goes on after any
//! interruption, in any checkout. A piece that was interrupted is done again.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::swarm::Seeds;
use crate::{Failure, Outcome, fuzz, shell, swarm};

/// Seeds of one piece.
const SEEDS: u64 = 2000;

/// Seconds that one piece runs each fuzz target.
const FUZZ_SECONDS: u64 = 10;

/// The name under which the state has the number of seeds that were run. Those are the seeds from
/// 1 on.
const SWARM: &str = "swarm";

/// What was done so far: seeds of the swarm, and executions of each fuzz target.
#[derive(Debug, Default, PartialEq, Eq)]
struct State {
    counts: BTreeMap<String, u64>,
}

impl State {
    /// Reads lines of a name and a number.
    fn parse(text: &str) -> Option<Self> {
        let entry = |line: &str| {
            let (name, count) = line.split_once(' ')?;
            Some((name.to_owned(), count.parse().ok()?))
        };
        Some(Self { counts: text.lines().map(entry).collect::<Option<_>>()? })
    }

    fn load(path: &Path) -> Outcome<Self> {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).ok_or_else(|| {
                Failure::Failed(format!("{}: not a campaign; remove it", path.display()))
            }),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(e) => Err(Failure::Failed(format!("{}: {e}", path.display()))),
        }
    }

    /// Puts the new state into the place of the old one in one step.
    fn save(&self, path: &Path) -> Outcome {
        let fresh = path.with_extension("new");
        let written = fs::write(&fresh, self.to_string()).and_then(|()| fs::rename(&fresh, path));
        written.map_err(|e| Failure::Failed(format!("{}: {e}", path.display())))
    }

    fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    fn add(&mut self, name: &str, more: u64) {
        *self.counts.entry(name.to_owned()).or_default() += more;
    }

    /// Executions of all fuzz targets.
    fn executions(&self) -> u64 {
        self.counts.iter().filter(|(name, _)| *name != SWARM).map(|(_, count)| count).sum()
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts.iter().try_for_each(|(name, count)| writeln!(f, "{name} {count}"))
    }
}

/// Goes on with the campaign for about `limit`.
pub(crate) fn resume(limit: Duration) -> Outcome {
    let folder = folder()?;
    let path = folder.join("state");
    let mut state = State::load(&path)?;
    println!("soak: the campaign in {}", folder.display());
    let begun = now();
    let targets = fuzz::targets()?;
    let fuzzers = fuzz::build()?;
    while begun.elapsed() < limit {
        let first = 1 + state.count(SWARM);
        let jobs = Seeds::from_environment(SEEDS)?.jobs;
        shell::run(&mut swarm::command(Seeds { first, count: SEEDS, jobs }))?;
        state.add(SWARM, SEEDS);
        state.save(&path)?;
        for target in &targets {
            if begun.elapsed() >= limit {
                break;
            }
            // A seed of its own for each piece; the corpus grows from one to the next.
            let run = fuzz::Piece {
                seconds: FUZZ_SECONDS,
                seed: first,
                corpus: folder.join("corpus").join(target),
            };
            let (outcome, executions) = run.run(&fuzzers.join(target), target)?;
            outcome?;
            state.add(target, executions);
            state.save(&path)?;
        }
    }
    println!(
        "soak: {} swarm seeds and {} fuzz executions in all, no failures",
        state.count(SWARM),
        state.executions()
    );
    Ok(())
}

/// The folder with what the campaign remembers.
fn folder() -> Outcome<PathBuf> {
    let folder = shell::cache_dir().join("soak");
    fs::create_dir_all(&folder)
        .map_err(|e| Failure::Failed(format!("{}: {e}", folder.display())))?;
    Ok(folder)
}

#[expect(clippy::disallowed_methods, reason = "the caller says how long to go on")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_campaign_is_remembered() {
        let mut state = State::default();
        state.add(SWARM, 2000);
        state.add("wire_views", 7);
        state.add("engine_raw", 5);
        state.add("wire_views", 1);
        assert_eq!((state.count(SWARM), state.executions()), (2000, 13));
        assert_eq!(State::parse(&state.to_string()), Some(state));
    }

    #[test]
    fn a_damaged_state_is_refused() {
        for text in ["swarm", "swarm x", "swarm 1\n\nwire 2", "swarm -1"] {
            assert_eq!(State::parse(text), None, "{text:?}");
        }
    }
}
