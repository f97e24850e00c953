//! The private data of a connection, and what two ends write into each other's memory.

use super::Violation;

/// The version of the protocol.
const VERSION: u8 = 1;

/// Flag: the sender stores numbers with the most significant byte first.
const BIG_ENDIAN: u8 = 1;

/// Flag: the sender supports mapped memory.
const HAS_IOMAPS: u8 = 2;

/// The byte order of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Little,
    Big,
}

impl Order {
    /// The byte order of this machine.
    pub(crate) const NATIVE: Self =
        if cfg!(target_endian = "big") { Self::Big } else { Self::Little };

    fn u64(self, value: u64) -> [u8; 8] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    fn u32(self, value: u32) -> [u8; 4] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    fn read_u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }

    fn read_u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }
}

/// Memory that the other end may write to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Buffer {
    pub(crate) addr: u64,
    pub(crate) key: u32,
    /// In bytes; of a list of places, how many there are.
    pub(crate) len: u32,
}

impl Buffer {
    /// Bytes that it takes.
    pub(crate) const LEN: usize = 16;

    pub(crate) fn emit(&self, order: Order) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&order.u64(self.addr));
        out[8..12].copy_from_slice(&order.u32(self.key));
        out[12..].copy_from_slice(&order.u32(self.len));
        out
    }

    pub(crate) fn parse(bytes: &[u8; Self::LEN], order: Order) -> Self {
        let [a, b, c, d, e, f, g, h, k0, k1, k2, k3, l0, l1, l2, l3] = *bytes;
        Self {
            addr: order.read_u64([a, b, c, d, e, f, g, h]),
            key: order.read_u32([k0, k1, k2, k3]),
            len: order.read_u32([l0, l1, l2, l3]),
        }
    }
}

/// Memory of a program that the other end may write to directly, and under which offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Iomap {
    pub(crate) offset: u64,
    pub(crate) buffer: Buffer,
}

impl Iomap {
    /// Bytes that it takes.
    pub(crate) const LEN: usize = 8 + Buffer::LEN;

    pub(crate) fn emit(&self, order: Order) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&order.u64(self.offset));
        out[8..].copy_from_slice(&self.buffer.emit(order));
        out
    }

    pub(crate) fn parse(bytes: &[u8; Self::LEN], order: Order) -> Self {
        let (mut offset, mut buffer) = ([0; 8], [0; Buffer::LEN]);
        offset.copy_from_slice(&bytes[..8]);
        buffer.copy_from_slice(&bytes[8..]);
        Self { offset: order.read_u64(offset), buffer: Buffer::parse(&buffer, order) }
    }

    /// How many bytes there are from `offset` on, if it is inside the mapping.
    pub(crate) fn bytes_from(&self, offset: u64) -> Option<u32> {
        let inside = offset.checked_sub(self.offset)?;
        u32::try_from(inside).ok().and_then(|inside| self.buffer.len.checked_sub(inside))
    }
}

/// Numbers up to 128 as they are, greater ones in units of 256, in one byte.
pub(crate) fn scale(value: u16) -> u8 {
    match u8::try_from(value) {
        Ok(small @ 0..=128) => small,
        _ => 128 | ((value >> 8) as u8 & 127),
    }
}

/// What [`scale`] stands for.
pub(crate) fn unscale(value: u8) -> u16 {
    if value <= 128 { value.into() } else { u16::from(value & 127) << 8 }
}

/// Private data of the request for a connection, and of the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hello {
    /// In which order this end wants what is written into its memory.
    pub(crate) order: Order,
    /// Messages that the other end may send before it gets credits.
    pub(crate) credits: u16,
    /// How many slots for mappings this end has.
    pub(crate) iomaps: u16,
    /// Where the other end announces its free memory; the slots for mappings follow.
    pub(crate) places: Buffer,
    /// Memory that is free from the start.
    pub(crate) first: Buffer,
}

impl Hello {
    /// Bytes that it takes.
    pub(crate) const LEN: usize = 8 + 2 * Buffer::LEN;

    pub(crate) fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[0] = VERSION;
        out[1] = HAS_IOMAPS | if self.order == Order::Big { BIG_ENDIAN } else { 0 };
        out[2..4].copy_from_slice(&self.credits.to_be_bytes());
        out[7] = scale(self.iomaps);
        out[8..24].copy_from_slice(&self.places.emit(Order::Big));
        out[24..].copy_from_slice(&self.first.emit(Order::Big));
        out
    }

    /// Reads it from the beginning of private data. Fewer than two places would not work: the
    /// first update goes to the second place.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Violation> {
        let bytes: &[u8; Self::LEN] = bytes.first_chunk().ok_or(Violation)?;
        let [version, flags, credits0, credits1, _, _, _, iomaps, rest @ ..] = bytes;
        let (mut places, mut first) = ([0; Buffer::LEN], [0; Buffer::LEN]);
        places.copy_from_slice(&rest[..Buffer::LEN]);
        first.copy_from_slice(&rest[Buffer::LEN..]);
        let hello = Self {
            order: if flags & BIG_ENDIAN == 0 { Order::Little } else { Order::Big },
            credits: u16::from_be_bytes([*credits0, *credits1]),
            iomaps: if flags & HAS_IOMAPS == 0 { 0 } else { unscale(*iomaps) },
            places: Buffer::parse(&places, Order::Big),
            first: Buffer::parse(&first, Order::Big),
        };
        if *version == VERSION && hello.places.len >= 2 { Ok(hello) } else { Err(Violation) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: Hello = Hello {
        order: Order::Little,
        credits: 384,
        iomaps: 3,
        places: Buffer { addr: 0x1122_3344_5566_7788, key: 0xaabb_ccdd, len: 2 },
        first: Buffer { addr: 0x99, key: 0x77, len: 0x10000 },
    };

    /// Byte for byte what librdmacm 44 sends with these numbers.
    #[test]
    fn a_hello_looks_like_that_of_librdmacm() {
        let bytes = [
            1, 2, 0x01, 0x80, 0, 0, 0, 3, // version, flags, credits, reserved, mappings
            0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0xaa, 0xbb, 0xcc, 0xdd, 0, 0, 0,
            2, //
            0, 0, 0, 0, 0, 0, 0, 0x99, 0, 0, 0, 0x77, 0, 1, 0, 0,
        ];
        assert_eq!(HELLO.emit(), bytes);
        // Private data is filled up with zeros.
        let filled = [&bytes[..], &[0; 16]].concat();
        assert_eq!(Hello::parse(&filled), Ok(HELLO));
    }

    #[test]
    fn a_hello_that_makes_no_sense_is_refused() {
        let with = |at: usize, value: u8| {
            let mut bytes = HELLO.emit();
            bytes[at] = value;
            Hello::parse(&bytes)
        };
        assert_eq!(with(0, 2), Err(Violation), "another version");
        assert_eq!(with(23, 1), Err(Violation), "one place");
        assert_eq!(Hello::parse(&HELLO.emit()[..39]), Err(Violation), "too short");
        assert_eq!(with(1, 1).map(|hello| (hello.order, hello.iomaps)), Ok((Order::Big, 0)));
    }

    #[test]
    fn buffers_and_mappings_come_back_in_either_order() {
        let map = Iomap { offset: 0x0123_4567_89ab_cdef, buffer: HELLO.places };
        for order in [Order::Little, Order::Big] {
            assert_eq!(Iomap::parse(&map.emit(order), order), map);
        }
        assert_eq!(map.emit(Order::Big)[0], 0x01);
        assert_eq!(map.emit(Order::Little)[0], 0xef);
    }

    #[test]
    fn a_mapping_knows_its_bytes() {
        let map = Iomap { offset: 100, buffer: Buffer { len: 50, ..Buffer::default() } };
        assert_eq!(map.bytes_from(99), None);
        assert_eq!(map.bytes_from(100), Some(50));
        assert_eq!(map.bytes_from(149), Some(1));
        assert_eq!(map.bytes_from(150), Some(0));
        assert_eq!(map.bytes_from(151), None);
        assert_eq!(map.bytes_from(u64::MAX), None);
    }

    #[test]
    fn sizes_of_lists_are_scaled() {
        for (value, scaled) in [(0, 0), (128, 128), (200, 128), (256, 129), (512, 130)] {
            assert_eq!(scale(value), scaled, "{value}");
        }
        assert_eq!([unscale(3), unscale(128), unscale(130)], [3, 128, 512]);
    }
}
