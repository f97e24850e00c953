//! See `feroce_fuzz::umad_messages`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feroce_fuzz::umad_messages(bytes));
