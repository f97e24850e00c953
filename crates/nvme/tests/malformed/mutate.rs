//! Capsules, completions and data that are almost right.

use feroce_nvme::wire::{
    Command, Completion, ConnectData, DataRange, IdentifyController, IdentifyNamespace, LogPage,
    Rw, Sgl, Status, admin, fabrics, io,
};

use crate::together::nqn;

/// Blocks of the disk.
pub(super) const BLOCKS: u64 = 64;

/// Numbers that look random, always the same for a seed.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.next() as usize % limit
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// Memory of the host that a target may use: address and key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) addr: u64,
    pub(super) key: u32,
    pub(super) len: u32,
}

/// Changes some bytes, or the length.
pub(super) fn damage(random: &mut Random, bytes: &mut Vec<u8>, most: usize) {
    for _ in 0..random.below(4) {
        let len = bytes.len();
        if len == 0 {
            return;
        }
        let at = random.below(len);
        match random.below(12) {
            0..=3 => bytes[at] ^= 1 << random.below(8),
            4..=6 => bytes[at] = random.next() as u8,
            7 | 8 => {
                let word = random.pick(&[0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff_u32]);
                let at = at / 4 * 4;
                let room = 4.min(len - at);
                bytes[at..at + room].copy_from_slice(&word.to_le_bytes()[..room]);
            }
            9 => bytes.truncate(at),
            10 => bytes.resize(most.min(len + random.below(300)), random.next() as u8),
            _ => bytes.iter_mut().for_each(|byte| *byte = random.next() as u8),
        }
    }
}

fn description(random: &mut Random, memory: Memory, len: usize) -> (Sgl, Vec<u8>) {
    if random.below(2) == 0 && len <= 4096 {
        let data: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        return (Sgl::in_capsule(len as u32), data);
    }
    let len = (len as u32).min(memory.len);
    (Sgl::keyed(memory.addr, len, memory.key, random.below(2) == 0), Vec::new())
}

/// A command of an admin queue that makes sense, with its data.
pub(super) fn admin_capsule(random: &mut Random, memory: Memory) -> Vec<u8> {
    let keyed = |len| Sgl::keyed(memory.addr, len, memory.key, false);
    let mut command = Command::new(admin::KEEP_ALIVE);
    let mut data = Vec::new();
    match random.below(9) {
        0 | 1 => {
            let cns = random.below(5) as u32;
            command = Command { nsid: 1, sgl: keyed(4096), ..Command::new(admin::IDENTIFY) };
            command.cdw[0] = cns;
        }
        2 => {
            let id = random.pick(&[1, 2, 3, 5, 0x70]);
            let len = random.pick(&[4_u32, 512, 1024, 4096]);
            let page = LogPage { id, offset: 0, len: len.into() };
            command = Command { sgl: keyed(len), ..Command::new(admin::GET_LOG_PAGE) };
            command = command.with_log_page(page);
        }
        3 => {
            let opcode = random.pick(&[admin::SET_FEATURES, admin::GET_FEATURES]);
            command = Command::new(opcode);
            command.cdw[0] = random.pick(&[7, 0xb, 0xf]);
            command.cdw[1] = random.next() as u32 & 0xf_000f;
        }
        4 => {
            // Few numbers, so that some commands to abort are held ones.
            command = Command::new(random.pick(&[admin::ABORT, admin::ASYNC_EVENT]));
            command.cdw[0] = (random.below(8) as u32) << 16;
            command.cid = random.below(8) as u16;
            return command.emit().to_vec();
        }
        5 => {
            command = Command::fabrics(random.pick(&[
                fabrics::PROPERTY_GET,
                fabrics::PROPERTY_SET,
                fabrics::DISCONNECT,
                fabrics::AUTH_SEND,
                fabrics::AUTH_RECEIVE,
            ]));
            command.cdw[0] = random.pick(&[0, 1]);
            command.cdw[1] = random.pick(&[0, 8, 0x14, 0x1c]);
            command.cdw[2] = random.pick(&[0, 1, 0x46_0001]);
        }
        6 => (command, data) = connect(0, 0xffff),
        _ => {}
    }
    command.cid = random.next() as u16;
    [&command.emit()[..], &data].concat()
}

/// A command of an I/O queue that makes sense, with its data.
pub(super) fn io_capsule(random: &mut Random, memory: Memory) -> Vec<u8> {
    let opcode =
        random.pick(&[io::READ, io::WRITE, io::COMPARE, io::WRITE_ZEROES, io::FLUSH, io::DATASET]);
    let mut command = Command { nsid: 1, ..Command::new(opcode) };
    let blocks = 1 + random.below(16) as u32;
    let lba = random.next() % (BLOCKS - 16);
    let mut data = Vec::new();
    match opcode {
        io::FLUSH => {}
        io::DATASET => {
            let ranges = 1 + random.below(4);
            let range = DataRange { lba, blocks }.emit();
            command.cdw[0] = ranges as u32 - 1;
            command.cdw[1] = 1 << 2;
            data = range.repeat(ranges);
            command.sgl = Sgl::in_capsule(data.len() as u32);
        }
        _ => {
            let rw = Rw { lba, blocks, force_unit_access: random.below(4) == 0 };
            command = command.with_rw(rw);
            (command.sgl, data) = description(random, memory, blocks as usize * 512);
            if opcode == io::WRITE_ZEROES {
                (command.sgl, data) = (Sgl::none(), Vec::new());
            }
        }
    }
    command.cid = random.next() as u16;
    [&command.emit()[..], &data].concat()
}

/// Connect with its data.
pub(super) fn connect(queue: u16, controller: u16) -> (Command, Vec<u8>) {
    let (subsystem, host) = (Some(nqn("malformed")), Some(nqn("host")));
    let data = ConnectData { host_id: [7; 16], controller, subsystem, host }.emit().to_vec();
    let mut command = Command::fabrics(fabrics::CONNECT);
    command.sgl = Sgl::in_capsule(data.len() as u32);
    command.cdw[0] = u32::from(queue) << 16;
    command.cdw[1] = 31;
    (command, data)
}

/// What a target answers to a command that a host sends when it connects.
pub(super) fn answer(command: &Command) -> (Completion, Option<Vec<u8>>) {
    let mut completion = Completion { cid: command.cid, ..Completion::default() };
    let mut data = None;
    match (command.opcode, command.fabrics_type()) {
        (fabrics::OPCODE, fabrics::CONNECT) => completion.result = 1,
        // Ready, and queues of 32 entries: CAP and CSTS differ in their length.
        (fabrics::OPCODE, fabrics::PROPERTY_GET) if command.cdw[0] & 7 == 1 => {
            completion.result = 31;
        }
        (fabrics::OPCODE, fabrics::PROPERTY_GET) => completion.result = 1,
        (admin::IDENTIFY, _) if command.cdw[0] == 1 => {
            let subsystem = nqn("malformed").to_string();
            let identity = IdentifyController { subsystem, ..IdentifyController::new() };
            data = Some(identity.emit());
        }
        (admin::IDENTIFY, _) => {
            let (blocks, block_bits) = (BLOCKS, 9);
            let (guid, read_only, is_shared) = ([1; 16], false, false);
            let identity = IdentifyNamespace { blocks, block_bits, guid, read_only, is_shared };
            data = Some(identity.emit());
        }
        _ => completion.status = Status::SUCCESS,
    }
    (completion, data)
}
