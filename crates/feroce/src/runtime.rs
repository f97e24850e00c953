//! The directory for files that are needed only while programs run.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use nix::unistd::geteuid;

/// A directory that only this user can use, for files that do not outlive a session:
/// `feroce-UID` in `$XDG_RUNTIME_DIR`, or else in `/dev/shm` or `/tmp`, whichever lets us. It is
/// made if it is not there.
pub fn runtime_dir() -> io::Result<PathBuf> {
    let own = env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()).map(PathBuf::from);
    let places = own.into_iter().chain(["/dev/shm".into(), "/tmp".into()]);
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    for place in places {
        let path = place.join(format!("feroce-{}", geteuid()));
        match claim(&path) {
            Ok(()) => return Ok(path),
            Err(e) => failure = io::Error::new(e.kind(), format!("{}: {e}", path.display())),
        }
    }
    Err(failure)
}

/// Makes a directory, or makes sure that the one which is there is ours alone: where every user may
/// make directories, another may have made it.
fn claim(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let found = fs::symlink_metadata(path)?;
    if !found.is_dir() || found.uid() != geteuid().as_raw() || found.mode() & 0o022 != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to others"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_directory_of_others_is_not_used() {
        let place = env::temp_dir().join(format!("feroce-runtime-test-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        let ours = place.join("ours");
        claim(&ours).unwrap();
        claim(&ours).unwrap();
        assert_eq!(fs::metadata(&ours).unwrap().mode() & 0o777, 0o700);
        symlink(&ours, place.join("link")).unwrap();
        assert!(claim(&place.join("link")).is_err());
        fs::set_permissions(&ours, PermissionsExt::from_mode(0o777)).unwrap();
        assert!(claim(&ours).is_err());
        assert!(claim(&place.join("not/there")).is_err());
        fs::remove_dir_all(&place).unwrap();
    }
}
