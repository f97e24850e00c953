//! TCP ports for the programs that tests start.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Ports below those that the kernel chooses for connections. Other tests make many connections at
/// the same time.
const FIRST: u32 = 10_000;
const COUNT: u32 = 20_000;

/// A TCP port that no program uses now. Tests that run at the same time, each in a process of its
/// own, begin to look at different places.
pub(crate) fn free_port() -> u16 {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id().wrapping_mul(31);
    (0..COUNT)
        .map(|_| begin.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed)))
        .map(|n| (FIRST + n % COUNT) as u16)
        .find(|&port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok())
        .expect("a free port")
}
