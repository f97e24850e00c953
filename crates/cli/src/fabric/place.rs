//! Where the files of a fabric are: a directory for each, in one of the user's own.

use std::fs::{self, File, TryLockError};
use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::{Context as _, bail};

use super::control::{self, Command, Reply};

/// The fabric that is meant if none is named.
pub(super) const DEFAULT_NAME: &str = "default";

/// Most letters of a name: paths of sockets are short.
const MAX_NAME: usize = 32;

/// The place of a fabric.
#[derive(Clone, Debug)]
pub(super) struct Place {
    name: String,
    directory: PathBuf,
}

impl Place {
    pub(super) fn new(name: &str) -> anyhow::Result<Self> {
        let base = feroce::runtime_dir().context("there is no place for the fabric's sockets")?;
        Ok(Self { name: name.to_owned(), directory: base.join(format!("fabric-{name}")) })
    }

    /// The name of the fabric.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Where programs connect.
    pub(super) fn port_socket(&self) -> PathBuf {
        self.directory.join("port")
    }

    /// Where commands connect.
    pub(super) fn control_socket(&self) -> PathBuf {
        self.directory.join("control")
    }

    /// Where programs of an InfiniBand fabric connect.
    pub(super) fn subnet_socket(&self) -> PathBuf {
        self.directory.join("subnet")
    }

    /// Where the files are that subnet managers hold open.
    pub(super) fn issm(&self) -> PathBuf {
        self.directory.join("issm")
    }

    /// Where the files are of a subnet manager that the fabric has started.
    pub(super) fn manager(&self) -> PathBuf {
        self.directory.join("sm")
    }

    /// Where the process that runs in the background writes its warnings.
    pub(super) fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// Whether a fabric listens there.
    pub(super) fn is_running(&self) -> bool {
        UnixStream::connect(self.control_socket()).is_ok()
    }

    /// Gives a command to the fabric.
    pub(super) fn command(
        &self,
        command: &Command,
    ) -> anyhow::Result<(Reply, BufReader<UnixStream>)> {
        control::command(&self.control_socket(), &self.name, command)
    }

    /// Makes the directory, if it is not there.
    pub(super) fn create(&self) -> anyhow::Result<()> {
        fs::create_dir_all(&self.directory).with_context(|| self.directory.display().to_string())
    }

    /// Takes the place for a fabric that starts. What a fabric left behind that was killed is
    /// removed.
    pub(super) fn take(&self) -> anyhow::Result<Taken> {
        self.create()?;
        let path = self.directory.join("lock");
        let lock = File::create(&path).with_context(|| path.display().to_string())?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let name = &self.name;
                bail!(
                    "a fabric {name} runs already: end it with `feroce fabric down --name {name}`, \
                     or choose another --name"
                )
            }
            Err(TryLockError::Error(e)) => return Err(e.into()),
        }
        for socket in [self.port_socket(), self.control_socket(), self.subnet_socket()] {
            let _ = fs::remove_file(socket);
        }
        let _ = fs::remove_dir_all(self.issm());
        Ok(Taken { place: self.clone(), _lock: lock })
    }

    /// The names of the fabrics of this user, whether they run or not.
    pub(super) fn all() -> anyhow::Result<Vec<Self>> {
        let base = feroce::runtime_dir()?;
        let names = fs::read_dir(&base)?.flatten().filter_map(|entry| {
            let name = entry.file_name();
            let name = name.to_str()?.strip_prefix("fabric-")?.to_owned();
            Some(Self { directory: entry.path(), name })
        });
        Ok(names.collect())
    }
}

/// A place whose fabric runs in this process. Its files end with it.
#[derive(Debug)]
pub(super) struct Taken {
    place: Place,
    _lock: File,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.place.directory);
    }
}

/// Reads a name: it becomes a part of the names of files.
pub(super) fn parse_name(word: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let is_good = !word.is_empty() && word.len() <= MAX_NAME && word.chars().all(fits);
    match is_good {
        true => Ok(word.to_owned()),
        false => Err(format!("letters, digits and `_-.`, at most {MAX_NAME}")),
    }
}
