//! The bytes of the registry that processes lock, and the names of their files.

use feroce_wire::Gid;

/// The byte that a process locks while it sets up or removes a registry. This byte and the bytes of
/// the slots are the same in every version, so that a process of any version can tell whether a
/// registry has living processes.
pub(super) const SETUP: i64 = 0;
/// The byte of the first slot.
pub(super) const FIRST_SLOT: i64 = 1;
/// The first of the bytes that stand for the port owners of addresses.
const RECEIVERS: i64 = 1 << 61;
/// The first of the bytes that stand for services.
const SERVICES: i64 = 1 << 62;

pub(super) fn byte_of_slot(slot: u8) -> i64 {
    FIRST_SLOT + i64::from(slot)
}

pub(super) fn byte_of_address(address: Gid) -> i64 {
    RECEIVERS + mix(address, 0)
}

pub(super) fn byte_of_service(address: Gid, id: u64) -> i64 {
    SERVICES + mix(address, id)
}

/// A hash below 2^61 of both. A collision is next to impossible.
fn mix(address: Gid, id: u64) -> i64 {
    let whole = u128::from_be_bytes(address.0);
    let parts = [(whole >> 64) as u64, whole as u64, id];
    let mixed = parts.into_iter().fold(0, |all: u64, part| {
        let mut n = (all ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        n ^= n >> 32;
        n = n.wrapping_mul(0xd6e8_feb8_6659_fd93);
        n ^ n >> 29
    });
    (mixed >> 3) as i64
}

pub(super) fn wake_name(slot: u8) -> String {
    format!("wake-{slot}")
}

pub(super) fn kick_name(slot: u8) -> String {
    format!("kick-{slot}")
}

pub(super) fn life_name(slot: u8) -> String {
    format!("life-{slot}")
}

pub(super) fn ring_name(from: u8, generation: u32, to: u8) -> String {
    format!("ring-{from}-{to}-{generation}")
}

/// The sender, its generation, and the receiver.
pub(super) fn parse_ring_name(name: &str) -> Option<(u8, u32, u8)> {
    let mut parts = name.strip_prefix("ring-")?.split('-');
    let (from, to) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some((from, parts.next()?.parse().ok()?, to))
}
