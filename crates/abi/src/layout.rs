//! How types and constants are declared, so that they can also be listed.

/// A type as it lies in memory.
pub struct Layout {
    /// Its name.
    pub name: &'static str,
    /// Whether it is a union.
    pub is_union: bool,
    /// Its size in bytes.
    pub size: usize,
    /// Its members: name, type, offset.
    pub members: &'static [(&'static str, &'static str, usize)],
}

/// A constant.
pub struct Value {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: i128,
}

/// Declares structures and unions as C lays them out, all members open to the crate, and `LAYOUTS`.
macro_rules! c_types {
    ($($(#[$meta:meta])* $kind:ident $name:ident { $($member:ident: $type:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub $kind $name {
                $(pub $member: $type,)*
            }
        )*

        pub(crate) const LAYOUTS: &[$crate::Layout] = &[$($crate::Layout {
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
            pub type $name = $type;
            $(pub const $constant: $type = $value;)*
        )*

        pub(crate) const VALUES: &[$crate::Value] = &[$($($crate::Value {
            name: stringify!($constant),
            value: $constant as i128,
        },)*)*];
    };
}
