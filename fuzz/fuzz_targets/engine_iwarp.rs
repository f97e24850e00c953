//! See `feroce_fuzz::engine_iwarp`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feroce_fuzz::engine_iwarp(bytes));
