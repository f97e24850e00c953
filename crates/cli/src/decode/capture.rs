//! Capture files: pcap and pcapng, record by record.

use std::io::Read;

use feroce_link::FAULT_MARKS;
use pcap_parser::traits::PcapReaderIterator;
use pcap_parser::{
    Block, Linktype, OptionCode, PcapBlockOwned, PcapError, PcapNGOption, create_reader,
};

/// Bytes read ahead at first, and most for one record; a longer one means that the file is damaged.
const BUFFER: (usize, usize) = (1 << 16, 64 << 20);

/// One captured packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    /// Nanoseconds since 1970, if the file says.
    pub(crate) time_ns: Option<u64>,
    /// Link type: the header that the bytes begin with.
    pub(crate) link: Linktype,
    /// The bytes.
    pub(crate) bytes: &'a [u8],
    /// Whether the packet on the wire was longer.
    pub(crate) is_cut: bool,
    /// What the adapter that made the capture did to the packet: one of [`FAULT_MARKS`].
    pub(crate) mark: Option<&'static str>,
}

/// Why reading ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// At the end of the file.
    Complete,
    /// The caller stopped it.
    Stopped,
    /// Before the end of the file, for this reason.
    Damaged(String),
}

/// What a section of a file states about its packets.
#[derive(Debug, Default)]
struct Section {
    /// Link type, fractions of a second, seconds to add; by interface.
    interfaces: Vec<(Linktype, u64, i64)>,
}

/// Hands every packet of a file to `each`, until that returns false.
pub(crate) fn read(file: impl Read + Send, mut each: impl FnMut(Record<'_>) -> bool) -> End {
    let mut reader = match create_reader(BUFFER.0, file) {
        Ok(reader) => reader,
        Err(PcapError::Eof) => return End::Damaged("it is empty".to_owned()),
        Err(PcapError::ReadError) => return End::Damaged("it cannot be read".to_owned()),
        Err(_) => return End::Damaged("it is neither pcap nor pcapng".to_owned()),
    };
    let mut section = Section::default();
    let mut room = BUFFER.0;
    loop {
        let end = match reader.next() {
            Ok((len, block)) => {
                let goes_on = section.take(&block, &mut each);
                reader.consume(len);
                if goes_on { continue } else { End::Stopped }
            }
            Err(PcapError::Eof) => End::Complete,
            Err(PcapError::Incomplete(_)) => match refill(&mut *reader, &mut room) {
                Ok(()) => continue,
                Err(why) => End::Damaged(why),
            },
            Err(PcapError::BufferTooSmall) => match grow(&mut *reader, &mut room) {
                Ok(()) => continue,
                Err(why) => End::Damaged(why),
            },
            Err(PcapError::UnexpectedEof) => End::Damaged("the last record is cut".to_owned()),
            Err(PcapError::ReadError) => End::Damaged("it cannot be read".to_owned()),
            Err(_) => End::Damaged(format!("garbage at byte {}", reader.consumed())),
        };
        return end;
    }
}

/// Reads more of the file.
fn refill(reader: &mut dyn PcapReaderIterator, room: &mut usize) -> Result<(), String> {
    let before = reader.data().len();
    reader.refill().map_err(|_| "it cannot be read".to_owned())?;
    let is_stuck = reader.data().len() == before && !reader.reader_exhausted();
    if is_stuck { grow(reader, room) } else { Ok(()) }
}

/// Makes room for a longer record.
fn grow(reader: &mut dyn PcapReaderIterator, room: &mut usize) -> Result<(), String> {
    *room *= 2;
    if *room > BUFFER.1 || !reader.grow(*room) {
        return Err(format!("a record at byte {} is impossibly long", reader.consumed()));
    }
    reader.refill().map_err(|_| "it cannot be read".to_owned())
}

impl Section {
    /// Handles a block, and passes on the packet if it is one. False if the caller wants no more.
    fn take(
        &mut self,
        block: &PcapBlockOwned<'_>,
        each: &mut impl FnMut(Record<'_>) -> bool,
    ) -> bool {
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                let units =
                    if header.is_nanosecond_precision() { 1_000_000_000 } else { 1_000_000 };
                // The upper half holds flags in newer files.
                self.interfaces = vec![(Linktype(header.network.0 & 0xffff), units, 0)];
                true
            }
            PcapBlockOwned::Legacy(packet) => {
                let Some(&(link, units, _)) = self.interfaces.first() else { return true };
                let sub_ns = u64::from(packet.ts_usec).saturating_mul(1_000_000_000 / units);
                let time_ns = u64::from(packet.ts_sec).saturating_mul(1_000_000_000) + sub_ns;
                let is_cut = packet.caplen < packet.origlen;
                each(Record {
                    time_ns: Some(time_ns),
                    link,
                    bytes: packet.data,
                    is_cut,
                    mark: None,
                })
            }
            PcapBlockOwned::NG(block) => self.take_block(block, each),
        }
    }

    fn take_block(&mut self, block: &Block<'_>, each: &mut impl FnMut(Record<'_>) -> bool) -> bool {
        match block {
            Block::SectionHeader(_) => self.interfaces.clear(),
            Block::InterfaceDescription(interface) => {
                let units = units_per_second(interface.if_tsresol);
                self.interfaces.push((interface.linktype, units, interface.if_tsoffset));
            }
            Block::EnhancedPacket(packet) => {
                let at = usize::try_from(packet.if_id).unwrap_or(usize::MAX);
                let Some(&(link, units, offset)) = self.interfaces.get(at) else { return true };
                let stamp = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                let bytes = captured(packet.data, packet.caplen);
                let is_cut = packet.caplen < packet.origlen;
                let time_ns = nanos(stamp, units, offset);
                let mark = packet.options.iter().find_map(mark_of);
                return each(Record { time_ns, link, bytes, is_cut, mark });
            }
            Block::SimplePacket(packet) => {
                let Some(&(link, ..)) = self.interfaces.first() else { return true };
                let bytes = captured(packet.data, packet.origlen);
                let is_cut = bytes.len() < packet.origlen as usize;
                return each(Record { time_ns: None, link, bytes, is_cut, mark: None });
            }
            _ => {}
        }
        true
    }
}

/// What the adapter that made the capture did to the packet, if the comment says so.
fn mark_of(option: &PcapNGOption<'_>) -> Option<&'static str> {
    let comment = option.as_bytes().ok().filter(|_| option.code == OptionCode::Comment)?;
    FAULT_MARKS.into_iter().find(|mark| comment.ends_with(mark.as_bytes()))
}

/// The bytes of a packet without their padding.
fn captured(data: &[u8], len: u32) -> &[u8] {
    data.get(..len as usize).unwrap_or(data)
}

/// Units of a time stamp in a second: a power of ten, or of two if the top bit is set.
fn units_per_second(resolution: u8) -> u64 {
    let exponent = u32::from(resolution & 0x7f);
    let units = if resolution & 0x80 == 0 {
        10_u64.checked_pow(exponent)
    } else {
        1_u64.checked_shl(exponent)
    };
    units.unwrap_or(1_000_000)
}

fn nanos(stamp: u64, units: u64, offset_s: i64) -> Option<u64> {
    let ns = u128::from(stamp) * 1_000_000_000 / u128::from(units.max(1));
    let ns = i128::try_from(ns).ok()? + i128::from(offset_s) * 1_000_000_000;
    u64::try_from(ns).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_stamps_of_any_resolution() {
        assert_eq!(units_per_second(6), 1_000_000);
        assert_eq!(units_per_second(9), 1_000_000_000);
        assert_eq!(units_per_second(0x80 | 10), 1024);
        assert_eq!((units_per_second(0x7f), units_per_second(0xff)), (1_000_000, 1_000_000));
        assert_eq!(nanos(1_500_000, 1_000_000, 2), Some(3_500_000_000));
        assert_eq!(nanos(512, 1024, 0), Some(500_000_000));
        assert_eq!(nanos(0, 1, -1), None);
        assert_eq!(nanos(u64::MAX, 1, i64::MAX), None);
    }
}
