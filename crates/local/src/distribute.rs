//! Packets that arrived from the wire, divided among the processes of the host.

use feroce_link::part;
use feroce_train::{Instant, RxTrain};

use crate::peers::{Named, Peers, Pushed};
use crate::{Counters, record};

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
    if !peers.shares(dst) {
        return sink(train);
    }
    let mut run = 0..0;
    let mut run_is_for = None;
    let mut pass = |bytes: std::ops::Range<usize>, slot, peers: &mut Peers| {
        let part = part(train, bytes);
        match slot {
            _ if part.bytes.is_empty() => {}
            None => sink(&part),
            Some(slot) => {
                let len = record::META + part.bytes.len();
                let write = |out: &mut [u8]| record::write_received(&part, out);
                match peers.push(now, slot, len, write) {
                    Pushed::Done => counters.forwarded += 1,
                    Pushed::Full | Pushed::Lost | Pushed::NoRing => counters.forward_lost += 1,
                }
            }
        }
    };
    let me = peers.own_slot();
    for packet in train.bytes.chunks(train.stride.max(1)) {
        let slot = match peers.named_by(dst, packet) {
            Named::Slot(slot) => Some(slot).filter(|slot| *slot != me),
            Named::Unnamed => None,
            Named::All => {
                for slot in peers.others_at(dst) {
                    pass(run.end..run.end + packet.len(), Some(slot), peers);
                }
                None
            }
        };
        if slot != run_is_for {
            pass(run.clone(), run_is_for, peers);
            (run, run_is_for) = (run.end..run.end, slot);
        }
        run.end += packet.len();
    }
    pass(run, run_is_for, peers);
}
