//! On which processor the thread of a shard runs.

use std::io;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The calling thread.
const SELF: Pid = Pid::from_raw(0);

/// While this lives, the calling thread runs on the processor of a shard. A thread that it starts
/// inherits that. Then it runs again where it ran before.
#[derive(Debug)]
pub(super) struct Placed {
    before: Option<CpuSet>,
}

impl Placed {
    /// Shards have the processors in turn. Where there are none, the kernel chooses.
    pub(super) fn at(processors: &[u16], shard: u8) -> io::Result<Self> {
        let turn = usize::from(shard).checked_rem(processors.len());
        let Some(&processor) = turn.and_then(|turn| processors.get(turn)) else {
            return Ok(Self { before: None });
        };
        let before = sched_getaffinity(SELF)?;
        let mut there = CpuSet::new();
        let set = there.set(processor.into()).and_then(|()| sched_setaffinity(SELF, &there));
        set.map_err(|e| {
            let text = format!(
                "`affinity`: this process may not run on processor {processor} ({}): `nproc` and \
                 `taskset -p $$` show where it may",
                e.desc()
            );
            io::Error::new(io::Error::from(e).kind(), text)
        })?;
        Ok(Self { before: Some(before) })
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // It was allowed before.
            let _ = sched_setaffinity(SELF, before);
        }
    }
}
