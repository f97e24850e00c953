//! See `feroce_fuzz::cm_manager`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feroce_fuzz::cm_manager(bytes));
