//! `feroce completions` and `feroce man`: both made from the definition of the command line.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  feroce completions bash > ~/.local/share/bash-completion/completions/feroce
  feroce completions zsh  > ~/.zfunc/_feroce
  feroce completions fish > ~/.config/fish/completions/feroce.fish";

const MAN_EXAMPLES: &str = "\
Examples:
  feroce man | man -l -                     read the first page
  feroce man ~/.local/share/man/man1        write a page for every command";

/// Options of `completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// For which shell
    shell: clap_complete::Shell,
}

/// Options of `man`.
#[derive(Debug, clap::Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManArgs {
    /// Directory for a page of every command; without it, the first page is printed
    directory: Option<PathBuf>,
}

pub(crate) fn completions(args: &CompletionsArgs, mut command: clap::Command) -> ExitCode {
    clap_complete::generate(args.shell, &mut command, "feroce", &mut io::stdout());
    ExitCode::SUCCESS
}

pub(crate) fn man(args: &ManArgs, command: clap::Command) -> anyhow::Result<ExitCode> {
    let Some(directory) = &args.directory else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        io::stdout().write_all(&page)?;
        return Ok(ExitCode::SUCCESS);
    };
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(command, directory))
        .with_context(|| format!("cannot write pages to {}", directory.display()))?;
    Ok(ExitCode::SUCCESS)
}
