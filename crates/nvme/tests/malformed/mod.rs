//! Messages that are almost right, by the million: nothing panics, nothing grows, and each command
//! gets a status that has a name.
//!
//! `cargo xtask disks --capsules N` runs more of it than a test does.

mod mutate;
mod queues;

use std::collections::BTreeMap;
use std::sync::Arc;

use feroce_nvme::controller::{Answer, Controller, EVENTS, Identity, TRANSFER, disk_command};
use feroce_nvme::wire::{
    CmReject, CmReply, CmRequest, Command, Completion, ConnectData, DataRange, DiscoveryLog,
    IdentifyController, IdentifyNamespace, Status, fabrics,
};
use feroce_nvme::{MemoryNamespace, Namespace as _, Subsystem};

use crate::together::nqn;
use mutate::{BLOCKS, Memory, Random, admin_capsule, answer, connect, damage, io_capsule};

/// How many messages.
const COUNT: &str = "FEROCE_TEST_CAPSULES";

/// Bytes that the process may grow by, after a tenth of the messages.
const GROWTH: u64 = 8 << 20;

/// The number that the environment says.
fn asked() -> Option<u64> {
    std::env::var(COUNT).ok().map(|text| text.parse().expect("a number"))
}

/// How commands ended, by status.
#[derive(Default, Debug)]
struct Counts(BTreeMap<&'static str, u64>);

impl Counts {
    fn add(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    fn status(&mut self, status: Status) {
        assert_ne!(status.name(), "unknown status", "{:#x}", status.0);
        self.add(status.name());
    }
}

/// Bytes of this process in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}

const MEMORY: Memory = Memory { addr: 0x1000, key: 0x1234, len: 65536 };

#[test]
fn controllers_answer_every_capsule_with_a_status() {
    let count = asked().unwrap_or(30_000);
    let disk = MemoryNamespace::new(BLOCKS as usize);
    let subsystem = || {
        let disks = Subsystem::new(nqn("malformed")).disk(MemoryNamespace::new(BLOCKS as usize));
        Identity::Disks(Arc::new(disks))
    };
    let at = "127.0.0.1:4420".parse().expect("an address");
    let discovery = || Identity::Discovery { subsystems: vec![nqn("malformed")], at };
    let new = |identity| Controller::new(1, identity, nqn("host"), [7; 16]);
    let mut controllers = [new(subsystem()), new(discovery())];
    let mut enable = Command::fabrics(fabrics::PROPERTY_SET);
    (enable.cdw[1], enable.cdw[2]) = (0x14, 1);
    let (mut counts, mut random) = (Counts::default(), Random::new(1));
    let mut before = 0;
    for number in 0..count {
        if number == count / 10 {
            before = resident();
        }
        let is_admin = random.below(2) == 0;
        let make = if is_admin { admin_capsule } else { io_capsule };
        let mut capsule = make(&mut random, MEMORY);
        damage(&mut random, &mut capsule, 64 + 4096);
        let Some(command) = Command::parse(&capsule) else {
            counts.add("shorter than a command");
            continue;
        };
        let _ = command.sgl.kind();
        let controller = &mut controllers[random.below(2)];
        if is_admin {
            controller.handle(&enable);
            match controller.handle(&command) {
                Answer::Done(status, _) => counts.status(status),
                Answer::Data(data) => {
                    assert!(data.len() <= TRANSFER);
                    counts.add("success, with data");
                }
                Answer::Held => counts.add("held"),
                Answer::Aborts(_) => counts.add("success, and a held command aborted"),
            }
        } else {
            match disk_command(&command, &disk) {
                Ok(found) => {
                    assert!(found.lba + found.blocks <= disk.blocks() && found.len <= TRANSFER);
                    counts.add("to be executed by a disk");
                }
                Err(status) => counts.status(status),
            }
        }
        if let Some(data) = capsule.get(64..).and_then(ConnectData::parse) {
            let queue = random.next() as u16;
            let refused = controller.connect_queue(queue, &data).err();
            counts.status(refused.unwrap_or_default());
            controller.disconnect_queue(queue);
        }
    }
    let growth = resident().saturating_sub(before);
    eprintln!("{count} capsules, {growth} bytes more: {:#?}", counts.0);
    let count_of = |what| counts.0.get(what).copied().unwrap_or(0);
    let aborted = count_of("success, and a held command aborted");
    assert!(count_of("held") <= 2 * EVENTS as u64 + aborted);
    if asked().is_some() {
        assert!(growth < GROWTH, "{growth} bytes more");
    }
}

#[test]
fn hosts_parse_every_answer() {
    let count = asked().unwrap_or(30_000);
    let mut random = Random::new(2);
    let mut before = 0;
    for number in 0..count {
        if number == count / 10 {
            before = resident();
        }
        let (command, data) = match random.below(3) {
            0 => connect(1, 1),
            _ => {
                let capsule = admin_capsule(&mut random, MEMORY);
                (Command::parse(&capsule).expect("a command"), capsule)
            }
        };
        let (completion, answered) = answer(&command);
        let mut bytes = completion.emit().to_vec();
        damage(&mut random, &mut bytes, 64);
        if let Some(parsed) = Completion::parse(&bytes) {
            assert_eq!(Completion::parse(&parsed.emit()), Some(parsed));
        }
        let mut bytes = answered.unwrap_or(data);
        damage(&mut random, &mut bytes, 8192);
        IdentifyController::parse(&bytes).emit();
        let namespace = IdentifyNamespace::parse(&bytes);
        assert_eq!(IdentifyNamespace::parse(&namespace.emit()), namespace);
        assert!(DiscoveryLog::parse(&bytes).entries.len() <= bytes.len() / 1024);
        assert_eq!(DataRange::parse_all(&bytes).count(), bytes.len() / 16);
        let _ = (CmReply::parse(&bytes), CmReject::parse(&bytes), CmRequest::parse(&bytes));
    }
    let growth = resident().saturating_sub(before);
    eprintln!("{count} answers, {growth} bytes more");
    if asked().is_some() {
        assert!(growth < GROWTH, "{growth} bytes more");
    }
}
