//! The examples, each with its own test. They are one program here, which is built faster than ten.

#[path = "../examples/async_echo.rs"]
mod async_echo;
#[path = "../examples/atomics.rs"]
mod atomics;
#[path = "../examples/cm_server.rs"]
#[expect(dead_code, reason = "its test does what `main` does, with both ends")]
mod cm_server;
#[path = "../examples/error_handling.rs"]
mod error_handling;
#[path = "../examples/faults.rs"]
mod faults;
#[path = "../examples/file_transfer.rs"]
#[expect(dead_code, reason = "its test does what `main` does, with both ends")]
mod file_transfer;
#[path = "../examples/rc_write.rs"]
mod rc_write;
#[path = "../examples/send_recv.rs"]
mod send_recv;
#[path = "../examples/srq_server.rs"]
mod srq_server;
#[path = "../examples/ud_multicast.rs"]
mod ud_multicast;
