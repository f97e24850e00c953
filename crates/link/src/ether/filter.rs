//! Which frames the kernel passes to the socket: a program of its packet filter.
//!
//! The socket hears every frame of its interface, since only so the kernel says which VLAN tag a
//! frame had (a socket for one Ethertype hears it without the tag). The program therefore drops
//! what is not RoCEv1, not of the VLAN, not for this interface, and not for this process.

use feroce_wire::{ROCE_V1_ETHERTYPE, VLAN_ETHERTYPE};
use socket2::SockFilter;

use super::interface::{Interface, Tags};

/// Offset of what the kernel knows of a frame beside its bytes (`SKF_AD_OFF`), and its fields.
const BESIDE: u32 = 0xffff_f000;
const PACKET_TYPE: u32 = BESIDE + 4;
const VLAN_TAG: u32 = BESIDE + 44;
const VLAN_TAG_PRESENT: u32 = BESIDE + 48;
/// A frame that this host sends (`PACKET_OUTGOING`).
const OUTGOING: u32 = 4;

/// Where fields are, in a frame without a VLAN tag. With one, all from the Ethertype on is four
/// bytes further.
const DST: u32 = 0;
const ETHERTYPE: u32 = 12;
const TAG: u32 = 14;
const INNER_ETHERTYPE: u32 = 16;
/// The upper eight bits of the destination queue pair: behind Ethernet header and GRH, in the BTH.
const DEST_QP: u32 = 14 + 40 + 5;

/// Instructions (`linux/bpf_common.h`).
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const LOAD_BYTE_AT_X: u16 = 0x50;
const LOAD_X: u16 = 0x01;
const AND: u16 = 0x54;
const IF_EQUAL: u16 = 0x15;
const IF_ANY_BIT: u16 = 0x45;
const GOTO: u16 = 0x05;
const RETURN: u16 = 0x06;

/// Multicast addresses have this bit in their first byte.
const MULTICAST_BIT: u32 = 1;
/// The identifier in a VLAN tag.
const VID_MASK: u32 = 0x0fff;
/// Number that the destination of a multicast has in place of a queue pair, upper eight bits.
const MULTICAST_QP: u32 = 0xff;

/// Places to jump to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Next,
    Address,
    Type,
    Vlan,
    Compare,
    QueuePair,
    Accept,
    Drop,
}

/// A program under construction: jumps name labels, which stand behind them.
#[derive(Default)]
struct Program {
    code: Vec<(u16, u32, Label, Label)>,
    labels: Vec<(Label, usize)>,
}

impl Program {
    fn op(&mut self, code: u16, k: u32) {
        self.code.push((code, k, Label::Next, Label::Next));
    }

    fn branch(&mut self, code: u16, k: u32, yes: Label, no: Label) {
        self.code.push((code, k, yes, no));
    }

    fn label(&mut self, label: Label) {
        self.labels.push((label, self.code.len()));
    }

    fn finish(self) -> Vec<SockFilter> {
        let distance = |from: usize, label: Label| {
            let at = self.labels.iter().find(|(known, _)| *known == label);
            at.map_or(0, |(_, at)| at.saturating_sub(from + 1))
        };
        let write = |(i, (code, k, yes, no)): (usize, &(u16, u32, Label, Label))| {
            let (yes, no) = (distance(i, *yes), distance(i, *no));
            match *code {
                GOTO => SockFilter::new(GOTO, 0, 0, yes as u32),
                code => SockFilter::new(code, yes as u8, no as u8, *k),
            }
        };
        self.code.iter().enumerate().map(write).collect()
    }
}

/// Passes RoCEv1 frames to an interface and to multicast groups. With `prefix`, only those to queue
/// pairs whose numbers begin with it, and those to queue pair 1 and to groups.
pub(super) fn program(interface: &Interface, prefix: Option<u8>) -> Vec<SockFilter> {
    use Label::{Accept, Address, Compare, Drop, Next, QueuePair, Type, Vlan};
    let mut p = Program::default();
    let [m0, m1, m2, m3, m4, m5] = interface.mac;

    // Of what this host sends, other processes get multicasts.
    p.op(LOAD_BYTE, PACKET_TYPE);
    p.branch(IF_EQUAL, OUTGOING, Next, Address);
    p.op(LOAD_BYTE, DST);
    p.branch(IF_ANY_BIT, MULTICAST_BIT, Next, Drop);

    p.label(Address);
    p.op(LOAD_BYTE, DST);
    p.branch(IF_ANY_BIT, MULTICAST_BIT, Type, Next);
    p.op(LOAD_HALF, DST);
    p.branch(IF_EQUAL, u32::from(u16::from_be_bytes([m0, m1])), Next, Drop);
    p.op(LOAD_WORD, DST + 2);
    p.branch(IF_EQUAL, u32::from_be_bytes([m2, m3, m4, m5]), Type, Drop);

    p.label(Type);
    p.op(LOAD_HALF, ETHERTYPE);
    p.branch(IF_EQUAL, u32::from(ROCE_V1_ETHERTYPE), Vlan, Next);
    // The tag is in the bytes of a frame that this host sends.
    p.branch(IF_EQUAL, u32::from(VLAN_ETHERTYPE), Next, Drop);
    p.op(LOAD_HALF, INNER_ETHERTYPE);
    p.branch(IF_EQUAL, u32::from(ROCE_V1_ETHERTYPE), Next, Drop);
    if let Tags::Own(vid) = interface.tags {
        p.op(LOAD_HALF, TAG);
        p.op(AND, VID_MASK);
        p.branch(IF_EQUAL, vid.into(), Next, Drop);
    }
    p.op(LOAD_X, 4);
    p.branch(GOTO, 0, QueuePair, Next);

    // Otherwise the kernel has taken it out.
    p.label(Vlan);
    if let Tags::Own(vid) = interface.tags {
        p.op(LOAD_BYTE, VLAN_TAG_PRESENT);
        p.branch(IF_EQUAL, 0, Compare, Next);
        p.op(LOAD_HALF, VLAN_TAG);
        p.op(AND, VID_MASK);
        // A frame without a tag gets here with zero.
        p.label(Compare);
        p.branch(IF_EQUAL, vid.into(), Next, Drop);
    }
    p.op(LOAD_X, 0);

    p.label(QueuePair);
    if let Some(prefix) = prefix {
        p.op(LOAD_BYTE_AT_X, DEST_QP);
        p.branch(IF_EQUAL, prefix.into(), Accept, Next);
        p.branch(IF_EQUAL, 0, Accept, Next);
        p.branch(IF_EQUAL, MULTICAST_QP, Accept, Drop);
    }
    p.label(Accept);
    p.op(RETURN, u32::MAX);
    p.label(Drop);
    p.op(RETURN, 0);
    p.finish()
}
