//! See `feroce_fuzz::subnet_trunk`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feroce_fuzz::subnet_trunk(bytes));
