//! The directory for files that are needed only while programs run.

use std::path::{Path, PathBuf};
use std::{env, io};

/// A directory that only this user can use, for files that do not outlive a session: `feroce-UID`
/// in `$XDG_RUNTIME_DIR`, or else in `/dev/shm` or `/tmp`. If another user has taken that name, the
/// directory has a random suffix. It is created if it does not exist.
pub fn runtime_dir() -> io::Result<PathBuf> {
    let own = env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()).map(PathBuf::from);
    find(own.into_iter().chain(["/dev/shm".into(), "/tmp".into()]))
}

fn find(places: impl Iterator<Item = PathBuf>) -> io::Result<PathBuf> {
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    for place in places {
        match feroce_local::own_directory(Path::new(&place), "feroce") {
            Ok(path) => return Ok(path),
            Err(e) => failure = e,
        }
    }
    Err(failure)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_directory_of_others_is_not_used() {
        let place = env::temp_dir().join(format!("feroce-runtime-test-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        let own = || find([place.join("not/there"), place.clone()].into_iter()).unwrap();
        let first = own();
        assert_eq!(own(), first);
        assert_eq!(fs::metadata(&first).unwrap().mode() & 0o777, 0o700);
        // It is not this user's alone any more.
        fs::set_permissions(&first, PermissionsExt::from_mode(0o777)).unwrap();
        let second = own();
        assert_ne!(second, first);
        assert_eq!(own(), second);
        // A link is not a directory.
        fs::remove_dir(&first).unwrap();
        symlink(&second, &first).unwrap();
        assert_eq!(own(), second);
        fs::remove_dir_all(&place).unwrap();
    }
}
