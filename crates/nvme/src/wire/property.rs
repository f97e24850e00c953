//! Properties of a controller: NVMe Base 3.1.4.

/// Offset of Controller Capabilities.
pub const CAP: u32 = 0x00;
/// Offset of Version.
pub const VS: u32 = 0x08;
/// Offset of Controller Configuration.
pub const CC: u32 = 0x14;
/// Offset of Controller Status.
pub const CSTS: u32 = 0x1c;

/// CC: enable.
pub const CC_ENABLE: u32 = 1;
/// CC: shutdown notification, normal.
pub const CC_SHUTDOWN: u32 = 1 << 14;
/// CC: both bits of the shutdown notification.
pub const CC_SHUTDOWN_MASK: u32 = 3 << 14;
/// CC: entries of submission queues have 64 bytes, of completion queues 16.
pub const CC_ENTRIES: u32 = 6 << 16 | 4 << 20;

/// CSTS: ready.
pub const CSTS_READY: u32 = 1;
/// CSTS: shutdown is complete.
pub const CSTS_SHUT_DOWN: u32 = 2 << 2;

/// Version 1.3.
pub const VERSION: u32 = 0x1_0300;

/// Capabilities: `entries` of the largest queue less one, contiguous queues, ready within
/// `timeout` times 500 ms, and the NVM command set.
pub const fn capabilities(entries: u16, timeout: u8) -> u64 {
    entries as u64 | 1 << 16 | (timeout as u64) << 24 | 1 << 37
}
