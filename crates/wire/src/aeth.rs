//! ACK extended transport header (IBTA vol1 9.3.5), its syndrome, credits and RNR timers.

use crate::Msn;
use crate::field::fixed_header;

mod field {
    use crate::field::Field;

    /// Reserved (1), type (2), value (5).
    pub(super) const SYNDROME: Field<0, 1> = Field;
    pub(super) const MSN: Field<1, 3> = Field;

    pub(super) const TYPE_MASK: u8 = 0xe0;
    pub(super) const VALUE_MASK: u8 = 0x1f;
    pub(super) const ACK: u8 = 0x00;
    pub(super) const RNR_NAK: u8 = 0x20;
    pub(super) const NAK: u8 = 0x60;
}

/// Result of a request and the count of messages completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Positive, negative or not ready.
    pub syndrome: Syndrome,
    /// Messages the responder has completed.
    pub msn: Msn,
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        field::SYNDROME.put(out, [self.syndrome.to_u8()]);
        field::MSN.put(out, self.msn.to_be_bytes());
    }
}

fixed_header! {
    /// An ACK extended transport header in place.
    AethView => Aeth
}

impl AethView<'_> {
    /// Every field at once.
    #[inline]
    pub fn to_repr(self) -> Aeth {
        Aeth { syndrome: self.syndrome(), msn: self.msn() }
    }

    /// Positive, negative or not ready.
    #[inline]
    pub fn syndrome(self) -> Syndrome {
        let [byte] = field::SYNDROME.get(self.0);
        Syndrome::from_u8(byte)
    }

    /// Messages the responder has completed.
    #[inline]
    pub fn msn(self) -> Msn {
        Msn::from_be_bytes(field::MSN.get(self.0))
    }
}

/// What an acknowledgement says (IBTA vol1 9.7.5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Everything up to this packet arrived.
    Ack {
        /// End-to-end credits granted.
        credits: CreditCode,
    },
    /// No receive was posted; try again later.
    RnrNak {
        /// Least time to wait.
        timer: RnrTimer,
    },
    /// The request failed.
    Nak(NakCode),
    /// A byte with no meaning, kept as it is.
    Reserved(u8),
}

impl Syndrome {
    /// From the byte on the wire.
    #[inline]
    pub const fn from_u8(byte: u8) -> Self {
        let value = byte & field::VALUE_MASK;
        match byte & field::TYPE_MASK {
            field::ACK => Self::Ack { credits: CreditCode(value) },
            field::RNR_NAK => Self::RnrNak { timer: RnrTimer(value) },
            field::NAK => match NakCode::from_u8(value) {
                Some(code) => Self::Nak(code),
                None => Self::Reserved(byte),
            },
            _ => Self::Reserved(byte),
        }
    }

    /// The byte on the wire.
    #[inline]
    pub const fn to_u8(self) -> u8 {
        match self {
            Self::Ack { credits } => field::ACK | (credits.0 & field::VALUE_MASK),
            Self::RnrNak { timer } => field::RNR_NAK | (timer.0 & field::VALUE_MASK),
            Self::Nak(code) => field::NAK | code as u8,
            Self::Reserved(byte) => byte,
        }
    }
}

/// Why a request was refused (IBTA vol1 9.7.5.2).
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NakCode {
    /// A packet is missing before this one.
    PsnSequence = 0,
    /// The request makes no sense or exceeds what the responder agreed to.
    InvalidRequest = 1,
    /// Key, bounds or rights of the memory do not allow it.
    RemoteAccess = 2,
    /// The responder could not do it for a reason of its own.
    RemoteOperational = 3,
    /// Reliable datagram only.
    InvalidRdRequest = 4,
}

impl NakCode {
    /// From the low five bits of the syndrome.
    #[inline]
    pub const fn from_u8(value: u8) -> Option<Self> {
        match value {
            0 => Some(Self::PsnSequence),
            1 => Some(Self::InvalidRequest),
            2 => Some(Self::RemoteAccess),
            3 => Some(Self::RemoteOperational),
            4 => Some(Self::InvalidRdRequest),
            _ => None,
        }
    }
}

/// End-to-end flow control credits, five bits (IBTA vol1 9.7.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CreditCode(u8);

impl CreditCode {
    /// The responder does not do end-to-end flow control.
    pub const NONE: Self = Self(31);

    /// Credits of each code.
    const TABLE: [u32; 31] = [
        0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
        2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
    ];

    /// Keeps the low five bits of `code`.
    #[inline]
    pub const fn new(code: u8) -> Self {
        Self(code & field::VALUE_MASK)
    }

    /// The code, 0 to 31.
    #[inline]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Receive requests granted; `None` without end-to-end flow control.
    #[inline]
    pub fn credits(self) -> Option<u32> {
        Self::TABLE.get(usize::from(self.0)).copied()
    }

    /// The code that grants the most without exceeding `credits`.
    #[inline]
    pub const fn at_most(credits: u32) -> Self {
        let mut code = 30_u8;
        while code > 0 && Self::TABLE[code as usize] > credits {
            code -= 1;
        }
        Self(code)
    }
}

/// How long to wait after "receiver not ready", five bits (IBTA vol1 9.7.5.2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// Tens of microseconds for each code.
    const TABLE: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];

    /// Keeps the low five bits of `code`.
    #[inline]
    pub const fn new(code: u8) -> Self {
        Self(code & field::VALUE_MASK)
    }

    /// The code, 0 to 31.
    #[inline]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The time in nanoseconds, 10 us to 655.36 ms.
    #[inline]
    pub const fn nanos(self) -> u64 {
        Self::TABLE[(self.0 & field::VALUE_MASK) as usize] as u64 * 10_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndromes_are_lossless() {
        for byte in 0..=u8::MAX {
            assert_eq!(Syndrome::from_u8(byte).to_u8(), byte);
        }
        assert_eq!(Syndrome::from_u8(0x1f), Syndrome::Ack { credits: CreditCode::NONE });
        assert_eq!(Syndrome::from_u8(0x2e), Syndrome::RnrNak { timer: RnrTimer::new(14) });
        assert_eq!(Syndrome::from_u8(0x60), Syndrome::Nak(NakCode::PsnSequence));
        assert_eq!(Syndrome::from_u8(0x61), Syndrome::Nak(NakCode::InvalidRequest));
        assert_eq!(Syndrome::from_u8(0x62), Syndrome::Nak(NakCode::RemoteAccess));
        assert_eq!(Syndrome::from_u8(0x63), Syndrome::Nak(NakCode::RemoteOperational));
        assert_eq!(Syndrome::from_u8(0x64), Syndrome::Nak(NakCode::InvalidRdRequest));
        for reserved in [0x40, 0x5f, 0x65, 0x7f, 0x80, 0x9f, 0xe0, 0xff] {
            assert_eq!(Syndrome::from_u8(reserved), Syndrome::Reserved(reserved));
        }
    }

    /// From the third code on, two steps double the credits.
    #[test]
    fn credits_grow_by_the_rule() {
        let credits = |code| CreditCode::new(code).credits();
        assert_eq!(
            [credits(0), credits(1), credits(2), credits(3)].map(Option::unwrap),
            [0, 1, 2, 3]
        );
        for code in 4..31 {
            assert_eq!(credits(code), credits(code - 2).map(|n| n * 2), "code {code}");
        }
        assert_eq!(credits(30), Some(32_768));
        assert_eq!(CreditCode::NONE.credits(), None);
    }

    #[test]
    fn at_most_never_promises_more() {
        for n in (0..70_000).chain([u32::MAX]) {
            let code = CreditCode::at_most(n);
            assert!(code.credits().is_some_and(|c| c <= n), "{n}");
            let next = CreditCode::new(code.get() + 1).credits();
            assert!(next.is_none_or(|c| c > n), "{n}");
        }
    }

    /// From the third code on, two steps double the time; code zero continues code 31.
    #[test]
    fn rnr_timers_grow_by_the_rule() {
        let micros = |code| RnrTimer::new(code).nanos() / 1_000;
        assert_eq!([1, 2, 3, 4].map(micros), [10, 20, 30, 40]);
        for code in 5..32 {
            assert_eq!(micros(code), micros(code - 2) * 2, "code {code}");
        }
        assert_eq!(micros(31), 491_520);
        assert_eq!(micros(0), 655_360);
        assert_eq!(RnrTimer::new(0x20 | 14).nanos(), 1_280_000);
    }
}
