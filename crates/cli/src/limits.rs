//! Limits of this process.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Lets this process have as many descriptors as it may: it has some for each program that it
/// serves.
pub(crate) fn raise_descriptors() -> nix::Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)
}
