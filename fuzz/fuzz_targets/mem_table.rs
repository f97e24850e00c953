//! See `feroce_fuzz::mem_table`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feroce_fuzz::mem_table(bytes));
