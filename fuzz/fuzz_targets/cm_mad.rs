//! See `feroce_fuzz::cm_mad`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feroce_fuzz::cm_mad(bytes));
