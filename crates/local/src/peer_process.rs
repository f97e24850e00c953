//! Other processes of the host, as this one knows them.

use super::guard::Guard;
use crate::sys::{self, Extent};

/// A process that sends remote payload, as its peer knows it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerProcess {
    pub(super) pid: u32,
    /// The address of its witness, and the value.
    pub(super) witness: (u64, u64),
    /// Keeps this process alive if the other one truncates a file that is mapped here.
    pub(super) guard: Option<&'static dyn Guard>,
}

impl PeerProcess {
    /// Whether a debugger or a signal has stopped the process, which is each of its threads.
    pub(super) fn is_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid));
        let mut threads = threads.into_iter().flatten().flatten().peekable();
        threads.peek().is_some() && threads.all(|thread| is_stopped(&thread.path()))
    }

    /// Whether this process may read its memory, and it is the process that is meant.
    pub(super) fn is_readable(&self) -> bool {
        let witness = Extent { at: self.witness.0, len: 8, file: None };
        let mut word = [0; 8];
        let read = sys::read_process(self.pid, &[witness], None, &mut word);
        read && u64::from_ne_bytes(word) == self.witness.1
    }
}

/// Whether a thread is stopped; `thread` is its directory in `/proc`.
fn is_stopped(thread: &std::path::Path) -> bool {
    let stat = std::fs::read_to_string(thread.join("stat")).unwrap_or_default();
    // The state follows the name in parentheses, which may contain any character.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some('T' | 't'))
}
