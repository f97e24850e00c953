//! A train as a record in a ring: its receive metadata, then its packets.

use feroce_link::{ICRC_LEN, Sealer};
use feroce_train::{Ecn, Framing, PortAddr, RxMeta, RxTrain, Train};
use feroce_wire::{Gid, Lid};

/// Bytes in front of the packets.
pub(super) const META: usize = 48;

/// Bytes in front of packets that have the metadata of an earlier record.
pub(super) const BRIEF: usize = 8;

/// The longest record: packets of a whole UDP datagram.
pub(super) const MAX_RECORD: usize = META + 66_000;

/// The metadata of the packets in a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RecordMeta {
    meta: RxMeta,
    /// Length of every packet but the last.
    stride: u32,
    /// The kind of the record.
    kind: Kind,
}

/// The kind of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Kind {
    /// Packets without ICRC.
    Bare,
    /// Packets, each of which ends with its ICRC.
    Sealed,
    /// The headers of a run of packets whose payload is in the memory of the sender.
    RemotePayload,
    /// Packets without ICRC, with the metadata of the last [`Kind::Bare`] record.
    Again,
    /// No packets: an announcement of direct access.
    DirectAccess,
    /// Packets, each of which ends with its ICRC, which the sender has verified.
    Checked,
}

impl Kind {
    fn read(byte: u8) -> Option<Self> {
        let all = [
            Self::Bare,
            Self::Sealed,
            Self::RemotePayload,
            Self::Again,
            Self::DirectAccess,
            Self::Checked,
        ];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }
}

impl RecordMeta {
    #[inline]
    fn write(&self, out: &mut [u8; META]) {
        let RxMeta { src, dst, udp_sport, traffic_class, hop_limit, ecn, framing, sl } = self.meta;
        let [a, b] = udp_sport.to_ne_bytes();
        out[..4].copy_from_slice(&[self.kind as u8, ecn as u8, framing as u8, hop_limit]);
        out[4..8].copy_from_slice(&self.stride.to_ne_bytes());
        out[8..12].copy_from_slice(&[traffic_class, sl, a, b]);
        out[12..14].copy_from_slice(&src.lid.0.to_ne_bytes());
        out[14..16].copy_from_slice(&dst.lid.0.to_ne_bytes());
        out[16..32].copy_from_slice(&src.gid.0);
        out[32..].copy_from_slice(&dst.gid.0);
    }

    #[inline]
    fn read(bytes: &[u8; META]) -> Option<Self> {
        let gid = |at: usize| Some(Gid(*bytes[at..].first_chunk()?));
        let lid = |at: usize| Lid(u16::from_ne_bytes([bytes[at], bytes[at + 1]]));
        let meta = RxMeta {
            src: PortAddr { gid: gid(16)?, lid: lid(12) },
            dst: PortAddr { gid: gid(32)?, lid: lid(14) },
            udp_sport: u16::from_ne_bytes([bytes[10], bytes[11]]),
            traffic_class: bytes[8],
            hop_limit: bytes[3],
            ecn: [Ecn::NotCapable, Ecn::Capable, Ecn::Congested]
                .into_iter()
                .find(|ecn| *ecn as u8 == bytes[1])?,
            framing: [Framing::RoceV2, Framing::RoceV1, Framing::InfiniBand]
                .into_iter()
                .find(|framing| *framing as u8 == bytes[2])?,
            sl: bytes[9],
        };
        let stride = u32::from_ne_bytes(*bytes[4..].first_chunk()?);
        Some(Self { meta, stride, kind: Kind::read(bytes[0])? })
    }
}

/// Length of the record of a train.
#[inline]
pub(super) fn len_of(train: &Train, has_icrc: bool) -> usize {
    let icrcs = if has_icrc { train.count as usize * ICRC_LEN } else { 0 };
    META + train.total_len() + icrcs
}

/// Writes the record of a train, with an ICRC for each packet if there is a sealer; `out` has the
/// length that [`len_of`] returns.
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
        None => emit_all(train, packets),
    }
}

/// Length of the record of a train with the metadata of an earlier record.
#[inline]
pub(super) fn brief_len_of(train: &Train) -> usize {
    BRIEF + train.total_len()
}

/// Writes the record of a train without ICRCs that has the metadata of the last such record; `out`
/// has the length that [`brief_len_of`] returns.
#[inline]
pub(super) fn write_brief(train: &Train, out: &mut [u8]) {
    let Some((head, packets)) = out.split_first_chunk_mut() else { return };
    write_brief_meta(train.packet_len(0), head);
    emit_all(train, packets);
}

/// Writes the record of one packet, as [`write_brief`] does that of a train; `out` is [`BRIEF`]
/// bytes longer than the packet.
#[inline]
pub(super) fn write_single(packet: &[u8], out: &mut [u8]) {
    let Some((head, place)) = out.split_first_chunk_mut() else { return };
    write_brief_meta(packet.len(), head);
    place.copy_from_slice(packet);
}

/// Writes the beginning of the record of packets that have the metadata of an earlier record.
#[inline]
fn write_brief_meta(stride: usize, out: &mut [u8; BRIEF]) {
    let [a, b, c, d] = (stride as u32).to_ne_bytes();
    *out = [Kind::Again as u8, 0, 0, 0, a, b, c, d];
}

/// Writes the packets of a train, without ICRCs.
#[inline]
fn emit_all(train: &Train, mut out: &mut [u8]) {
    for i in 0..train.count {
        let len = train.emit(i, out);
        out = &mut out[len..];
    }
}

/// Writes the record of packets that were received from the wire; `out` is [`META`] bytes longer
/// than the packets.
pub(super) fn write_received(train: &RxTrain<'_>, out: &mut [u8]) {
    let Some((head, packets)) = out.split_first_chunk_mut() else { return };
    let stride = u32::try_from(train.stride).unwrap_or(u32::MAX);
    let kind = if train.trailer == ICRC_LEN { Kind::Checked } else { Kind::Sealed };
    RecordMeta { meta: train.meta, stride, kind }.write(head);
    packets.copy_from_slice(train.bytes);
}

/// Writes the beginning of the record of a remote payload.
pub(super) fn write_remote_meta(meta: RxMeta, header_len: usize, out: &mut [u8; META]) {
    RecordMeta { meta, stride: header_len as u32, kind: Kind::RemotePayload }.write(out);
}

/// Writes the beginning of the record that announces direct access.
pub(super) fn write_direct_meta(meta: RxMeta, out: &mut [u8; META]) {
    RecordMeta { meta, stride: 0, kind: Kind::DirectAccess }.write(out);
}

/// The content of a record.
#[derive(Debug)]
pub(super) enum Content<'a> {
    /// Packets, and whether they carry an ICRC that is still to be checked.
    Packets(RxTrain<'a>, bool),
    /// The metadata of a remote payload, and the rest of its record.
    RemotePayload(RxMeta, &'a [u8]),
    /// The metadata of an announcement of direct access, and the rest of its record.
    DirectAccess(RxMeta, &'a [u8]),
}

/// Parses a record; `None` if it is malformed. `last` is the metadata of the last [`Kind::Bare`]
/// record.
#[inline]
pub(super) fn read<'a>(record: &'a [u8], last: &mut Option<RxMeta>) -> Option<Content<'a>> {
    let (brief, packets) = record.split_first_chunk::<BRIEF>()?;
    let (meta, stride, kind, bytes) = if brief[0] == Kind::Again as u8 {
        let stride = u32::from_ne_bytes(*brief[4..].first_chunk()?);
        ((*last)?, stride, Kind::Again, packets)
    } else {
        let (head, bytes) = record.split_first_chunk()?;
        let RecordMeta { meta, stride, kind } = RecordMeta::read(head)?;
        (meta, stride, kind, bytes)
    };
    match kind {
        Kind::RemotePayload => return Some(Content::RemotePayload(meta, bytes)),
        Kind::DirectAccess => return Some(Content::DirectAccess(meta, bytes)),
        Kind::Bare => *last = Some(meta),
        Kind::Sealed | Kind::Again | Kind::Checked => {}
    }
    let stride = usize::try_from(stride).ok().filter(|&stride| stride > ICRC_LEN)?;
    let trailer = if kind == Kind::Checked { ICRC_LEN } else { 0 };
    let train = RxTrain { meta, bytes, stride, trailer, remote: None };
    (!bytes.is_empty()).then_some(Content::Packets(train, kind == Kind::Sealed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_packets_survives() {
        let meta = RxMeta {
            src: PortAddr { gid: Gid([1; 16]), lid: Lid(3) },
            dst: PortAddr { gid: Gid([2; 16]), lid: Lid(4) },
            udp_sport: 0xc0de,
            traffic_class: 0x68,
            hop_limit: 64,
            ecn: Ecn::Congested,
            framing: Framing::RoceV2,
            sl: 5,
        };
        let train = RxTrain { meta, bytes: &[7; 100], stride: 40, trailer: 0, remote: None };
        let mut record = [0; META + 100];
        write_received(&train, &mut record);
        let Some(Content::Packets(got, true)) = read(&record, &mut None) else {
            panic!("sealed packets")
        };
        assert_eq!((got.meta, got.bytes, got.stride, got.trailer), (meta, train.bytes, 40, 0));
    }

    #[test]
    fn what_is_no_record_is_none() {
        let is_one = |record: &[u8]| read(record, &mut None).is_some();
        assert!(!is_one(&[]));
        assert!(!is_one(&[0; META]));
        let mut record = [0; META + 20];
        assert!(!is_one(&record), "no stride");
        record[4] = 20;
        assert!(is_one(&record));
        record[1] = 3;
        assert!(!is_one(&record), "no such code point");
        (record[1], record[2]) = (0, 9);
        assert!(!is_one(&record), "no such framing");
        (record[2], record[0]) = (0, 6);
        assert!(!is_one(&record), "no such kind");
    }

    #[test]
    fn what_is_like_the_last_needs_a_last() {
        let meta = RxMeta { udp_sport: 7, hop_limit: 3, ..RxMeta::default() };
        let mut first = [0; META + 16];
        RecordMeta { meta, stride: 16, kind: Kind::Bare }.write(first.first_chunk_mut().unwrap());
        let mut again = [0; BRIEF + 16];
        (again[0], again[4]) = (Kind::Again as u8, 16);
        let mut last = None;
        assert!(read(&again, &mut last).is_none());
        assert!(read(&first, &mut last).is_some());
        let Some(Content::Packets(train, false)) = read(&again, &mut last) else { panic!("again") };
        assert_eq!((train.meta, train.bytes.len(), train.stride), (meta, 16, 16));
        assert!(read(&again[..BRIEF], &mut last).is_none(), "no packets");
    }
}
