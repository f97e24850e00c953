//! Copies of packets for the commands that capture them.

use std::sync::mpsc::{SyncSender, TrySendError};

use feroce_link::port::{RECORD_LEN, Record};
use feroce_subnet::{MadPacket, PortRef, Seen, Subnet, Way};
use feroce_train::{Framing, PortAddr, RxMeta};
use feroce_wire::mad::MAD_LEN;
use feroce_wire::{Bth, Deth, Gid, IbFrame, Lrh, Op, Opcode, Psn, Service};

use super::data::Passed;
use crate::fabric::pace::monotonic_ns;

/// A command that captures what passes a port.
#[derive(Debug)]
struct Tap {
    at: PortRef,
    packets: SyncSender<Vec<u8>>,
}

/// The commands that capture.
#[derive(Debug, Default)]
pub(super) struct Taps(Vec<Tap>);

impl Taps {
    /// A command wants to see what passes a port.
    pub(super) fn begin(&mut self, subnet: &mut Subnet, at: PortRef, packets: SyncSender<Vec<u8>>) {
        subnet.watch(at, true);
        self.0.push(Tap { at, packets });
    }

    /// Shows the management datagrams that have passed.
    pub(super) fn show(&mut self, subnet: &mut Subnet) {
        while let Some(Seen { at, way, packet }) = subnet.poll_seen() {
            let (meta, bytes) = as_packet(&packet);
            let record = Record { at_ns: monotonic_ns(), meta, stride: bytes.len(), bytes: &bytes };
            self.copy(subnet, at, way, &record);
        }
    }

    /// Shows packets of data that have passed.
    pub(super) fn show_data(&mut self, subnet: &mut Subnet, passed: Vec<Passed>) {
        for passed in passed {
            let record = passed.record();
            for bytes in record.bytes.chunks(record.stride) {
                self.copy(subnet, passed.at, passed.way, &Record { bytes, ..record });
            }
        }
    }

    fn copy(&mut self, subnet: &mut Subnet, at: PortRef, way: Way, record: &Record<'_>) {
        let mut copy = vec![0; 1 + RECORD_LEN];
        copy[0] = u8::from(way == Way::Sent);
        record.emit_head(&mut copy[1..]);
        copy.extend_from_slice(record.bytes);
        self.0.retain(|tap| {
            // A reader that is too slow misses packets.
            let is_gone = tap.at == at
                && matches!(tap.packets.try_send(copy.clone()), Err(TrySendError::Disconnected(_)));
            !is_gone
        });
        if self.0.iter().all(|tap| tap.at != at) {
            subnet.watch(at, false);
        }
    }
}

/// A management datagram as a packet, from BTH to ICRC, and the headers below.
fn as_packet(packet: &MadPacket) -> (RxMeta, Vec<u8>) {
    let mut bytes = vec![0; Bth::LEN + Deth::LEN + MAD_LEN];
    let opcode = Opcode::new(Service::Ud, Op::SendOnly);
    let bth = Bth { pkey: packet.pkey, ..Bth::new(opcode, packet.dst_qpn, Psn::new(0)) };
    let (head, rest) = bytes.split_at_mut(Bth::LEN);
    let (deth, mad) = rest.split_at_mut(Deth::LEN);
    head.first_chunk_mut().into_iter().for_each(|head| bth.emit(head));
    let extended = Deth { qkey: packet.qkey, src_qp: packet.src_qpn };
    deth.first_chunk_mut().into_iter().for_each(|deth| extended.emit(deth));
    mad.copy_from_slice(&packet.mad);
    let (sgid, dgid) = packet.gids.unwrap_or((Gid::ZERO, Gid::ZERO));
    let meta = RxMeta {
        src: PortAddr { gid: sgid, lid: packet.slid },
        dst: PortAddr { gid: dgid, lid: packet.dlid },
        framing: Framing::InfiniBand,
        sl: packet.sl,
        hop_limit: 1,
        ..RxMeta::default()
    };
    let lrh = Lrh { sl: packet.sl, slid: packet.slid, dlid: packet.dlid, ..Lrh::default() };
    // A datagram is shorter than the longest packet, and its length is a multiple of four.
    let icrc = IbFrame::new(lrh, packet.gids, &bytes).map_or(0, |frame| frame.icrc);
    bytes.extend(icrc.to_le_bytes());
    (meta, bytes)
}
