//! See `feroce_fuzz::nvme`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feroce_fuzz::nvme(bytes));
