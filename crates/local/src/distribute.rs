//! Packets that arrived from the wire, divided among the processes of the host.

use feroce_link::part;
use feroce_train::{Framing, Instant, RxTrain};

use crate::peers::{Named, Peers, Pushed};
use crate::{Counters, record};

/// Divides packets that arrived together into runs for the same recipient, and passes each run.
/// Both functions are called with `context`.
pub(crate) fn split<C, T: Copy + PartialEq>(
    train: &RxTrain<'_>,
    context: &mut C,
    recipient: impl Fn(&C, &[u8]) -> T,
    mut pass: impl FnMut(&mut C, &RxTrain<'_>, T),
) {
    let mut run = 0..0;
    let mut run_is_for = None;
    for packet in train.bytes.chunks(train.stride.max(1)) {
        let to = recipient(context, packet);
        if let Some(other) = run_is_for.filter(|other| *other != to) {
            pass(context, &part(train, run.clone()), other);
            run.start = run.end;
        }
        run_is_for = Some(to);
        run.end += packet.len();
    }
    if let Some(to) = run_is_for {
        pass(context, &part(train, run), to);
    }
}

/// Delivers packets from the wire: those of other processes to these, the rest to `sink`. Packets
/// that arrived together may belong to several processes, and a packet to all of them.
pub(crate) fn distribute(
    now: Instant,
    train: &RxTrain<'_>,
    peers: &mut Peers,
    counters: &mut Counters,
    sink: &mut dyn FnMut(&RxTrain<'_>),
) {
    let dst = train.meta.dst.gid;
    if train.meta.framing == Framing::RoceV1 {
        return keep_own(train, peers, sink);
    }
    if !peers.shares(dst) {
        return sink(train);
    }
    let recipient = |peers: &Peers, packet: &[u8]| match peers.named_by(dst, packet) {
        Named::Slot(slot) if slot == peers.own_slot() => Named::Unnamed,
        named => named,
    };
    let mut forward = |peers: &mut Peers, part: &RxTrain<'_>, slot| {
        let len = record::META + part.bytes.len();
        let write = |out: &mut [u8]| record::write_received(part, out);
        match peers.push(now, slot, len, write) {
            Pushed::Done => counters.forwarded += 1,
            Pushed::Full | Pushed::Lost | Pushed::NoRing => counters.forward_lost += 1,
        }
    };
    split(train, peers, recipient, |peers, part, named| match named {
        Named::Slot(slot) => forward(peers, part, slot),
        Named::Unnamed => sink(part),
        Named::All => {
            for slot in peers.others_at(dst) {
                forward(peers, part, slot);
            }
            sink(part);
        }
    });
}

/// Delivers what is for this process of packets that every process of the host has received by
/// itself (RoCEv1). What names no process is for the port owner of the address, so that it gets one
/// answer; if portd receives there, it gets none, since processes of other users may have it.
fn keep_own(train: &RxTrain<'_>, peers: &mut Peers, sink: &mut dyn FnMut(&RxTrain<'_>)) {
    let dst = train.meta.dst.gid;
    if !peers.shares(dst) && !peers.is_leased(dst) {
        return sink(train);
    }
    let is_ours = |peers: &Peers, packet: &[u8]| match peers.named_by(dst, packet) {
        Named::Slot(slot) => slot == peers.own_slot(),
        Named::All => true,
        Named::Unnamed => !peers.is_leased(dst) && peers.receiver_at(dst).is_none(),
    };
    split(train, peers, is_ours, |_, part, is_ours| {
        if is_ours {
            sink(part);
        }
    });
}
