//! A train as a record in a ring: what a link knows of it, then its packets.

use feroce_train::{Ecn, Framing, RxMeta, RxTrain, Train};
use feroce_wire::Gid;

use crate::icrc::{ICRC_LEN, Sealer};

/// Bytes in front of the packets.
pub(super) const META: usize = 48;

/// The longest record: packets of a whole UDP datagram.
pub(super) const MAX_RECORD: usize = META + 66_000;

/// What a link knows of the packets in a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RecordMeta {
    pub(super) meta: RxMeta,
    /// Length of every packet but the last, ICRC included.
    pub(super) stride: u32,
}

impl RecordMeta {
    fn write(&self, out: &mut [u8; META]) {
        let RxMeta { src, dst, udp_sport, traffic_class, hop_limit, ecn, framing } = self.meta;
        *out = [0; META];
        out[..16].copy_from_slice(&src.0);
        out[16..32].copy_from_slice(&dst.0);
        out[32..36].copy_from_slice(&self.stride.to_ne_bytes());
        out[36..38].copy_from_slice(&udp_sport.to_ne_bytes());
        out[38..42].copy_from_slice(&[traffic_class, hop_limit, ecn as u8, framing as u8]);
    }

    fn read(bytes: &[u8; META]) -> Option<Self> {
        let gid = |at: usize| Some(Gid(*bytes[at..].first_chunk()?));
        let meta = RxMeta {
            src: gid(0)?,
            dst: gid(16)?,
            udp_sport: u16::from_ne_bytes([bytes[36], bytes[37]]),
            traffic_class: bytes[38],
            hop_limit: bytes[39],
            ecn: [Ecn::NotCapable, Ecn::Capable, Ecn::Congested]
                .into_iter()
                .find(|ecn| *ecn as u8 == bytes[40])?,
            framing: [Framing::RoceV2, Framing::RoceV1, Framing::InfiniBand]
                .into_iter()
                .find(|framing| *framing as u8 == bytes[41])?,
        };
        let stride = u32::from_ne_bytes(*bytes[32..].first_chunk()?);
        Some(Self { meta, stride })
    }
}

/// Length of the record of a train.
pub(super) fn len_of(train: &Train) -> usize {
    META + train.total_len() + train.count as usize * ICRC_LEN
}

/// Writes the record of a train; `out` has the length that [`len_of`] says.
pub(super) fn write_train(train: &Train, meta: RxMeta, sealer: &mut Sealer, out: &mut [u8]) {
    let Some((head, packets)) = out.split_first_chunk_mut() else { return };
    let stride = (train.packet_len(0) + ICRC_LEN) as u32;
    RecordMeta { meta, stride }.write(head);
    sealer.emit_all(train, meta.udp_sport, packets);
}

/// Writes the record of packets that came from the wire; `out` is [`META`] bytes longer than they.
pub(super) fn write_received(train: &RxTrain<'_>, out: &mut [u8]) {
    let Some((head, packets)) = out.split_first_chunk_mut() else { return };
    let stride = u32::try_from(train.stride).unwrap_or(u32::MAX);
    RecordMeta { meta: train.meta, stride }.write(head);
    packets.copy_from_slice(train.bytes);
}

/// Reads a record; `None` if it is none.
pub(super) fn read(record: &[u8]) -> Option<RxTrain<'_>> {
    let (head, bytes) = record.split_first_chunk()?;
    let RecordMeta { meta, stride } = RecordMeta::read(head)?;
    let stride = usize::try_from(stride).ok().filter(|&stride| stride > ICRC_LEN)?;
    (!bytes.is_empty()).then_some(RxTrain { meta, bytes, stride, trailer: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_packets_survives() {
        let meta = RxMeta {
            src: Gid([1; 16]),
            dst: Gid([2; 16]),
            udp_sport: 0xc0de,
            traffic_class: 0x68,
            hop_limit: 64,
            ecn: Ecn::Congested,
            framing: Framing::RoceV2,
        };
        let train = RxTrain { meta, bytes: &[7; 100], stride: 40, trailer: 0 };
        let mut record = [0; META + 100];
        write_received(&train, &mut record);
        let got = read(&record).expect("a record");
        assert_eq!((got.meta, got.bytes, got.stride, got.trailer), (meta, train.bytes, 40, 0));
    }

    #[test]
    fn what_is_no_record_is_none() {
        assert!(read(&[]).is_none());
        assert!(read(&[0; META]).is_none());
        let mut record = [0; META + 20];
        assert!(read(&record).is_none(), "no stride");
        record[32] = 20;
        assert!(read(&record).is_some());
        record[40] = 3;
        assert!(read(&record).is_none(), "no such code point");
        (record[40], record[41]) = (0, 9);
        assert!(read(&record).is_none(), "no such framing");
    }
}
