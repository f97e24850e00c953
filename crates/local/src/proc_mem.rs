//! Ordinary memory of another process, which the kernel reads and writes for this one.
//!
//! The kernel lets a process write to the memory of another process of the same user through a file
//! (`/proc/<pid>/mem`). The open file stays with the address space it was opened for: if the
//! process ends, runs another program, or its process id goes to another process, nothing can be
//! written any more.
//!
//! A process that lets a peer write must be able to revoke that right, even if the peer is stopped
//! after it has checked the right and before it writes. So the pieces that the kernel is told to
//! write are described in shared memory, as an [`Aim`]: the kernel reads them when the peer calls
//! it, and the process that revokes the right clears them. A system call that has begun ends before
//! its thread can be stopped.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use feroce_mem::{Landing, Region, Source};

use super::peer_process::PeerProcess;
use crate::sys;

/// Bytes that the kernel stores after all others, with one store if they are one word.
const LAST: usize = 8;

/// What a process is about to write to another: two pieces of its own memory, the address and the
/// length of each, in the layout of `struct iovec`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Aim([[AtomicU64; 2]; 2]);

impl Aim {
    /// Describes `len` bytes at `base`; if there are more than [`LAST`], the last ones are the
    /// second piece.
    fn set(&self, base: u64, len: usize) {
        let first = if len > LAST { len - LAST } else { len } as u64;
        for (piece, (at, len)) in self.0.iter().zip([(0, first), (first, len as u64 - first)]) {
            piece[0].store(base + at, Ordering::Relaxed);
            // Usually the piece is as long as the one before.
            if piece[1].load(Ordering::Relaxed) != len {
                // Ordered before the check of the right that follows: if that check still succeeds,
                // a process that revokes the right clears this later.
                piece[1].store(len, Ordering::SeqCst);
            }
        }
    }

    /// Clears the lengths, so that a process that is stopped before its system call writes nothing.
    pub(super) fn clear(&self) {
        self.0.iter().for_each(|piece| piece[1].store(0, Ordering::SeqCst));
    }
}

/// The memory of another process.
#[derive(Debug)]
pub(super) struct ProcMem {
    file: File,
    /// The bytes to be written, in one piece.
    staged: Arc<Region>,
}

impl ProcMem {
    /// Longest message that is written this way: the kernel copies the bytes twice.
    pub(super) const MOST: usize = 4096;

    /// Opens the memory of a process. `None`: this process may not access it, or it is not the
    /// process that is meant.
    pub(super) fn open(process: &PeerProcess) -> Option<Self> {
        let path = format!("/proc/{}/mem", process.pid);
        let file = File::options().read(true).write(true).open(path).ok()?;
        let (at, says) = process.witness;
        let mut word = [0; 8];
        file.read_exact_at(&mut word, at).ok()?;
        let staged = Region::alloc(Self::MOST).ok()?;
        (u64::from_ne_bytes(word) == says).then_some(Self { file, staged })
    }

    /// Writes the first `len` bytes of a source to `at`, unless `may` returns false at the last
    /// moment, or the owner of the memory clears the aim after that.
    pub(super) fn write(
        &self,
        at: u64,
        (len, source): (usize, &dyn Source),
        aim: &Aim,
        may: impl FnOnce() -> bool,
    ) -> bool {
        if self.staged.write_from(0, len, source, 0).is_err() {
            return false;
        }
        aim.set(self.staged.addr(), len);
        may() && sys::write_pieces(&self.file, &aim.0, at) == Some(len)
    }

    /// Fills a landing with the bytes at `at`.
    pub(super) fn read(&self, at: u64, landing: &mut Landing<'_>) -> bool {
        sys::read_into(&self.file, landing, at)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[derive(Debug)]
    struct Bytes<'a>(&'a [u8]);

    impl Source for Bytes<'_> {
        fn fetch(&self, offset: usize, landing: &mut Landing<'_>) -> bool {
            landing.put(&self.0[offset..]);
            true
        }
    }

    fn aim() -> Aim {
        Aim(std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))))
    }

    fn process(pid: u32, at: u64, says: u64) -> PeerProcess {
        PeerProcess { pid, witness: (at, says), guard: None }
    }

    #[test]
    fn whoever_is_stopped_before_it_writes_can_be_kept_from_it() {
        let (target, witness) = (Region::alloc(64).unwrap(), Box::new(77_u64));
        let at = std::ptr::from_ref(&*witness).addr() as u64;
        assert!(ProcMem::open(&process(std::process::id(), at, 78)).is_none(), "another process");
        let memory = ProcMem::open(&process(std::process::id(), at, 77)).unwrap();
        let (aim, source) = (aim(), Bytes(&[0x11; 64]));
        let is_empty = || {
            let mut bytes = [0; 64];
            target.read_at(0, &mut bytes).unwrap();
            bytes == [0; 64]
        };
        for len in [1, 8, 9, 64] {
            let write =
                |may: &dyn Fn() -> bool| memory.write(target.addr(), (len, &source), &aim, may);
            assert!(!write(&|| false) && is_empty());
            // It may write, and is stopped; then the owner of the memory clears its aim, and it
            // continues.
            let is_stopped = || {
                aim.clear();
                true
            };
            assert!(!write(&is_stopped) && is_empty());
            assert!(write(&|| true) && !is_empty());
            target.write_at(0, &[0; 64]).unwrap();
        }
    }

    /// The same process id and addresses, but another program, which must not be written to with
    /// what peers knew of the first one.
    #[test]
    fn a_process_that_runs_another_program_is_not_written_to() {
        let mut child = Command::new("setarch")
            .args(["-R", "sh", "-c", "echo; read _; exec sh -c 'echo; read _'"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut hear = || std::io::Read::read_exact(&mut output, &mut [0]).unwrap();
        hear();
        let file = |name: &str| format!("/proc/{}/{name}", child.id());
        let stack = || {
            let maps = std::fs::read_to_string(file("maps")).unwrap();
            let line = maps.lines().find(|line| line.ends_with("[stack]")).unwrap();
            let end = line.split(['-', ' ']).nth(1).unwrap();
            u64::from_str_radix(end, 16).unwrap() - 8
        };
        let at = stack();
        let word = || {
            let mut word = [0; 8];
            File::open(file("mem")).unwrap().read_exact_at(&mut word, at).unwrap();
            u64::from_ne_bytes(word)
        };
        let memory = ProcMem::open(&process(child.id(), at, word())).unwrap();
        let (aim, source) = (aim(), Bytes(&[0x11; 8]));
        assert!(memory.write(at, (8, &source), &aim, || true));
        assert_eq!(word(), 0x1111_1111_1111_1111);
        input.write_all(b"\n").unwrap();
        hear();
        assert_eq!(stack(), at, "its stack is where it was");
        assert!(!memory.write(at, (8, &source), &aim, || true));
        let target = Region::alloc(8).unwrap();
        assert!(target.write_from(0, 8, &At(&memory, at), 0).is_err());
        assert_ne!(word(), 0x1111_1111_1111_1111);
        input.write_all(b"\n").unwrap();
        assert!(child.wait().unwrap().success());
    }

    #[derive(Debug)]
    struct At<'a>(&'a ProcMem, u64);

    impl Source for At<'_> {
        fn fetch(&self, _: usize, landing: &mut Landing<'_>) -> bool {
            self.0.read(self.1, landing)
        }
    }
}
