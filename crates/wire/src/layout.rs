//! Layouts of records whose fields are not whole bytes: management attributes.
//!
//! A layout is a table of fields with their first bit and their number of bits, counted from the
//! most significant bit of the first byte, as the specification counts them. [`layout!`] makes the
//! repr and the view from it. Bits that no field names are reserved: they are written as zeros and
//! not kept.

/// A value that a field of a layout can hold.
pub(crate) trait Value: Sized {
    /// Reads the `bits` bits from bit `at` on.
    fn get(bytes: &[u8], at: usize, bits: usize) -> Self;

    /// Writes them. The field is zero before; bits of the value beyond its width are dropped.
    fn put(&self, bytes: &mut [u8], at: usize, bits: usize);
}

/// A number of up to 64 bits. Bits beyond the end of `bytes` read as zeros.
fn get_bits(bytes: &[u8], at: usize, bits: usize) -> u64 {
    let end = at + bits;
    let window = bytes.get(at / 8..end.div_ceil(8)).unwrap_or_default();
    let value = window.iter().fold(0_u128, |value, byte| (value << 8) | u128::from(*byte));
    let mask = (1_u128 << bits) - 1;
    #[expect(clippy::cast_possible_truncation, reason = "the mask has at most 64 bits")]
    {
        ((value >> (end.next_multiple_of(8) - end)) & mask) as u64
    }
}

/// Writes a number of up to 64 bits over zeros.
fn put_bits(bytes: &mut [u8], at: usize, bits: usize, value: u64) {
    let end = at + bits;
    let mask = (1_u128 << bits) - 1;
    let mut value = (u128::from(value) & mask) << (end.next_multiple_of(8) - end);
    let window = bytes.get_mut(at / 8..end.div_ceil(8)).unwrap_or_default();
    for byte in window.iter_mut().rev() {
        *byte |= value.to_le_bytes()[0];
        value >>= 8;
    }
}

/// Implements [`Value`] for numbers and their newtypes.
macro_rules! numbers {
    ($($type:ty: |$bits:ident| $from:expr, |$value:ident| $to:expr;)*) => {
        $(impl Value for $type {
            #[inline]
            #[allow(clippy::cast_possible_truncation, reason = "check() bounds the width")]
            fn get(bytes: &[u8], at: usize, bits: usize) -> Self {
                let $bits = get_bits(bytes, at, bits);
                $from
            }

            #[inline]
            fn put(&self, bytes: &mut [u8], at: usize, bits: usize) {
                let $value = *self;
                put_bits(bytes, at, bits, $to);
            }
        })*
    };
}

numbers! {
    u8: |bits| bits as u8, |value| value.into();
    u16: |bits| bits as u16, |value| value.into();
    u32: |bits| bits as u32, |value| value.into();
    u64: |bits| bits, |value| value;
    bool: |bits| bits != 0, |value| value.into();
    crate::Lid: |bits| Self(bits as u16), |value| value.0.into();
    crate::Pkey: |bits| Self(bits as u16), |value| value.0.into();
    crate::Qkey: |bits| Self(bits as u32), |value| value.0.into();
    crate::Qpn: |bits| Self::new(bits as u32), |value| value.get().into();
}

impl<T: Value, const N: usize> Value for [T; N] {
    #[inline]
    fn get(bytes: &[u8], at: usize, bits: usize) -> Self {
        let width = bits / N;
        core::array::from_fn(|i| T::get(bytes, at + i * width, width))
    }

    #[inline]
    fn put(&self, bytes: &mut [u8], at: usize, bits: usize) {
        let width = bits / N;
        for (i, value) in self.iter().enumerate() {
            value.put(bytes, at + i * width, width);
        }
    }
}

impl Value for crate::Gid {
    #[inline]
    fn get(bytes: &[u8], at: usize, bits: usize) -> Self {
        Self(Value::get(bytes, at, bits))
    }

    #[inline]
    fn put(&self, bytes: &mut [u8], at: usize, bits: usize) {
        self.0.put(bytes, at, bits);
    }
}

/// Refuses, at compile time, fields that overlap, are out of order, leave the record or are wider
/// than their type; and wide ones that do not begin and end with a byte.
pub(crate) const fn check(len: usize, fields: &[(usize, usize, usize)]) {
    let (mut i, mut end) = (0, 0);
    while i < fields.len() {
        let (at, bits, size) = fields[i];
        assert!(at >= end, "fields overlap or are out of order");
        assert!(bits > 0 && (bits <= 64 || (at % 8 == 0 && bits % 8 == 0)), "not whole bytes");
        assert!(bits.div_ceil(8) <= size, "the field is wider than its type");
        end = at + bits;
        i += 1;
    }
    assert!(end <= 8 * len, "fields leave the record");
}

/// Defines the repr and the view of a record from the table of its fields.
macro_rules! layout {
    (
        $(#[$doc:meta])*
        $repr:ident, $view:ident, $len:literal {
            $($(#[$field_doc:meta])* $field:ident: $type:ty = $at:literal, $bits:literal;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $repr {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $repr {
            /// Bytes on the wire.
            pub const LEN: usize = $len;

            /// Writes the record. Bits of a field beyond its width are dropped.
            pub fn emit(&self, out: &mut [u8; Self::LEN]) {
                out.fill(0);
                $($crate::layout::Value::put(&self.$field, out, $at, $bits);)*
            }

            /// The record as it travels.
            pub fn to_bytes(self) -> [u8; Self::LEN] {
                let mut out = [0; Self::LEN];
                self.emit(&mut out);
                out
            }
        }

        const _: () = $crate::layout::check(
            $len,
            &[$(($at, $bits, size_of::<$type>())),*],
        );

        $crate::field::fixed_header! {
            #[doc = concat!("A [`", stringify!($repr), "`] in place.")]
            $view => $repr
        }

        impl $view<'_> {
            /// Every field at once.
            pub fn to_repr(self) -> $repr {
                $repr { $($field: self.$field(),)* }
            }

            $($(#[$field_doc])* #[inline] pub fn $field(self) -> $type {
                $crate::layout::Value::get(self.0, $at, $bits)
            })*
        }

        /// All zeros.
        impl Default for $repr {
            fn default() -> Self {
                $view(&[0; $len]).to_repr()
            }
        }

        impl $crate::layout::Value for $repr {
            fn get(bytes: &[u8], at: usize, _bits: usize) -> Self {
                let bytes = bytes.get(at / 8..).unwrap_or_default();
                $view::new_checked(bytes).map($view::to_repr).unwrap_or_default()
            }

            fn put(&self, bytes: &mut [u8], at: usize, _bits: usize) {
                if let Some(out) = bytes.get_mut(at / 8..).and_then(|rest| rest.first_chunk_mut()) {
                    self.emit(out);
                }
            }
        }
    };
}
pub(crate) use layout;

/// Defines a code: a number, of which some values have names. Unknown codes are data.
macro_rules! codes {
    (
        $(#[$doc:meta])*
        $name:ident($int:ty) {
            $($(#[$code_doc:meta])* $code:ident = $value:literal, $text:literal;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub $int);

        impl $name {
            $($(#[$code_doc])* pub const $code: Self = Self($value);)*

            /// Its name, unless it has none.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$code => Some($text),)*
                    _ => None,
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "{:#04x}", self.0),
                }
            }
        }

        impl $crate::layout::Value for $name {
            #[inline]
            fn get(bytes: &[u8], at: usize, bits: usize) -> Self {
                Self($crate::layout::Value::get(bytes, at, bits))
            }

            #[inline]
            fn put(&self, bytes: &mut [u8], at: usize, bits: usize) {
                self.0.put(bytes, at, bits);
            }
        }
    };
}
pub(crate) use codes;

#[cfg(test)]
#[expect(unreachable_pub, dead_code, reason = "layouts are for other crates")]
mod tests {
    layout! {
        /// Fields at awkward places.
        Odd, OddView, 11 {
            /// Crosses a byte.
            a: u8 = 3, 7;
            /// Ends in the middle of one.
            b: u16 = 10, 11;
            /// Nine bytes hold it.
            c: u64 = 21, 64;
            /// The last one.
            d: bool = 87, 1;
        }
    }

    #[test]
    fn fields_that_cross_bytes_are_kept_apart() {
        let odd = Odd { a: 0x55, b: 0x0401, c: 0x8000_0000_0000_0001, d: true };
        let bytes = odd.to_bytes();
        assert_eq!(bytes, [0x15, 0x60, 0x0c, 0, 0, 0, 0, 0, 0, 0, 0x09]);
        assert_eq!(Odd::parse(&bytes), Ok((odd, &[][..])));
        let ones = Odd { a: 0xff, b: 0xffff, c: u64::MAX, d: true };
        let mut expected = [0xff; 11];
        (expected[0], expected[10]) = (0x1f, 0xf9);
        assert_eq!(ones.to_bytes(), expected);
        assert_eq!(OddView::new_checked(&bytes[..10]), Err(crate::Truncated));
    }
}
