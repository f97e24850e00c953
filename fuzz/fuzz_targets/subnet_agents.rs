//! See `feroce_fuzz::subnet_agents`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feroce_fuzz::subnet_agents(bytes));
