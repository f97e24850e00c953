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
struct RecordMeta {
    meta: RxMeta,
    /// Length of every packet but the last.
    stride: u32,
    /// What the packets are like.
    kind: Kind,
}

/// What is in a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Kind {
    /// Packets without ICRC.
    Bare,
    /// Packets, each of which ends with its ICRC.
    Sealed,
    /// The headers of a run of packets whose payload is elsewhere.
    Lent,
}

impl RecordMeta {
    #[inline]
    fn write(&self, out: &mut [u8; META]) {
        let RxMeta { src, dst, udp_sport, traffic_class, hop_limit, ecn, framing } = self.meta;
        *out = [0; META];
        out[..16].copy_from_slice(&src.0);
        out[16..32].copy_from_slice(&dst.0);
        out[32..36].copy_from_slice(&self.stride.to_ne_bytes());
        out[36..38].copy_from_slice(&udp_sport.to_ne_bytes());
        out[38..42].copy_from_slice(&[traffic_class, hop_limit, ecn as u8, framing as u8]);
        out[42] = self.kind as u8;
    }

    #[inline]
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
        let kind = [Kind::Bare, Kind::Sealed, Kind::Lent]
            .into_iter()
            .find(|kind| *kind as u8 == bytes[42])?;
        Some(Self { meta, stride, kind })
    }
}

/// Length of the record of a train.
#[inline]
pub(super) fn len_of(train: &Train, has_icrc: bool) -> usize {
    let icrcs = if has_icrc { train.count as usize * ICRC_LEN } else { 0 };
    META + train.total_len() + icrcs
}

/// Writes the record of a train, with an ICRC for each packet if there is a sealer; `out` has the
/// length that [`len_of`] says.
#[inline]
pub(super) fn write_train(
    train: &Train,
    meta: RxMeta,
    sealer: Option<&mut Sealer>,
    out: &mut [u8],
) {
    let Some((head, packets)) = out.split_first_chunk_mut() else { return };
    let (kind, trailer) = if sealer.is_some() { (Kind::Sealed, ICRC_LEN) } else { (Kind::Bare, 0) };
    let stride = (train.packet_len(0) + trailer) as u32;
    RecordMeta { meta, stride, kind }.write(head);
    match sealer {
        Some(sealer) => {
            sealer.emit_all(train, meta.udp_sport, packets);
        }
        None => {
            let mut at = 0;
            for i in 0..train.count {
                at += train.emit(i, &mut packets[at..]);
            }
        }
    }
}

/// Writes the record of packets that came from the wire; `out` is [`META`] bytes longer than they.
pub(super) fn write_received(train: &RxTrain<'_>, out: &mut [u8]) {
    let Some((head, packets)) = out.split_first_chunk_mut() else { return };
    let stride = u32::try_from(train.stride).unwrap_or(u32::MAX);
    RecordMeta { meta: train.meta, stride, kind: Kind::Sealed }.write(head);
    packets.copy_from_slice(train.bytes);
}

/// Writes the beginning of the record of a loan.
pub(super) fn write_lent_meta(meta: RxMeta, header_len: usize, out: &mut [u8; META]) {
    RecordMeta { meta, stride: header_len as u32, kind: Kind::Lent }.write(out);
}

/// What a record holds.
#[derive(Debug)]
pub(super) enum Content<'a> {
    /// Packets, and whether they have an ICRC that nobody has looked at.
    Packets(RxTrain<'a>, bool),
    /// A loan, from its terms on.
    Lent(RxMeta, &'a [u8]),
}

/// Reads a record; `None` if it is none.
#[inline]
pub(super) fn read(record: &[u8]) -> Option<Content<'_>> {
    let (head, bytes) = record.split_first_chunk()?;
    let RecordMeta { meta, stride, kind } = RecordMeta::read(head)?;
    if kind == Kind::Lent {
        return Some(Content::Lent(meta, bytes));
    }
    let stride = usize::try_from(stride).ok().filter(|&stride| stride > ICRC_LEN)?;
    let train = RxTrain { meta, bytes, stride, trailer: 0, lent: None };
    (!bytes.is_empty()).then_some(Content::Packets(train, kind == Kind::Sealed))
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
        let train = RxTrain { meta, bytes: &[7; 100], stride: 40, trailer: 0, lent: None };
        let mut record = [0; META + 100];
        write_received(&train, &mut record);
        let Some(Content::Packets(got, true)) = read(&record) else { panic!("sealed packets") };
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
