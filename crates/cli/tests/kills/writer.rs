//! The host: a process that writes, flushes and reads until it is killed.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use feroce::cm::Manager;
use feroce_nvme::{HostOptions, Multipath, Namespace as _, RemoteNamespace};

use super::blocks::{BLOCK, Random, SLOT_BLOCKS, SLOTS, filled};
use super::journal::{Journal, Line, last_writes, read};

/// Says to this program that it is the host: where the targets are, the journal, the seed, and
/// whether no host before may still be heard by the target.
pub(super) const ROLE: &str = "FEROCE_TEST_DISK_WRITER";

/// Tasks that write at a time; each has its parts of the disk.
const TASKS: u64 = 6;

/// What `ROLE` says.
pub(super) fn role(targets: &[&str], journal: &Path, seed: u64, is_alone: bool) -> String {
    format!("{} {} {seed} {is_alone}", targets.join(","), journal.display())
}

pub(super) fn run(role: &str) {
    let mut words = role.split(' ');
    let mut word = || words.next().expect("a word");
    let targets: Vec<_> = word().split(',').map(|at| at.parse().expect("an address")).collect();
    let path = Path::new(word());
    let seed: u64 = word().parse().expect("a seed");
    let is_alone = word() == "true";
    let journal = Rc::new(Journal::open(path));
    let last = last_writes(&read(path));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    tokio::task::LocalSet::new().block_on(&runtime.expect("a runtime"), async move {
        let nqn = "nqn.2026-11.feroce:disks".parse().expect("a name");
        let patience = Duration::from_secs(600);
        let queues = 1 + seed as u16 % 3;
        let options = HostOptions { patience, queues, ..HostOptions::default() };
        let (host, running) =
            Multipath::new(&Manager::new(), &targets, &nqn, &options, tokio::time::sleep);
        tokio::task::spawn_local(running);
        let disk = host.namespace(1).await;
        let disk = Rc::new(disk.unwrap_or_else(|e| panic!("{e}: {:?}", host.paths())));
        let flushes = Rc::new(Cell::new(seed << 20));
        let tasks: Vec<_> = (0..TASKS)
            .map(|number| {
                let parts = last.iter().filter(|(slot, _)| *slot % TASKS == number);
                let task = Task {
                    disk: Rc::clone(&disk),
                    journal: Rc::clone(&journal),
                    flushes: Rc::clone(&flushes),
                    random: Random::new(seed * TASKS + number),
                    last: parts.map(|(&slot, &last)| (slot, last)).collect(),
                    is_alone,
                };
                tokio::task::spawn_local(task.run())
            })
            .collect();
        for task in tasks {
            task.await.expect("a task");
        }
    });
}

struct Task {
    disk: Rc<RemoteNamespace>,
    journal: Rc<Journal>,
    /// Number of the flush that began last.
    flushes: Rc<Cell<u64>>,
    random: Random,
    /// Parts, with the numbers of their last writes.
    last: BTreeMap<u64, u64>,
    is_alone: bool,
}

impl Task {
    async fn run(mut self) {
        let parts: Vec<u64> = self.last.keys().copied().collect();
        assert_eq!(parts.len() as u64, SLOTS / TASKS, "the parts of a task");
        loop {
            let slot = parts[self.random.below(parts.len() as u64) as usize];
            let first = self.random.below(SLOT_BLOCKS);
            // One block, some that fit in a capsule, and more.
            let most = [1, 8, SLOT_BLOCKS][self.random.below(3) as usize];
            let count = 1 + self.random.below(most.min(SLOT_BLOCKS - first));
            let data = self.write(slot, first, count).await;
            if self.is_alone && self.random.below(4) == 0 {
                let mut found = vec![0; data.len()];
                self.disk.read(slot * SLOT_BLOCKS + first, &mut found).await.expect("read");
                assert_eq!(found.len(), count as usize * BLOCK);
                assert!(found == data, "part {slot}: not what was acknowledged before");
            }
            if self.random.below(4) == 0 {
                self.flush().await;
            }
        }
    }

    async fn write(&mut self, slot: u64, first: u64, count: u64) -> Vec<u8> {
        let seq = self.last[&slot] + 1;
        self.last.insert(slot, seq);
        let data = filled(slot, first, count, seq);
        self.journal.note(Line::Write { slot, seq, first, count });
        self.disk.write(slot * SLOT_BLOCKS + first, &data).await.expect("written");
        self.journal.note(Line::Written { slot, seq });
        data
    }

    async fn flush(&self) {
        let number = self.flushes.get() + 1;
        self.flushes.set(number);
        self.journal.note(Line::Flush(number));
        self.disk.flush().await.expect("flushed");
        self.journal.note(Line::Flushed(number));
    }
}
