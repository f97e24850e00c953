//! What passes between a program and the process that runs a fabric.
//!
//! Both run on one machine and are of one version, so numbers are in the machine's byte order. A
//! connection begins with one [`Request`] and one [`Answer`]. From then on a message is a number of
//! bytes of credit, which programs leave at 0, and any number of [`Record`]s.

use feroce_train::{Ecn, Framing, PortAddr, RxMeta};
use feroce_wire::{Gid, Grh, Lid, Lrh};

/// The first bytes of a request. The number at the end counts the versions of the format.
const MAGIC: [u8; 16] = *b"feroce fabric  3";

/// Most bytes of a message: a train of the longest kind, with room for records of single packets.
pub const MAX_MESSAGE: usize = 96 << 10;

/// Length of the VCRC at the end of a packet on InfiniBand.
const VCRC_LEN: usize = 2;

/// Bytes of credit at the beginning of a message.
pub const CREDIT_LEN: usize = 4;

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// To send and receive packets as the host with this address.
    Port(Gid),
    /// To receive the requests for a service at an address as the process with this number, as long
    /// as the connection lasts.
    Claim {
        /// The address.
        address: Gid,
        /// The number of the process at that address.
        slot: u8,
        /// The service.
        service: u64,
    },
    /// To receive the packets to a multicast group as the process with this number, as long as the
    /// connection lasts.
    Join {
        /// The address of the host.
        address: Gid,
        /// The number of the process at that address.
        slot: u8,
        /// The group.
        group: Gid,
    },
}

impl Request {
    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let (kind, address, slot, service, group) = match *self {
            Self::Port(address) => (0, address, 0, 0, Gid::ZERO),
            Self::Claim { address, slot, service } => (1, address, slot, service, Gid::ZERO),
            Self::Join { address, slot, group } => (2, address, slot, 0, group),
        };
        [&MAGIC[..], &address.0, &group.0, &service.to_ne_bytes(), &[kind, slot]].concat()
    }

    /// Reads one; `None` if it is none, or of another version.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(bytes);
        let (magic, address, group) = (bytes.take()?, Gid(bytes.take()?), Gid(bytes.take()?));
        let service = u64::from_ne_bytes(bytes.take()?);
        let [kind, slot] = bytes.take()?;
        match (magic == MAGIC && bytes.0.is_empty(), kind) {
            (true, 0) => Some(Self::Port(address)),
            (true, 1) => Some(Self::Claim { address, slot, service }),
            (true, 2) => Some(Self::Join { address, slot, group }),
            _ => None,
        }
    }
}

/// What a program learns about its port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Welcome {
    /// The number of this process at its address, 1 to 255.
    pub slot: u8,
    /// Whether switches mark packets.
    pub marks: bool,
    /// Rate of the host's link in bits per second.
    pub rate_bps: u64,
    /// Bytes on the link that may wait for it.
    pub credit: u32,
    /// Bytes of a train at most, so that trains of several queue pairs take turns.
    pub train: u32,
}

/// What the fabric answers to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It has a port for the program, or has noted the service.
    Welcome(Welcome),
    /// Another process has what was asked for.
    InUse,
    /// It does not do that; the text says why.
    Refused(String),
}

impl Answer {
    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        match self {
            Self::Welcome(w) => [
                &[0, w.slot, u8::from(w.marks)][..],
                &w.rate_bps.to_ne_bytes(),
                &w.credit.to_ne_bytes(),
                &w.train.to_ne_bytes(),
            ]
            .concat(),
            Self::InUse => vec![1],
            Self::Refused(text) => [&[2], text.as_bytes()].concat(),
        }
    }

    /// Reads one; `None` if it is none.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        match bytes.split_first()? {
            (0, rest) => {
                let mut rest = Bytes(rest);
                let [slot, marks] = rest.take()?;
                let rate_bps = u64::from_ne_bytes(rest.take()?);
                let credit = u32::from_ne_bytes(rest.take()?);
                let train = u32::from_ne_bytes(rest.take()?);
                Some(Self::Welcome(Welcome { slot, marks: marks != 0, rate_bps, credit, train }))
            }
            (1, []) => Some(Self::InUse),
            (2, text) => Some(Self::Refused(String::from_utf8_lossy(text).into_owned())),
            _ => None,
        }
    }
}

/// A run of packets of equal length with equal headers below the BTH; the last may be shorter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// When the packets were sent, or when the last of them arrives, in nanoseconds of the system's
    /// monotonic clock.
    pub at_ns: u64,
    /// The headers.
    pub meta: RxMeta,
    /// Length of every packet but the last.
    pub stride: usize,
    /// The packets, from BTH to ICRC.
    pub bytes: &'a [u8],
}

/// Bytes of a record before its packets.
pub const RECORD_LEN: usize = 57;

impl<'a> Record<'a> {
    /// Writes what comes before the packets to the start of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`RECORD_LEN`].
    pub fn emit_head(&self, out: &mut [u8]) {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        let meta = &self.meta;
        put(&self.at_ns.to_ne_bytes());
        put(&(self.bytes.len() as u32).to_ne_bytes());
        put(&(self.stride as u16).to_ne_bytes());
        put(&meta.udp_sport.to_ne_bytes());
        put(&meta.src.gid.0);
        put(&meta.dst.gid.0);
        put(&[meta.traffic_class, meta.hop_limit, meta.ecn.to_bits(), meta.sl]);
        put(&meta.src.lid.0.to_ne_bytes());
        put(&meta.dst.lid.0.to_ne_bytes());
        put(&[u8::from(meta.framing == Framing::InfiniBand)]);
    }

    /// Takes the first record of a message; `None` if there is none, or if it is damaged.
    pub fn take(message: &mut &'a [u8]) -> Option<Self> {
        let mut bytes = Bytes(message);
        let at_ns = u64::from_ne_bytes(bytes.take()?);
        let len = u32::from_ne_bytes(bytes.take()?) as usize;
        let stride = usize::from(u16::from_ne_bytes(bytes.take()?));
        let udp_sport = u16::from_ne_bytes(bytes.take()?);
        let (src, dst) = (Gid(bytes.take()?), Gid(bytes.take()?));
        let [traffic_class, hop_limit, ecn, sl] = bytes.take()?;
        let mut lid = || Some(Lid(u16::from_ne_bytes(bytes.take()?)));
        let (slid, dlid) = (lid()?, lid()?);
        let framing = match bytes.take()? {
            [0] => Framing::RoceV2,
            [1] => Framing::InfiniBand,
            _ => return None,
        };
        let (packets, rest) = bytes.0.split_at_checked(len)?;
        if len == 0 || stride == 0 {
            return None;
        }
        *message = rest;
        let meta = RxMeta {
            src: PortAddr { gid: src, lid: slid },
            dst: PortAddr { gid: dst, lid: dlid },
            udp_sport,
            traffic_class,
            hop_limit,
            ecn: Ecn::from_bits(ecn),
            framing,
            sl,
        };
        Some(Self { at_ns, meta, stride, bytes: packets })
    }
}

/// Bytes that a packet of `len` bytes, from BTH to ICRC, takes on a link. On Ethernet: preamble 8,
/// Ethernet 14, IP 20 or 40, UDP 8, the packet, frame check sequence 4, gap 12. On InfiniBand:
/// local route header 8, GRH 40 if there is one, the packet, VCRC 2.
pub fn wire_len(meta: &RxMeta, len: usize) -> u32 {
    let around = match meta.framing {
        Framing::InfiniBand if meta.has_grh() => Lrh::LEN + Grh::LEN + VCRC_LEN,
        Framing::InfiniBand => Lrh::LEN + VCRC_LEN,
        _ if meta.dst.gid.as_ipv4().is_some() => 66,
        _ => 86,
    };
    (len + around) as u32
}

/// What is left of a message.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: Gid = Gid([7; 16]);

    #[test]
    fn requests_and_answers_are_read_as_they_were_written() {
        let claim = Request::Claim { address: ADDRESS, slot: 3, service: 0x0106_1234 };
        let join = Request::Join { address: ADDRESS, slot: 3, group: Gid([0xff; 16]) };
        for request in [Request::Port(ADDRESS), claim, join] {
            assert_eq!(Request::parse(&request.emit()), Some(request));
        }
        let rate_bps = 10_000_000_000;
        let welcome = Welcome { slot: 9, marks: true, rate_bps, credit: 1, train: 2 };
        for answer in [Answer::Welcome(welcome), Answer::InUse, Answer::Refused("why".into())] {
            assert_eq!(Answer::parse(&answer.emit()), Some(answer));
        }
        assert_eq!(Request::parse(b"feroce fabric  1"), None);
        assert_eq!(Request::parse(&Request::Port(ADDRESS).emit()[..57]), None);
        assert_eq!(Answer::parse(&[]), None);
        assert_eq!(Answer::parse(&[0, 1]), None);
    }

    #[test]
    fn records_follow_each_other_and_damaged_ones_end_the_message() {
        let meta = RxMeta {
            src: ADDRESS.into(),
            dst: Gid::from_ipv4([127, 77, 0, 1]).into(),
            udp_sport: 0xc123,
            traffic_class: 0x68,
            hop_limit: 64,
            ecn: Ecn::Congested,
            ..RxMeta::default()
        };
        let record = Record { at_ns: 5, meta, stride: 4, bytes: &[1, 2, 3, 4, 5, 6] };
        let mut message = vec![0; RECORD_LEN];
        record.emit_head(&mut message);
        message.extend(record.bytes);
        let twice = [&message[..], &message].concat();
        let mut rest = &twice[..];
        assert_eq!(Record::take(&mut rest), Some(record));
        assert_eq!(Record::take(&mut rest), Some(record));
        assert_eq!(Record::take(&mut rest), None);
        for cut in 0..message.len() {
            assert_eq!(Record::take(&mut &message[..cut]), None, "{cut}");
        }
        assert_eq!(wire_len(&meta, 16), 82);
        assert_eq!(wire_len(&RxMeta { dst: ADDRESS.into(), ..meta }, 16), 102);
    }

    #[test]
    fn records_of_infiniband_have_lids() {
        let local = |lid| PortAddr { gid: Gid::ZERO, lid: Lid(lid) };
        let (src, dst, framing) = (local(7), local(0x8003), Framing::InfiniBand);
        let meta = RxMeta { src, dst, framing, sl: 5, ..RxMeta::default() };
        let global = PortAddr { gid: ADDRESS, ..dst };
        for meta in [meta, RxMeta { dst: global, ..meta }] {
            let record = Record { at_ns: 5, meta, stride: 4, bytes: &[1, 2, 3, 4] };
            let mut message = vec![0; RECORD_LEN];
            record.emit_head(&mut message);
            message.extend(record.bytes);
            assert_eq!(Record::take(&mut &message[..]), Some(record));
            message[RECORD_LEN - 1] = 2;
            assert_eq!(Record::take(&mut &message[..]), None, "an unknown framing");
        }
        assert_eq!(wire_len(&meta, 16), 26);
        assert_eq!(wire_len(&RxMeta { dst: global, ..meta }, 16), 66);
    }
}
