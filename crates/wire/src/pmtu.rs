//! Path MTU.

/// Largest payload of one packet on a path (IBTA vol1 9.5, codes of 14.2.5.6).
///
/// ```
/// # use feroce_wire::Pmtu;
/// assert_eq!(Pmtu::at_most(1404), Some(Pmtu::B1024));
/// assert_eq!(Pmtu::B4096.bytes(), 4096);
/// ```
#[doc(alias = "ibv_mtu")]
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Pmtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    #[default]
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Pmtu {
    /// Every value, smallest first.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// Bytes of payload.
    #[inline]
    pub const fn bytes(self) -> usize {
        128 << (self as u8)
    }

    /// The value of exactly `bytes` bytes.
    #[inline]
    pub const fn from_bytes(bytes: usize) -> Option<Self> {
        match bytes {
            256 => Some(Self::B256),
            512 => Some(Self::B512),
            1024 => Some(Self::B1024),
            2048 => Some(Self::B2048),
            4096 => Some(Self::B4096),
            _ => None,
        }
    }

    /// The greatest value whose payload fits in `bytes`.
    #[inline]
    pub const fn at_most(bytes: usize) -> Option<Self> {
        match bytes {
            0..256 => None,
            256..512 => Some(Self::B256),
            512..1024 => Some(Self::B512),
            1024..2048 => Some(Self::B1024),
            2048..4096 => Some(Self::B2048),
            _ => Some(Self::B4096),
        }
    }

    /// From its code in verbs and management messages, 1 to 5.
    #[inline]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::B256),
            2 => Some(Self::B512),
            3 => Some(Self::B1024),
            4 => Some(Self::B2048),
            5 => Some(Self::B4096),
            _ => None,
        }
    }

    /// Its code in verbs and management messages, 1 to 5.
    #[inline]
    pub const fn code(self) -> u8 {
        self as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_sizes_agree() {
        for (i, mtu) in Pmtu::ALL.into_iter().enumerate() {
            assert_eq!(mtu.bytes(), 256 << i);
            assert_eq!(Pmtu::from_bytes(mtu.bytes()), Some(mtu));
            assert_eq!(Pmtu::from_code(mtu.code()), Some(mtu));
            assert_eq!(Pmtu::at_most(mtu.bytes()), Some(mtu));
            assert_eq!(Pmtu::at_most(mtu.bytes() * 2 - 1), Some(mtu));
        }
        assert_eq!(Pmtu::from_code(0), None);
        assert_eq!(Pmtu::from_code(6), None);
        assert_eq!(Pmtu::from_bytes(1500), None);
        assert_eq!(Pmtu::at_most(255), None);
        assert_eq!(Pmtu::at_most(usize::MAX), Some(Pmtu::B4096));
    }
}
