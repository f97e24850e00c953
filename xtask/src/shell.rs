//! Running other programs from the root of the workspace, with their output in plain view.

use core::time::Duration;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use crate::{Failure, Outcome};

/// The status that `timeout` ends with when it had to end the command.
const TIMED_OUT: i32 = 124;

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let own = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    own.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// The folder that cargo builds into.
pub(crate) fn target_dir() -> PathBuf {
    root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Builds the command and the drop-in library as they are packed and tried, in the profile of
/// [`packed`].
pub(crate) fn build_packed() -> Outcome {
    let mut build = cargo(["build", "-p", "feroce-cli", "-p", "feroce-capi"]);
    run(build.arg("--profile").arg(profile()))
}

/// A file that [`build_packed`] has built.
pub(crate) fn packed(name: &str) -> PathBuf {
    target_dir().join(profile()).join(name)
}

/// The profile of what is packed: CI builds it as the swarm, whose crates it shares then.
fn profile() -> String {
    std::env::var("XTASK_PROFILE").unwrap_or_else(|_| "release".into())
}

/// The folder for what outlives a checkout: downloads, and what a long campaign remembers.
pub(crate) fn cache_dir() -> PathBuf {
    let named = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let usual = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    named.or_else(usual).unwrap_or_else(target_dir).join("feroce")
}

/// A cargo command, to run in the root of the workspace.
pub(crate) fn cargo<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// What `variable` (say `RUSTFLAGS`) holds now, with `more` behind it.
pub(crate) fn extended(variable: &str, more: &str) -> OsString {
    let mut value = std::env::var_os(variable).unwrap_or_default();
    if !value.is_empty() {
        value.push(" ");
    }
    value.push(more);
    value
}

/// Whether a program of that name is on the PATH.
pub(crate) fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The same command, ended after `limit`. At a terminal it stays as it is, so that Ctrl-C reaches
/// it.
pub(crate) fn limited(command: Command, limit: Duration) -> Command {
    if io::stdout().is_terminal() || !is_on_path("timeout") {
        return command;
    }
    let mut wrapped = Command::new("timeout");
    wrapped.args(["--kill-after=10", &limit.as_secs().to_string()]);
    wrapped.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    wrapped.current_dir(command.get_current_dir().unwrap_or(&root()));
    wrapped
}

/// Runs a quick question and gives back what it wrote to standard output, if it succeeded.
pub(crate) fn ask(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command with its output passed straight through; fails unless it succeeds.
pub(crate) fn run(command: &mut Command) -> Outcome {
    announce(command);
    let status = command.stdin(Stdio::null()).status().map_err(|e| cannot_start(command, &e))?;
    succeeded(command, status)
}

/// Runs a command as [`run`] does, and collects the lines of its output that `keep` wants.
pub(crate) fn run_keeping(command: &mut Command, keep: fn(&str) -> bool) -> (Outcome, Vec<String>) {
    announce(command);
    if io::stdout().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(e) => return (Err(cannot_start(command, &e)), Vec::new()),
    };
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let mut kept = std::thread::scope(|scope| {
        let errors = scope.spawn(|| stderr.map(|from| pass_on(from, io::stderr(), keep)));
        let mut lines = stdout.map(|from| pass_on(from, io::stdout(), keep)).unwrap_or_default();
        lines.extend(errors.join().ok().flatten().unwrap_or_default());
        lines
    });
    kept.iter_mut().for_each(|line| *line = line.trim().to_owned());
    match child.wait() {
        Ok(status) => (succeeded(command, status), kept),
        Err(e) => (Err(cannot_start(command, &e)), kept),
    }
}

fn pass_on(from: impl Read, mut to: impl Write, keep: fn(&str) -> bool) -> Vec<String> {
    let mut kept = Vec::new();
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
        // A closed terminal must not keep the child from being read to its end.
        let _ = to.write_all(&line).and_then(|()| to.flush());
        let plain = without_colours(&String::from_utf8_lossy(&line));
        if keep(&plain) {
            kept.push(plain);
        }
        line.clear();
    }
    kept
}

/// Drops the escape sequences that colour a line.
fn without_colours(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        rest = after.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
        rest = rest.get(1..).unwrap_or_default();
    }
    plain.push_str(rest);
    plain
}

/// Prints the command as a person would type it.
fn announce(command: &Command) {
    println!("$ {}", command_line(command));
    let _ = io::stdout().flush();
}

fn command_line(command: &Command) -> String {
    let mut words: Vec<String> = command
        .get_envs()
        .filter_map(|(name, value)| Some((name.to_string_lossy(), value?.to_string_lossy())))
        .map(|(name, value)| format!("{name}={}", quoted(&value)))
        .collect();
    words.push(program_name(command));
    let cargo = std::env::var_os("CARGO");
    for arg in command.get_args() {
        let is_cargo = cargo.as_deref() == Some(arg);
        words.push(if is_cargo { "cargo".to_owned() } else { quoted(&arg.to_string_lossy()) });
    }
    words.join(" ")
}

fn program_name(command: &Command) -> String {
    let program = Path::new(command.get_program());
    program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned()
}

fn quoted(word: &str) -> String {
    if word.is_empty() || word.contains(|c: char| c.is_whitespace() || c == '\'') {
        return format!("{word:?}");
    }
    word.to_owned()
}

fn succeeded(command: &Command, status: ExitStatus) -> Outcome {
    if status.success() {
        return Ok(());
    }
    let is_limited = program_name(command) == "timeout";
    let is_late = is_limited && matches!(status.code(), Some(TIMED_OUT) | None);
    let why = if is_late { "out of time".to_owned() } else { status.to_string() };
    Err(Failure::Failed(format!("`{}` failed ({why})", command_line(command))))
}

fn cannot_start(command: &Command, error: &io::Error) -> Failure {
    Failure::Failed(format!("cannot run `{}`: {error}", program_name(command)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_dropped() {
        assert_eq!(without_colours("\u{1b}[1;32mok\u{1b}[0m done"), "ok done");
        assert_eq!(without_colours("plain"), "plain");
        assert_eq!(without_colours("cut \u{1b}[1;3"), "cut ");
    }

    #[test]
    fn commands_read_as_typed() {
        let mut command = Command::new("/usr/bin/env");
        command.args(["-i", "two words"]).env("RUSTFLAGS", "--cfg loom");
        assert_eq!(command_line(&command), "RUSTFLAGS=\"--cfg loom\" env -i \"two words\"");
    }

    #[test]
    fn what_hangs_is_ended() {
        let mut command = Command::new("sh");
        command.args(["-c", "test $WORD = given && sleep 60"]).env("WORD", "given");
        let mut command = limited(command, Duration::from_secs(1));
        if program_name(&command) == "timeout" {
            let Err(Failure::Failed(message)) = run(&mut command) else { panic!("must fail") };
            assert!(message.ends_with("(out of time)"), "{message}");
        }
    }

    #[test]
    fn wanted_lines_are_kept_and_failures_reported() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo keep this; echo other; echo keep that >&2; exit 3"]);
        let (outcome, kept) = run_keeping(&mut command, |line| line.starts_with("keep"));
        assert!(outcome.is_err());
        assert_eq!(kept, ["keep this", "keep that"]);
    }
}
