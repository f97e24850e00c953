//! How a line of a table becomes a symbol.
//!
//! Behind every symbol is a jump: the assembler ties a name to a version only where it sees the
//! definition, and a Rust function is defined elsewhere.

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {function}"
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {function}"
    };
}

/// Exports functions. A list of nodes exports under each of them; the first is the one that a
/// program gets which asks for none.
macro_rules! exports {
    ($($($node:literal),+ { $($name:ident => $function:path,)* })*) => {
        $(exports!(@group [$($node)+] { $($name => $function,)* });)*
    };
    (@group $nodes:tt { $($name:ident => $function:path,)* }) => {
        $(exports!(@symbol $nodes $name $function);)*
    };
    (@symbol [$first:literal $($other:literal)*] $name:ident $function:path) => {
        exports!(@version "@@" $first $name $function);
        $(exports!(@version "@" $other $name $function);)*
    };
    (@version $at:literal $node:literal $name:ident $function:path) => {
        core::arch::global_asm!(
            concat!(".pushsection .text.export.", stringify!($name), ",\"ax\",%progbits"),
            ".p2align 4",
            concat!(".globl __feroce_", stringify!($name), "_", $node),
            concat!(".type __feroce_", stringify!($name), "_", $node, ",%function"),
            concat!("__feroce_", stringify!($name), "_", $node, ":"),
            jump!(),
            concat!(
                ".size __feroce_", stringify!($name), "_", $node,
                ", . - __feroce_", stringify!($name), "_", $node
            ),
            concat!(
                ".symver __feroce_", stringify!($name), "_", $node,
                ",", stringify!($name), $at, $node
            ),
            ".popsection",
            function = sym $function,
        );
    };
}
