//! How types and constants are declared, so that they can also be listed.

/// A type as it lies in memory.
pub(crate) struct Layout {
    /// Its name.
    pub(crate) name: &'static str,
    /// Whether it is a union.
    pub(crate) is_union: bool,
    /// Its size in bytes.
    pub(crate) size: usize,
    /// Its members: name, type, offset.
    pub(crate) members: &'static [(&'static str, &'static str, usize)],
}

/// A constant.
pub(crate) struct Value {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its value.
    pub(crate) value: i128,
}

/// Declares structures and unions as C lays them out, all members open to the crate, and `LAYOUTS`.
macro_rules! c_types {
    ($($(#[$meta:meta])* $kind:ident $name:ident { $($member:ident: $type:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub(crate) $kind $name {
                $(pub(crate) $member: $type,)*
            }
        )*

        pub(super) const LAYOUTS: &[$crate::abi::Layout] = &[$($crate::abi::Layout {
            name: stringify!($name),
            is_union: matches!(stringify!($kind).as_bytes(), b"union"),
            size: size_of::<$name>(),
            members: &[$((
                stringify!($member),
                stringify!($type),
                core::mem::offset_of!($name, $member),
            ),)*],
        },)*];
    };
}

/// Declares enumerations of C as numbers, since a program may pass any number, and `VALUES`.
macro_rules! c_values {
    ($($(#[$meta:meta])* $name:ident: $type:ty { $($constant:ident = $value:expr,)* })*) => {
        $(
            $(#[$meta])*
            pub(crate) type $name = $type;
            $(pub(crate) const $constant: $type = $value;)*
        )*

        pub(super) const VALUES: &[$crate::abi::Value] = &[$($($crate::abi::Value {
            name: stringify!($constant),
            value: $constant as i128,
        },)*)*];
    };
}
