//! Newtypes for every identifier and counter that travels on the wire.
//!
//! Signatures never carry a bare integer where one of these exists.

use core::fmt;
use core::net::IpAddr;

use crate::field::{be24, from_be24};

/// Bits in a packet sequence number, a queue pair number and a message sequence number.
const MASK_24: u32 = 0x00ff_ffff;

/// Defines a number of 24 bits.
macro_rules! number_24 {
    ($(#[$attr:meta])* $name:ident) => {
        $(#[$attr])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(u32);

        impl $name {
            /// Keeps the low 24 bits of `value`.
            #[inline]
            pub const fn new(value: u32) -> Self {
                Self(value & MASK_24)
            }

            /// The number as an integer below 2^24.
            #[inline]
            pub const fn get(self) -> u32 {
                self.0
            }

            /// From its three bytes on the wire.
            #[inline]
            pub const fn from_be_bytes(bytes: [u8; 3]) -> Self {
                Self(from_be24(bytes))
            }

            /// The three bytes on the wire.
            #[inline]
            pub const fn to_be_bytes(self) -> [u8; 3] {
                be24(self.0)
            }
        }
    };
}

/// Defines a number of 24 bits that wraps: a sequence number.
macro_rules! sequence_24 {
    ($(#[$attr:meta])* $name:ident) => {
        number_24! {
            $(#[$attr])*
            $name
        }

        impl $name {
            /// `self + n`, wrapping at 2^24.
            #[inline]
            #[must_use]
            pub const fn wrapping_add(self, n: u32) -> Self {
                Self::new(self.0.wrapping_add(n))
            }

            /// Signed distance from `origin` to `self`, in -2^23 ..= 2^23-1.
            ///
            /// Negative: `self` lies in the half of the space before `origin` (IBTA vol1 9.7.1).
            #[inline]
            pub const fn diff(self, origin: Self) -> i32 {
                let d = self.0.wrapping_sub(origin.0) << 8;
                (d.cast_signed()) >> 8
            }
        }
    };
}

sequence_24! {
    /// Packet sequence number: 24 bits that wrap.
    ///
    /// There is no `Ord`: whether one PSN is before another only makes sense inside half of the
    /// space, which is what [`Psn::diff`] and its friends compute.
    ///
    /// ```
    /// # use feroce_wire::Psn;
    /// assert_eq!(Psn::new(0x00ff_ffff).next(), Psn::new(0));
    /// ```
    Psn
}
sequence_24! {
    /// Message sequence number of an acknowledgement: 24 bits that wrap.
    Msn
}
number_24! {
    /// Queue pair number: 24 bits.
    ///
    /// ```
    /// # use feroce_wire::Qpn;
    /// assert_eq!(Qpn::new(17).to_string(), "0x000011");
    /// ```
    #[derive(PartialOrd, Ord)]
    Qpn
}
number_24! {
    /// Number of a shared receive queue, as carried by XRC packets: 24 bits.
    ///
    /// ```
    /// # use feroce_wire::Srqn;
    /// assert_eq!(Srqn::new(0x0100_0003), Srqn::new(3));
    /// ```
    #[derive(PartialOrd, Ord, Debug)]
    Srqn
}

impl Psn {
    /// `self - n`, wrapping at 2^24.
    #[inline]
    #[must_use]
    pub const fn wrapping_sub(self, n: u32) -> Self {
        Self::new(self.0.wrapping_sub(n))
    }

    /// The PSN that follows.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Self {
        self.wrapping_add(1)
    }

    /// The PSN before.
    #[inline]
    #[must_use]
    pub const fn prev(self) -> Self {
        self.wrapping_sub(1)
    }

    /// Unsigned distance from `origin` forward to `self`, below 2^24.
    #[inline]
    pub const fn since(self, origin: Self) -> u32 {
        self.0.wrapping_sub(origin.0) & MASK_24
    }

    /// Whether `self` comes before `other` (half-window comparison).
    #[inline]
    pub const fn is_before(self, other: Self) -> bool {
        self.diff(other) < 0
    }

    /// Whether `self` comes after `other` (half-window comparison).
    #[inline]
    pub const fn is_after(self, other: Self) -> bool {
        self.diff(other) > 0
    }
}

impl Qpn {
    /// Subnet management interface.
    pub const QP0: Self = Self(0);
    /// General services interface; connection management runs on it.
    pub const QP1: Self = Self(1);
    /// Destination of every multicast packet (IBTA vol1 10.5).
    pub const MULTICAST: Self = Self(MASK_24);
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "psn:{:06x}", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:06x}", self.0)
    }
}

impl fmt::Debug for Msn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "msn:{}", self.0)
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qp:{:06x}", self.0)
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:06x}", self.0)
    }
}

/// Defines a transparent integer newtype with hexadecimal `Debug` and `Display`.
macro_rules! plain_id {
    ($(#[$doc:meta])* $name:ident($int:ty), $width:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(pub $int);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#0", $width, "x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{:#0", $width, "x}"), self.0)
            }
        }
    };
}

plain_id! {
    /// Remote key: names memory to a peer. Index in the upper 24 bits, tag in the low 8.
    Rkey(u32), "10"
}
plain_id! {
    /// Local key: names memory to the local adapter. Index in the upper 24 bits, tag in the low 8.
    Lkey(u32), "10"
}
plain_id! {
    /// Queue key: a datagram is accepted only with the key of the queue pair.
    Qkey(u32), "10"
}
plain_id! {
    /// Partition key: 15 bits of partition and one bit of membership.
    Pkey(u16), "6"
}
plain_id! {
    /// Local identifier of a port on an InfiniBand subnet; zero on Ethernet.
    Lid(u16), "6"
}
plain_id! {
    /// Immediate data, carried untouched from sender to receiver.
    Imm(u32), "10"
}

impl Qkey {
    /// Whether only privileged consumers may use it (IBTA vol1 10.2.5).
    #[inline]
    pub const fn is_privileged(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

impl Lid {
    /// Every port accepts a subnet management packet with it (IBTA vol1 4.1.3).
    pub const PERMISSIVE: Self = Self(0xffff);

    /// Whether it names a multicast group: 0xc000 to 0xfffe (IBTA vol1 4.1.3).
    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0 >= 0xc000 && self.0 != 0xffff
    }
}

impl Pkey {
    /// Full member of the default partition.
    pub const DEFAULT: Self = Self(0xffff);

    /// Whether a packet with `self` may reach a port entry `other`: same partition, and at least
    /// one of the two a full member (IBTA vol1 10.9.3).
    #[inline]
    pub const fn matches(self, other: Self) -> bool {
        let same = self.0 & 0x7fff == other.0 & 0x7fff;
        let full = (self.0 | other.0) & 0x8000 != 0;
        same && full && self.0 & 0x7fff != 0
    }
}

/// Global identifier of a port or a multicast group: an IPv6 address, IPv4 mapped into it.
///
/// ```
/// # use feroce_wire::Gid;
/// let gid = Gid::from_ipv4([192, 0, 2, 7]);
/// assert_eq!(gid.to_string(), "::ffff:192.0.2.7");
/// assert_eq!(gid.as_ipv4(), Some([192, 0, 2, 7]));
/// ```
#[doc(alias = "ibv_gid")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// All zeros: an empty entry of a GID table.
    pub const ZERO: Self = Self([0; 16]);

    /// The IPv4-mapped form `::ffff:a.b.c.d`.
    #[inline]
    pub const fn from_ipv4(addr: [u8; 4]) -> Self {
        let [a, b, c, d] = addr;
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    /// The IPv4 address, if this is an IPv4-mapped GID.
    #[inline]
    pub fn as_ipv4(self) -> Option<[u8; 4]> {
        let b = self.0;
        if b[..10].iter().all(|&x| x == 0) && b[10] == 0xff && b[11] == 0xff {
            Some([b[12], b[13], b[14], b[15]])
        } else {
            None
        }
    }

    /// The address that it holds, as people write it: an IPv4 address if it is a mapped one.
    pub fn to_ip(self) -> IpAddr {
        self.as_ipv4().map_or_else(|| IpAddr::from(self.0), IpAddr::from)
    }

    /// Whether it names a multicast group: `ff00::/8`, or an IPv4 multicast address, mapped.
    #[inline]
    pub fn is_multicast(self) -> bool {
        self.0[0] == 0xff || self.as_ipv4().is_some_and(|[a, ..]| a & 0xf0 == 0xe0)
    }

    /// Whether every byte is zero.
    #[inline]
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_ipv4() {
            Some(v4) => write!(f, "::ffff:{}", core::net::Ipv4Addr::from(v4)),
            None => write!(f, "{}", core::net::Ipv6Addr::from(self.0)),
        }
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gid:{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_wraps_and_compares_in_half_windows() {
        let last = Psn::new(0x00ff_ffff);
        assert_eq!(last.next(), Psn::new(0));
        assert_eq!(Psn::new(0).prev(), last);
        assert_eq!(Psn::new(2).diff(last), 3);
        assert_eq!(last.diff(Psn::new(2)), -3);
        assert_eq!(Psn::new(0x0080_0000).diff(Psn::new(0)), -0x0080_0000);
        assert_eq!(Psn::new(0x007f_ffff).diff(Psn::new(0)), 0x007f_ffff);
        assert_eq!(Psn::new(1).since(last), 2);
        assert!(last.is_before(Psn::new(0)) && Psn::new(0).is_after(last));
        assert_eq!(Psn::from_be_bytes(last.to_be_bytes()), last);
    }

    #[test]
    fn pkey_needs_one_full_member() {
        assert!(Pkey(0xffff).matches(Pkey(0x7fff)));
        assert!(!Pkey(0x7fff).matches(Pkey(0x7fff)));
        assert!(!Pkey(0xffff).matches(Pkey(0x8001)));
        assert!(!Pkey(0x8000).matches(Pkey(0x8000)));
    }

    #[test]
    fn lid_knows_multicast() {
        assert!(Lid(0xc000).is_multicast() && Lid(0xfffe).is_multicast());
        assert!(!Lid(0xbfff).is_multicast() && !Lid(0xffff).is_multicast());
    }

    #[test]
    fn gid_knows_ipv4_and_multicast() {
        let gid = Gid::from_ipv4([10, 0, 0, 1]);
        assert_eq!(gid.as_ipv4(), Some([10, 0, 0, 1]));
        assert!(!gid.is_multicast());
        assert!(Gid::from_ipv4([239, 1, 1, 1]).is_multicast());
    }
}
