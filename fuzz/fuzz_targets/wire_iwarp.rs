//! See `feroce_fuzz::wire_iwarp`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feroce_fuzz::wire_iwarp(bytes));
