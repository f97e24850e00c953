//! Packets as a link would deliver them, and the packets of a train.

use feroce_train::{RxMeta, RxTrain, Train};
use feroce_wire::{Bth, Op};

/// A packet on the virtual wire, from the BTH to the end of the padding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// What the receiving link knows of it.
    pub meta: RxMeta,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Packet {
    /// The base transport header.
    pub fn bth(&self) -> Bth {
        Bth::parse(&self.bytes).unwrap().0
    }

    /// The operation that the opcode names.
    pub fn op(&self) -> Op {
        self.bth().opcode.decode().unwrap().1
    }

    /// The PSN as a number.
    pub fn psn(&self) -> u32 {
        self.bth().psn.get()
    }

    /// Extension headers and payload: the bytes after the BTH, without padding.
    pub fn rest(&self) -> &[u8] {
        let end = self.bytes.len() - usize::from(self.bth().pad);
        &self.bytes[Bth::LEN..end]
    }

    /// The same packet with its base transport header changed.
    pub fn with_bth(&self, change: impl FnOnce(&mut Bth)) -> Self {
        let mut packet = self.clone();
        let mut bth = self.bth();
        change(&mut bth);
        packet.bytes[..Bth::LEN].copy_from_slice(&header(|out| bth.emit(out)));
        packet
    }
}

/// The packets of a train.
///
/// # Panics
/// If the train breaks a promise that every link relies on: it has at least one packet, packets
/// have the lengths that it declares, and all but the last have equal length.
pub fn packets(train: &Train) -> Vec<Packet> {
    let meta = RxMeta::from(&train.path);
    let longest = train.packet_len(0);
    assert!(train.count >= 1, "an empty train: {train:?}");
    let mut packets = Vec::with_capacity(train.count as usize);
    let mut total = 0;
    for i in 0..train.count {
        let mut bytes = vec![0; train.packet_len(i)];
        let len = train.emit(i, &mut bytes);
        assert_eq!(
            len,
            bytes.len(),
            "packet {i} has another length than its train says: {train:?}"
        );
        let in_shape = len == longest || (i + 1 == train.count && len < longest);
        assert!(in_shape, "packets of a train have equal length: {train:?}");
        total += len;
        packets.push(Packet { meta, bytes });
    }
    assert_eq!(total, train.total_len(), "{train:?}");
    packets
}

/// Joins packets that arrive together into receive trains, as `UDP_GRO` does, and passes each to
/// `receive`: runs of packets of equal length, of which the last may be shorter.
pub fn as_trains(meta: RxMeta, packets: &[Vec<u8>], mut receive: impl FnMut(&RxTrain<'_>)) {
    let mut i = 0;
    while i < packets.len() {
        let stride = packets[i].len();
        let mut bytes = packets[i].clone();
        i += 1;
        while let Some(next) = packets.get(i).filter(|next| next.len() <= stride) {
            bytes.extend_from_slice(next);
            i += 1;
            if next.len() < stride {
                break;
            }
        }
        receive(&RxTrain { meta, bytes: &bytes, stride, trailer: 0, remote: None });
    }
}

/// Any header as bytes.
pub fn header<const N: usize>(emit: impl FnOnce(&mut [u8; N])) -> Vec<u8> {
    let mut bytes = [0; N];
    emit(&mut bytes);
    bytes.to_vec()
}
