//! Fields of fixed headers, with bounds the compiler checks.

/// `W` bytes at offset `AT` of a header.
///
/// Reading and writing are checked against the header length when they are compiled, so a layout
/// that does not fit is a build error and no access can panic.
#[derive(Clone, Copy)]
pub(crate) struct Field<const AT: usize, const W: usize>;

impl<const AT: usize, const W: usize> Field<AT, W> {
    /// The bytes of the field.
    #[inline]
    pub(crate) fn get<const N: usize>(self, header: &[u8; N]) -> [u8; W] {
        const { assert!(AT + W <= N) };
        let mut out = [0; W];
        out.copy_from_slice(&header[AT..AT + W]);
        out
    }

    /// Overwrites the bytes of the field.
    #[inline]
    pub(crate) fn put<const N: usize>(self, header: &mut [u8; N], value: [u8; W]) {
        const { assert!(AT + W <= N) };
        header[AT..AT + W].copy_from_slice(&value);
    }
}

/// The low three bytes of a 24-bit number, most significant first.
#[inline]
pub(crate) const fn be24(value: u32) -> [u8; 3] {
    let [_, a, b, c] = value.to_be_bytes();
    [a, b, c]
}

/// A 24-bit number from three bytes, most significant first.
#[inline]
pub(crate) const fn from_be24(bytes: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]])
}

/// Defines the borrowed view of a fixed-length header and the `parse` of its repr on top of it.
///
/// The file provides `to_repr` on the view, and `LEN` and `emit` on the repr.
macro_rules! fixed_header {
    ($(#[$doc:meta])* $view:ident => $repr:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $view<'a>(&'a [u8; $repr::LEN]);

        impl<'a> $view<'a> {
            /// Borrows the header at the start of `bytes`; what follows it is ignored.
            #[inline]
            pub fn new_checked(bytes: &'a [u8]) -> Result<Self, $crate::Truncated> {
                match bytes.first_chunk() {
                    Some(head) => Ok(Self(head)),
                    None => Err($crate::Truncated),
                }
            }

            /// The bytes of the header.
            #[inline]
            pub const fn as_bytes(self) -> &'a [u8; $repr::LEN] {
                self.0
            }
        }

        impl<'a> From<&'a [u8; $repr::LEN]> for $view<'a> {
            #[inline]
            fn from(bytes: &'a [u8; $repr::LEN]) -> Self {
                Self(bytes)
            }
        }

        impl $repr {
            /// Reads the header at the start of `bytes` and returns it with what follows.
            #[inline]
            pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), $crate::Truncated> {
                match bytes.split_first_chunk() {
                    Some((head, rest)) => Ok(($view(head).to_repr(), rest)),
                    None => Err($crate::Truncated),
                }
            }
        }
    };
}
pub(crate) use fixed_header;
