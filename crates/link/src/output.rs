//! Files that layers write: captures and traces.
//!
//! A file has one writer, which holds a lock on it (`flock`) for as long as it writes. A device
//! that finds the file locked writes to another one, with a number before the extension:
//! `x.pcapng`, `x-2.pcapng`, `x-3.pcapng`. One file for all of them would need whole blocks from
//! every writer in sections of their own, and Wireshark shows sections one after the other, not by
//! time.
//!
//! An existing file is overwritten only if its first bytes say that feroce wrote it. A write that
//! fails leaves the file as it was before, so that it ends with a whole record.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};

use crate::annotate;

/// Writers of one name that get a file of their own: more than the ranks that a host runs, and few
/// enough to give up soon when every name is taken.
const MOST_FILES: u32 = 4096;

/// First bytes of a file that tell what it is: the beginning of the title of a trace, or the
/// section header of a capture with the name of its writer, is shorter.
const HEAD: usize = 64;

/// What a layer writes to a file, and how it recognises its own files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// As messages name it: `capture`.
    pub(crate) name: &'static str,
    /// Whether a file that begins with these bytes was written by the same layer.
    pub(crate) is_ours: fn(&[u8]) -> bool,
}

/// A file that no other device writes to.
#[derive(Debug)]
pub(crate) struct OutputFile {
    file: File,
    path: PathBuf,
    /// Bytes in the file; nothing if it is no regular file but a pipe or a device.
    len: Option<u64>,
}

impl OutputFile {
    /// Creates the file, or one with a number in its name if another device writes to it.
    pub(crate) fn create(path: &Path, kind: Kind) -> io::Result<Self> {
        let name = kind.name;
        for number in 1..=MOST_FILES {
            let candidate = numbered(path, number);
            let opened = open(&candidate, kind).map_err(|e| {
                let at = candidate.display();
                let text = format!("cannot create the {name} file {at}: {e}");
                annotate(e, text)
            })?;
            let Some(output) = opened else { continue };
            if number > 1 {
                let (first, at) = (path.display(), candidate.display());
                tracing::warn!("another device writes its {name} to {first}: this one takes {at}");
            }
            return Ok(output);
        }
        let first = path.display();
        Err(io::Error::other(format!(
            "cannot create the {name} file {first}: {MOST_FILES} devices write to files of that \
             name already"
        )))
    }

    /// Writes all of it, or nothing.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(len) = self.len else { return self.file.write_all(bytes) };
        let end = len.saturating_add(bytes.len() as u64);
        // Beyond the limit the kernel would end the process with SIGXFSZ.
        let (limit, _) = getrlimit(Resource::RLIMIT_FSIZE)?;
        if end > limit {
            return Err(Errno::EFBIG.into());
        }
        if let Err(e) = self.file.write_all_at(bytes, len) {
            let _ = self.file.set_len(len);
            return Err(e);
        }
        self.len = Some(end);
        Ok(())
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let appended = self.append(bytes);
        let named = |e: io::Error| {
            let text = format!("{}: {e}", self.path.display());
            annotate(e, text)
        };
        appended.map(|()| bytes.len()).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `run.pcapng` for 1, `run-2.pcapng` for 2.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let Some(stem) = path.file_stem().filter(|_| number > 1) else { return path.to_owned() };
    let mut name = stem.to_owned();
    name.push(format!("-{number}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Opens the file and empties it. Nothing if another device writes to it.
fn open(path: &Path, kind: Kind) -> io::Result<Option<OutputFile>> {
    let is_special = |found: &Metadata| !found.is_file();
    if path.metadata().is_ok_and(|found| is_special(&found)) {
        return open_special(path).map(Some);
    }
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(e)) => return Err(e),
    }
    let mut head = Vec::with_capacity(HEAD);
    (&mut file).take(HEAD as u64).read_to_end(&mut head)?;
    if !head.is_empty() && !(kind.is_ours)(&head) {
        let name = kind.name;
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("it exists and is no {name} of feroce: remove it, or choose another name"),
        ));
    }
    file.set_len(0)?;
    Ok(Some(OutputFile { file, path: path.to_owned(), len: Some(0) }))
}

/// Opens a pipe or a device. A pipe has one writer as well; it gets no other name, because its
/// reader would not know.
fn open_special(path: &Path) -> io::Result<OutputFile> {
    let file = OpenOptions::new().write(true).open(path)?;
    if file.metadata()?.file_type().is_fifo() {
        file.try_lock().map_err(|e| match e {
            TryLockError::WouldBlock => {
                io::Error::new(io::ErrorKind::ResourceBusy, "another device writes to this pipe")
            }
            TryLockError::Error(e) => e,
        })?;
    }
    Ok(OutputFile { file, path: path.to_owned(), len: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_stands_before_the_extension() {
        let name = |path: &str, number| numbered(Path::new(path), number).display().to_string();
        assert_eq!(name("/a.b/run.pcapng", 1), "/a.b/run.pcapng");
        assert_eq!(name("/a.b/run.pcapng", 2), "/a.b/run-2.pcapng");
        assert_eq!(name("/a.b/run", 13), "/a.b/run-13");
        assert_eq!(name("run.d.pcapng", 3), "run.d-3.pcapng");
    }
}
