//! The settings of a socket.

use core::ffi::c_int;
use std::fs;
use std::sync::OnceLock;
use std::time::Duration;

use feroce::wire::cm::IP_CM_LEN;

use crate::protocol::{scale, unscale};

/// Where an administrator changes the defaults, one number in each file, as for librdmacm.
const FOLDER: &str = "/etc/rdma/rsocket";

/// Limits of the depth of a work queue.
const DEPTHS: (u32, u32) = (16, 0xfffe);

/// Least size of the send ring, and greatest of either ring.
const LEAST_SEND: u32 = 4096;
const MOST_BYTES: u32 = 1 << 30;

/// Most bytes that can be posted inline.
const MOST_INLINE: u32 = 1024;

/// Settings of a socket.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Whether the socket is one of `AF_INET6`.
    pub(crate) is_v6: bool,
    /// Whether the socket is one of `AF_IB`: its addresses are GIDs.
    pub(crate) is_native: bool,
    /// Result of `F_GETFL`.
    pub(crate) status_flags: c_int,
    /// Result of `F_GETFD`.
    pub(crate) descriptor_flags: c_int,
    pub(crate) send_depth: u16,
    pub(crate) recv_depth: u16,
    pub(crate) inline: u32,
    /// Size of the ring that data is sent from.
    pub(crate) send_bytes: u32,
    /// Size of the ring that the peer writes to.
    pub(crate) recv_bytes: u32,
    /// Slots for mappings that the peer announces.
    pub(crate) iomaps: u16,
    pub(crate) reuse_addr: bool,
    pub(crate) keepalive: bool,
    /// Seconds after which an idle peer is probed.
    pub(crate) keep_idle: u32,
    pub(crate) linger_off: bool,
    pub(crate) oob_inline: bool,
    pub(crate) no_delay: bool,
    pub(crate) v6_only: bool,
    pub(crate) tos: c_int,
}

impl Settings {
    /// The settings of a new socket.
    pub(crate) fn new() -> Self {
        static DEFAULTS: OnceLock<Settings> = OnceLock::new();
        DEFAULTS.get_or_init(Self::read).clone()
    }

    /// What stands before the first message of the connecting side: librdmacm leaves room there for
    /// addresses of IP, if the addresses are those of InfiniBand.
    pub(crate) fn hello_offset(&self) -> Vec<u8> {
        vec![0; if self.is_native { IP_CM_LEN } else { 0 }]
    }

    fn read() -> Self {
        let number = |name: &str, usual: u32| {
            let text = fs::read_to_string(format!("{FOLDER}/{name}"));
            text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(usual)
        };
        let keep_idle = fs::read_to_string("/proc/sys/net/ipv4/tcp_keepalive_time");
        let keep_idle = keep_idle.ok().and_then(|text| text.trim().parse().ok());
        let mut settings = Self {
            is_v6: false,
            is_native: false,
            status_flags: 0,
            descriptor_flags: 0,
            send_depth: 0,
            recv_depth: 0,
            inline: 0,
            send_bytes: number("wmem_default", 1 << 17).clamp(LEAST_SEND, MOST_BYTES),
            recv_bytes: even(number("mem_default", 1 << 17)),
            iomaps: 0,
            reuse_addr: false,
            keepalive: false,
            keep_idle: keep_idle.unwrap_or(7200),
            linger_off: false,
            oob_inline: false,
            no_delay: false,
            v6_only: false,
            tos: 0,
        };
        settings.set_send_depth(number("sqsize_default", 384));
        settings.set_recv_depth(number("rqsize_default", 384));
        settings.set_inline(number("inline_default", 64));
        settings.set_iomaps(number("iomap_size", 0));
        settings
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.status_flags & libc::O_NONBLOCK != 0
    }

    /// Time after which an idle peer is probed.
    pub(crate) fn keepalive_interval(&self) -> Duration {
        Duration::from_secs(self.keep_idle.max(1).into())
    }

    pub(crate) fn set_send_depth(&mut self, depth: u32) {
        self.send_depth = depth.clamp(DEPTHS.0, DEPTHS.1) as u16;
    }

    pub(crate) fn set_recv_depth(&mut self, depth: u32) {
        self.recv_depth = depth.clamp(DEPTHS.0, DEPTHS.1) as u16;
    }

    pub(crate) fn set_inline(&mut self, bytes: u32) {
        self.inline = bytes.min(MOST_INLINE);
    }

    /// Rounds to a number that the hello can carry.
    pub(crate) fn set_iomaps(&mut self, count: u32) {
        self.iomaps = unscale(scale(u16::try_from(count).unwrap_or(u16::MAX)));
    }

    /// Doubles the size, as the kernel does for `SO_SNDBUF`.
    pub(crate) fn set_send_bytes(&mut self, bytes: u32) {
        self.send_bytes = bytes.saturating_mul(2).clamp(LEAST_SEND, MOST_BYTES);
    }

    /// Doubles the size, as the kernel does for `SO_RCVBUF`.
    pub(crate) fn set_recv_bytes(&mut self, bytes: u32) {
        self.recv_bytes = even(bytes.saturating_mul(2));
    }
}

/// A size that splits into the two halves of a ring.
fn even(bytes: u32) -> u32 {
    bytes.clamp(2, MOST_BYTES).next_multiple_of(2)
}
