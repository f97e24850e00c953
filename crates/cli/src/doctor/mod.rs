//! `feroce doctor`: checks whether this machine, and the way to another one, has what the adapter
//! needs, and says what each finding means.

mod here;
mod way;

use std::process::ExitCode;

use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  feroce doctor                 this machine
  feroce doctor 192.0.2.1       also the path to another machine

The exit status is 1 if something is wrong. Notes are about speed, or about features that programs
can do without.";

/// Options.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Another machine, to check the path to it
    host: Option<String>,
}

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Grade {
    Ok,
    Note,
    Bad,
}

/// What one check has found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Finding {
    grade: Grade,
    what: String,
    /// What it means, or what to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Finding {
    fn ok(what: impl Into<String>) -> Self {
        Self { grade: Grade::Ok, what: what.into(), advice: None }
    }

    fn note(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { grade: Grade::Note, what: what.into(), advice: Some(advice.into()) }
    }

    fn bad(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { grade: Grade::Bad, what: what.into(), advice: Some(advice.into()) }
    }

    fn text(&self) -> String {
        let grade = match self.grade {
            Grade::Ok => "ok",
            Grade::Note => "note",
            Grade::Bad => "bad",
        };
        let advice = self.advice.iter().map(|advice| format!("\n      {advice}"));
        format!("{grade:<5} {}{}", self.what, advice.collect::<String>())
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args, json: bool) -> anyhow::Result<ExitCode> {
    let mut all = Vec::new();
    let mut show = |finding: Finding| {
        if !json {
            println!("{}", finding.text());
        }
        all.push(finding);
    };
    here::check(&mut show);
    if let Some(host) = &args.host {
        way::check(host, &mut show);
    }
    if json {
        println!("{}", serde_json::to_string(&all)?);
    }
    let is_bad = all.iter().any(|finding| finding.grade == Grade::Bad);
    Ok(ExitCode::from(u8::from(is_bad)))
}
