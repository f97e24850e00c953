//! Programs of the swarm, written down for adapters that are not simulated.
//!
//! The text has everything that two ends need, as words and numbers that C reads easily:
//!
//! ```text
//! flows F
//! node N                       and what it has:
//!   bytes LEN HEX              its memory in the beginning
//!   regions M                  registrations: offset, length, rights as in `ibv_access_flags`
//!     AT LEN ACCESS
//!   flow PMTU RECEIVES SENDS READS   one for each flow
//!     recv PIECES              and as many pieces: registration, offset, length
//!       MR AT LEN
//!     send OPCODE FLAGS IMM REMOTE_MR REMOTE_AT FIRST SECOND PIECES
//!       MR AT LEN
//!     inline … LEN HEX         the same, with bytes instead of pieces
//! memory HASH HASH             what both have in memory in the end (FNV-1a)
//! ```
//!
//! Opcodes and flags are those of the verbs. Everything succeeds, and completes in order.

use core::fmt::{Display, Write as _};

use feroce_engine::{Data, Remote, SendFlags, SendOp, Sge};
use feroce_mem::Access;
use feroce_testkit::Mr;

use crate::swarm::flow::End;
use crate::swarm::node::Node;
use crate::swarm::step::Step;
use crate::swarm::world::World;
use crate::swarm::{Failure, Options, run};

/// The program of a seed, which has run here first.
pub fn program(seed: u64) -> Result<String, Box<Failure>> {
    let options =
        Options { portable: true, predictable: true, no_faults: true, ..Options::default() };
    run(seed, &options)?;
    let mut world = World::new(seed, &options);
    let mut text = Text::default();
    text.line(["flows", &(world.ends.len() / 2).to_string()]);
    for (number, node) in world.nodes.iter().enumerate() {
        text.node(number, node, &world);
    }
    world.run().expect("what went well a moment ago goes well again");
    text.0 += "memory ";
    text.line(world.nodes.iter().map(|node| format!("{:016x}", hash(node))));
    Ok(text.0)
}

/// Of all that a node has in memory.
fn hash(node: &Node) -> u64 {
    let bytes = node.memory.real(0, node.memory.region.len());
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn line<T: Display>(&mut self, words: impl IntoIterator<Item = T>) {
        for word in words {
            write!(self.0, "{word} ").unwrap_or_default();
        }
        self.0.push('\n');
    }

    fn hex(&mut self, bytes: &[u8]) {
        for byte in bytes {
            write!(self.0, "{byte:02x}").unwrap_or_default();
        }
        self.0.push('\n');
    }

    fn node(&mut self, number: usize, node: &Node, world: &World) {
        let len = node.memory.region.len();
        self.line(["node".to_owned(), number.to_string()]);
        write!(self.0, "bytes {len} ").unwrap_or_default();
        self.hex(&node.memory.real(0, len));
        self.line(["regions".to_owned(), node.mrs.len().to_string()]);
        for mr in &node.mrs {
            self.line([mr.at, mr.len, rights(mr.access)]);
        }
        for (flow, spec) in world.ends.chunks(2).zip(&world.specs) {
            let side = usize::from(flow[0].node != number);
            let (end, peer) = (&flow[side], &flow[side ^ 1]);
            let reads = usize::from(end.rd_atomic);
            self.0 += "flow ";
            self.line([spec.pmtu.bytes(), end.recvs.len(), end.steps.len(), reads]);
            self.flow(end, &node.mrs, &world.nodes[peer.node].mrs);
        }
    }

    fn flow(&mut self, end: &End, own: &[Mr], peers: &[Mr]) {
        for recv in &end.recvs {
            let sges = recv.wr.sges.as_slice();
            self.line(["recv".to_owned(), sges.len().to_string()]);
            self.pieces(sges, own);
        }
        for (i, step) in end.steps.iter().enumerate() {
            // The last step is signalled, so that the program sees the end of the run.
            let is_last = i + 1 == end.steps.len();
            let signaled = is_last || end.sq_sig_all || step.is_signaled();
            self.step(step, signaled, own, peers);
        }
    }

    fn step(&mut self, step: &Step, signaled: bool, own: &[Mr], peers: &[Mr]) {
        let inline = matches!(step.wr.data, Data::Inline(_));
        let Request { opcode, imm, remote, operands } = request(&step.wr.op);
        let at = remote.map(|r| place(peers, r.rkey.0, r.addr)).unwrap_or_default();
        let flags = flags(step.wr.flags, signaled, inline);
        let [first, second] = operands;
        let numbers = [opcode, flags, imm, at.0 as u64, at.1 as u64, first, second];
        self.0 += if inline { "inline " } else { "send " };
        match &step.wr.data {
            Data::Inline(_) => {
                self.line(numbers.into_iter().chain([step.payload.len() as u64]));
                self.hex(&step.payload);
            }
            Data::Sges(sges) => {
                let sges = sges.as_slice();
                self.line(numbers.into_iter().chain([sges.len() as u64]));
                self.pieces(sges, own);
            }
        }
    }

    fn pieces(&mut self, sges: &[Sge], own: &[Mr]) {
        for sge in sges {
            let (mr, at) = place(own, sge.lkey.0, sge.addr);
            self.line([mr, at, sge.len as usize]);
        }
    }
}

/// Which registration a key names, and which offset of the memory an address.
fn place(mrs: &[Mr], key: u32, addr: u64) -> (usize, usize) {
    let found = mrs.iter().enumerate().find(|(_, mr)| mr.key == key);
    found.map_or((0, 0), |(i, mr)| (i, mr.offset(addr)))
}

/// What every adapter knows of them, as `ibv_access_flags`.
fn rights(access: Access) -> usize {
    let known = [
        (Access::LOCAL_WRITE, 1),
        (Access::REMOTE_WRITE, 2),
        (Access::REMOTE_READ, 4),
        (Access::REMOTE_ATOMIC, 8),
    ];
    known.iter().filter(|(right, _)| access.contains(*right)).map(|(_, bit)| bit).sum()
}

/// As `ibv_send_flags`.
fn flags(flags: SendFlags, signaled: bool, inline: bool) -> u64 {
    let set = [
        (flags.contains(SendFlags::FENCE), 1),
        (signaled, 2),
        (flags.contains(SendFlags::SOLICITED), 4),
        (inline, 8),
    ];
    set.iter().filter(|(is_set, _)| *is_set).map(|(_, bit)| bit).sum()
}

/// A request in the numbers of the verbs.
#[derive(Default)]
struct Request {
    /// As `ibv_wr_opcode`.
    opcode: u64,
    imm: u64,
    remote: Option<Remote>,
    /// Of atomics: what is compared or added, and what is put in its place.
    operands: [u64; 2],
}

fn request(op: &SendOp) -> Request {
    let (opcode, imm, remote, operands) = match *op {
        SendOp::Write(remote) => (0, 0, Some(remote), [0; 2]),
        SendOp::WriteImm(remote, imm) => (1, imm.0, Some(remote), [0; 2]),
        SendOp::Send => (2, 0, None, [0; 2]),
        SendOp::SendImm(imm) => (3, imm.0, None, [0; 2]),
        SendOp::Read(remote) => (4, 0, Some(remote), [0; 2]),
        SendOp::CmpSwap { remote, compare, swap } => (5, 0, Some(remote), [compare, swap]),
        SendOp::FetchAdd { remote, add } => (6, 0, Some(remote), [add, 0]),
        _ => unreachable!("nothing else is drawn for adapters that are not simulated"),
    };
    Request { opcode, imm: imm.into(), remote, operands }
}
