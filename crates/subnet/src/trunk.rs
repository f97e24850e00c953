//! What two parts of a fabric say to each other over a reliable stream: a trunk.
//!
//! The stream is a sequence of frames: four bytes with the length of the rest, a byte that says
//! what it is, and its fields. Numbers are in network byte order, since the two machines may
//! differ. A trunk begins with a [`Hello`] from either end, which each answers with
//! [`TrunkMessage::Accepted`] or [`TrunkMessage::Refused`]; both have read the same topology, so a
//! port is the index of its node there and its number.
//!
//! Nothing here trusts the sender: a frame is bounded, and one that is not exactly what it should
//! be is refused.

use alloc::string::String;
use alloc::vec::Vec;

use feroce_fabric::FlowControl;
use feroce_train::{Ecn, Framing, PortAddr, RxMeta};
use feroce_wire::mad::MAD_LEN;
use feroce_wire::{Gid, Lid, Pkey, Qkey, Qpn};

use crate::net::MAX_PART;
use crate::packet::{MadPacket, PortRef};
use crate::signal::Signal;
use crate::traffic::Landing;

/// Version of the protocol.
const VERSION: u16 = 1;
/// The first bytes of a greeting.
const MAGIC: [u8; 8] = *b"feroceIB";
/// Bytes of a frame at most, without its length: as many packets as a program sends together.
pub const MAX_FRAME: usize = 128 << 10;
/// Bytes of the length of a frame.
const LENGTH: usize = 4;
/// Most bytes of the text of a refusal.
const MAX_TEXT: usize = 512;

const HELLO: u8 = 0;
const ACCEPTED: u8 = 1;
const REFUSED: u8 = 2;
const SIGNAL: u8 = 3;
const DATAGRAM: u8 = 4;
const PACKETS: u8 = 5;
const CREDIT: u8 = 6;
const ALIVE: u8 = 7;

/// Who is at the other end of a trunk, and what it runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Version of the protocol.
    pub version: u16,
    /// Its part of the fabric.
    pub part: String,
    /// [`Net::digest`](crate::Net::digest) of its topology.
    pub digest: u64,
    /// What the addresses of hosts begin with.
    pub addresses: [u8; 2],
}

impl Hello {
    /// A greeting in the version of this library.
    pub fn new(part: &str, digest: u64, addresses: [u8; 2]) -> Self {
        Self { version: VERSION, part: part.into(), digest, addresses }
    }
}

/// A message between two parts of a fabric.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::large_enum_variant, reason = "datagrams are as frequent as small messages")]
pub enum TrunkMessage<'a> {
    /// The beginning.
    Hello(Hello),
    /// The other end may begin.
    Accepted,
    /// The other end may not; the text says why.
    Refused(&'a str),
    /// A port, and what it is to hear of the other end of its link.
    Signal(PortRef, Signal),
    /// A management datagram arrives at a port after so many hops.
    Datagram(PortRef, u8, MadPacket),
    /// Packets arrive: their headers, the length of each but the last, and their bytes from BTH to
    /// ICRC.
    Packets(Landing, RxMeta, u16, &'a [u8]),
    /// How much a port may send on a lane.
    Credit(PortRef, u8, FlowControl),
    /// The sender is there and has nothing to say.
    Alive,
}

/// A frame is longer than frames are, or empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLong;

/// The first frame of what has arrived, and how many bytes it takes; none if it is not whole yet.
pub fn take_frame(arrived: &[u8]) -> Result<Option<(&[u8], usize)>, TooLong> {
    let Some((length, rest)) = arrived.split_first_chunk() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if length == 0 || length > MAX_FRAME {
        return Err(TooLong);
    }
    Ok(rest.get(..length).map(|frame| (frame, LENGTH + length)))
}

impl<'a> TrunkMessage<'a> {
    /// Writes it as a frame.
    ///
    /// # Panics
    /// If packets do not fit [`MAX_FRAME`].
    pub fn emit(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([0; LENGTH]);
        self.emit_body(out);
        let length = out.len() - start - LENGTH;
        assert!(length <= MAX_FRAME, "a frame of {length} bytes");
        if let Some(head) = out.get_mut(start..start + LENGTH) {
            head.copy_from_slice(&(length as u32).to_be_bytes());
        }
    }

    fn emit_body(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => {
                out.push(HELLO);
                out.extend(MAGIC);
                out.extend(hello.version.to_be_bytes());
                out.extend(hello.digest.to_be_bytes());
                out.extend(hello.addresses);
                out.extend(hello.part.as_bytes());
            }
            Self::Accepted => out.push(ACCEPTED),
            Self::Refused(text) => {
                out.push(REFUSED);
                out.extend(&text.as_bytes()[..text.floor_char_boundary(MAX_TEXT)]);
            }
            Self::Signal(at, Signal { turn, is_ready }) => {
                out.push(SIGNAL);
                put_port(out, *at);
                out.extend(turn.to_be_bytes());
                out.push(u8::from(*is_ready));
            }
            Self::Datagram(at, hops, packet) => {
                out.push(DATAGRAM);
                put_port(out, *at);
                out.push(*hops);
                put_datagram(out, packet);
            }
            Self::Packets(Landing { at, lane, hops }, meta, stride, bytes) => {
                out.push(PACKETS);
                put_port(out, *at);
                out.extend([*lane, u8::try_from(*hops).unwrap_or(u8::MAX)]);
                put_headers(out, meta);
                out.extend(stride.to_be_bytes());
                out.extend(*bytes);
            }
            Self::Credit(at, lane, FlowControl { sent, limit }) => {
                out.push(CREDIT);
                put_port(out, *at);
                out.push(*lane);
                out.extend(sent.to_be_bytes());
                out.extend(limit.to_be_bytes());
            }
            Self::Alive => out.push(ALIVE),
        }
    }

    /// Reads a frame; `None` if it is none.
    pub fn parse(frame: &'a [u8]) -> Option<Self> {
        let (kind, rest) = frame.split_first()?;
        let mut fields = Fields(rest);
        let message = match *kind {
            HELLO => {
                if fields.take::<8>()? != MAGIC {
                    return None;
                }
                let (version, digest) = (fields.short()?, u64::from_be_bytes(fields.take()?));
                let addresses = fields.take()?;
                let part = fields.text(MAX_PART)?.into();
                Self::Hello(Hello { version, part, digest, addresses })
            }
            ACCEPTED => Self::Accepted,
            REFUSED => Self::Refused(fields.text(MAX_TEXT)?),
            SIGNAL => {
                let (at, turn) = (fields.port()?, fields.word()?);
                Self::Signal(at, Signal { turn, is_ready: fields.flag()? })
            }
            DATAGRAM => Self::Datagram(fields.port()?, fields.byte()?, fields.datagram()?),
            PACKETS => {
                let (at, lane, hops) = (fields.port()?, fields.byte()?, fields.byte()?.into());
                let (meta, stride) = (fields.headers()?, fields.short()?);
                let bytes = core::mem::take(&mut fields.0);
                if bytes.is_empty() || stride == 0 {
                    return None;
                }
                Self::Packets(Landing { at, lane, hops }, meta, stride, bytes)
            }
            CREDIT => {
                let (at, lane) = (fields.port()?, fields.byte()?);
                let (sent, limit) = (fields.short()?, fields.short()?);
                Self::Credit(at, lane, FlowControl { sent, limit })
            }
            ALIVE => Self::Alive,
            _ => return None,
        };
        fields.0.is_empty().then_some(message)
    }
}

fn put_port(out: &mut Vec<u8>, at: PortRef) {
    out.extend(u32::try_from(at.node).unwrap_or(u32::MAX).to_be_bytes());
    out.push(at.port);
}

fn put_datagram(out: &mut Vec<u8>, packet: &MadPacket) {
    out.extend(packet.slid.0.to_be_bytes());
    out.extend(packet.dlid.0.to_be_bytes());
    out.push(packet.sl);
    out.extend(packet.pkey.0.to_be_bytes());
    out.extend(packet.src_qpn.get().to_be_bytes());
    out.extend(packet.dst_qpn.get().to_be_bytes());
    out.extend(packet.qkey.0.to_be_bytes());
    out.push(u8::from(packet.gids.is_some()));
    if let Some((source, destination)) = packet.gids {
        out.extend(source.0);
        out.extend(destination.0);
    }
    out.extend(packet.mad);
}

/// The headers of packets of InfiniBand.
fn put_headers(out: &mut Vec<u8>, meta: &RxMeta) {
    out.extend(meta.src.gid.0);
    out.extend(meta.dst.gid.0);
    out.extend(meta.src.lid.0.to_be_bytes());
    out.extend(meta.dst.lid.0.to_be_bytes());
    out.extend([meta.traffic_class, meta.hop_limit, meta.ecn.to_bits(), meta.sl]);
}

/// What is left of a frame.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn short(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    /// A number of 24 bits in four bytes.
    fn qpn(&mut self) -> Option<Qpn> {
        self.word().filter(|number| number >> 24 == 0).map(Qpn::new)
    }

    /// All that is left, as text.
    fn text(&mut self, most: usize) -> Option<&'a str> {
        let text = core::mem::take(&mut self.0);
        core::str::from_utf8(text).ok().filter(|text| text.len() <= most)
    }

    fn port(&mut self) -> Option<PortRef> {
        let node = usize::try_from(self.word()?).ok()?;
        Some(PortRef { node, port: self.byte()? })
    }

    fn datagram(&mut self) -> Option<MadPacket> {
        let (slid, dlid) = (Lid(self.short()?), Lid(self.short()?));
        let (sl, pkey) = (self.byte()?, Pkey(self.short()?));
        let (src_qpn, dst_qpn, qkey) = (self.qpn()?, self.qpn()?, Qkey(self.word()?));
        let gids = match self.flag()? {
            true => Some((Gid(self.take()?), Gid(self.take()?))),
            false => None,
        };
        let mad = self.take::<MAD_LEN>()?;
        Some(MadPacket { slid, dlid, sl, pkey, src_qpn, dst_qpn, qkey, gids, mad })
    }

    fn headers(&mut self) -> Option<RxMeta> {
        let (source, destination) = (Gid(self.take()?), Gid(self.take()?));
        let (slid, dlid) = (Lid(self.short()?), Lid(self.short()?));
        let [traffic_class, hop_limit, bits, sl] = self.take()?;
        let ecn = Ecn::from_bits(bits);
        (ecn.to_bits() == bits).then_some(RxMeta {
            src: PortAddr { gid: source, lid: slid },
            dst: PortAddr { gid: destination, lid: dlid },
            udp_sport: 0,
            traffic_class,
            hop_limit,
            ecn,
            framing: Framing::InfiniBand,
            sl,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Vec<u8>> {
        let at = PortRef { node: 70_000, port: 9 };
        let packet = MadPacket {
            slid: Lid(1),
            dlid: Lid(0xffff),
            sl: 3,
            pkey: Pkey::DEFAULT,
            src_qpn: Qpn::QP0,
            dst_qpn: Qpn::new(0xab_cdef),
            qkey: Qkey(0x8001_0000),
            gids: None,
            mad: [7; MAD_LEN],
        };
        let routed = MadPacket { gids: Some((Gid([1; 16]), Gid([2; 16]))), ..packet.clone() };
        let addr = |lid| PortAddr { gid: Gid([lid; 16]), lid: Lid(lid.into()) };
        let framing = Framing::InfiniBand;
        let ecn = Ecn::Congested;
        let meta = RxMeta { src: addr(1), dst: addr(8), framing, ecn, sl: 2, ..RxMeta::default() };
        let landing = Landing { at, lane: 7, hops: 127 };
        let messages = [
            TrunkMessage::Hello(Hello::new("east", 0x1234_5678_9abc_def0, [127, 77])),
            TrunkMessage::Accepted,
            TrunkMessage::Refused("another topology"),
            TrunkMessage::Signal(at, Signal { turn: 5, is_ready: true }),
            TrunkMessage::Datagram(at, 12, packet),
            TrunkMessage::Datagram(at, 12, routed),
            TrunkMessage::Packets(landing, meta, 28, &[9; 64]),
            TrunkMessage::Credit(at, 3, FlowControl { sent: 4000, limit: 95 }),
            TrunkMessage::Alive,
        ];
        let mut frames = Vec::new();
        for message in messages {
            let mut bytes = Vec::new();
            message.emit(&mut bytes);
            let (frame, len) = take_frame(&bytes).expect("short").expect("whole");
            assert_eq!((len, TrunkMessage::parse(frame)), (bytes.len(), Some(message)));
            frames.push(bytes);
        }
        frames
    }

    #[test]
    fn what_is_written_is_read_again() {
        assert_eq!(all().len(), 9);
    }

    #[test]
    fn frames_are_taken_one_by_one_and_only_if_they_are_whole() {
        let frames = all();
        let stream = frames.concat();
        let mut rest = &stream[..];
        for frame in &frames {
            for len in 0..frame.len() {
                assert_eq!(take_frame(&rest[..len]), Ok(None));
            }
            let (_, len) = take_frame(rest).expect("short").expect("whole");
            assert_eq!(len, frame.len());
            rest = &rest[len..];
        }
        assert_eq!(take_frame(&[0, 0, 0, 0]), Err(TooLong));
        assert_eq!(take_frame(&[0, 2, 0, 1]), Err(TooLong));
    }

    #[test]
    fn a_frame_that_is_cut_or_has_more_than_its_fields_is_refused() {
        for bytes in all() {
            let frame = &bytes[LENGTH..];
            let is_open = matches!(frame[0], HELLO | REFUSED | PACKETS);
            for len in 0..frame.len() {
                let cut = TrunkMessage::parse(&frame[..len]);
                assert!(is_open || cut.is_none(), "{cut:?}");
            }
            let longer = [frame, &[0]].concat();
            assert!(is_open || TrunkMessage::parse(&longer).is_none());
        }
        assert_eq!(TrunkMessage::parse(&[99]), None);
        let part = "x".repeat(MAX_PART + 1);
        let mut bytes = Vec::new();
        TrunkMessage::Hello(Hello::new(&part, 0, [127, 77])).emit(&mut bytes);
        assert_eq!(TrunkMessage::parse(&bytes[LENGTH..]), None);
    }
}
