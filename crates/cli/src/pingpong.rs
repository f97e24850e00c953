//! `feroce rc-pingpong` and its siblings.

use std::process::ExitCode;

/// Which service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Rc,
    Uc,
    Ud,
    Srq,
}

/// Options.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(kind: Kind, _args: &Args, _json: bool) -> anyhow::Result<ExitCode> {
    anyhow::bail!("{kind:?} pingpong is not there yet")
}
