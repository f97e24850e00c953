//! See `feroce_fuzz::wire_frame`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feroce_fuzz::wire_frame(bytes));
