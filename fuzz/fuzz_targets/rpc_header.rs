//! See `feroce_fuzz::rpc_header`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feroce_fuzz::rpc_header(bytes));
