//! `feroce config`: the settings that apply here, and where each comes from.

use std::io::{self, Write as _};
use std::process::ExitCode;

use feroce::{SettingPlace, Settings};
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  feroce config                        what differs from the defaults, and where it is set
  feroce config --all                  every setting
  FEROCE_FAULT=loss=1% feroce config   what a program would get in this environment
  feroce --json config                 the same for programs

The file is the one that FEROCE_CONFIG names, or feroce/feroce.toml in $XDG_CONFIG_HOME (by default
~/.config). Variables of the environment override it, and options of a command override those.";

/// Options.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Show settings that have their defaults, too
    #[arg(long)]
    all: bool,
}

/// Prints the settings. `options` are those that options of the command line set.
pub(crate) fn run(
    args: &Args,
    json: bool,
    options: &[(&str, Option<&str>)],
) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let mut shown = 0;
    for setting in Settings::sources()? {
        let option = options.iter().find(|(name, _)| *name == setting.name);
        let (value, place) = match (option.and_then(|(_, value)| *value), &setting.place) {
            (Some(value), _) => (Some(value.to_owned()), "command line".to_owned()),
            (None, None) => (None, "default".to_owned()),
            (None, Some(SettingPlace::File(path))) => (setting.value, path.display().to_string()),
            (None, Some(_)) => (setting.value, setting.variable.clone()),
        };
        if value.is_none() && !args.all {
            continue;
        }
        shown += 1;
        if json {
            let record = json!({
                "name": setting.name, "variable": setting.variable, "value": value,
                "default": setting.default, "from": place,
            });
            writeln!(out, "{record}")?;
        } else {
            let value = value.as_deref().unwrap_or(setting.default);
            writeln!(out, "{:<18} {value:<28} {place}", setting.name)?;
        }
    }
    if shown == 0 && !json {
        writeln!(out, "every setting has its default; `feroce config --all` shows them")?;
    }
    Ok(ExitCode::SUCCESS)
}
