//! Adapters by their two management interfaces, for which newer hardware has two devices. The
//! adapter of a host has both.

use core::ffi::{CStr, c_char, c_int, c_uint};

use super::adapter::{find, put};
use super::adapter_name;
use crate::abi::UMAD_CA_NAME_LEN;
use crate::errno;

/// An adapter for subnet management and one for all other management, and a port of each that can
/// be used.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct umad_ca_pair {
    smi_name: [c_char; UMAD_CA_NAME_LEN],
    smi_preferred_port: u32,
    gsi_name: [c_char; UMAD_CA_NAME_LEN],
    gsi_preferred_port: u32,
}

const NONE: umad_ca_pair = umad_ca_pair {
    smi_name: [0; UMAD_CA_NAME_LEN],
    smi_preferred_port: 0,
    gsi_name: [0; UMAD_CA_NAME_LEN],
    gsi_preferred_port: 0,
};

/// The adapter of the host, as both.
fn pair() -> umad_ca_pair {
    let mut pair = NONE;
    put(&mut pair.smi_name, &adapter_name());
    pair.gsi_name = pair.smi_name;
    pair
}

pub(crate) unsafe extern "C" fn umad_get_smi_gsi_pairs(
    pairs: *mut umad_ca_pair,
    max: usize,
) -> c_int {
    for index in 0..max {
        // SAFETY: the caller passes an array of `max` pairs.
        let to = unsafe { pairs.add(index) };
        // SAFETY: `to` is inside of the array and aligned.
        unsafe { to.write(NONE) };
    }
    // SAFETY: no name is passed.
    let adapter = unsafe { find(core::ptr::null()) };
    if max == 0 || adapter.is_none_or(|adapter| adapter.ports.is_empty()) {
        return 0;
    }
    // SAFETY: the array has at least one element.
    unsafe { pairs.write(pair()) };
    1
}

pub(crate) unsafe extern "C" fn umad_get_smi_gsi_pair_by_ca_name(
    name: *const c_char,
    number: u8,
    out: *mut umad_ca_pair,
    _enforce_smi: c_uint,
) -> c_int {
    if out.is_null() {
        return -1;
    }
    // SAFETY: the caller passes a place for a pair.
    unsafe { out.write(NONE) };
    // SAFETY: no name is passed.
    let Some(adapter) = (unsafe { find(core::ptr::null()) }) else { return 0 };
    // SAFETY: the caller passes a string, as `name` is not NULL there.
    let given = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
    let is_known = given.is_none_or(|given| given.to_bytes() == adapter_name().as_bytes());
    let number = if adapter.ports.len() == 1 && number <= 1 { 1 } else { usize::from(number) };
    let is_linked = |port: usize| {
        let port = adapter.ports.get(port.wrapping_sub(1));
        port.is_some_and(|port| port.info.state.0 > 1)
    };
    let found = match number {
        0 => (1..=adapter.ports.len()).find(|number| is_linked(*number)),
        // A port that the program names need not have a link.
        _ if number > adapter.ports.len() => None,
        _ if given.is_some() || is_linked(number) => Some(number),
        _ => None,
    };
    let Some(port) = found.filter(|_| is_known).and_then(|port| u32::try_from(port).ok()) else {
        errno::set(libc::ENODEV);
        return -libc::ENODEV;
    };
    let made = umad_ca_pair { smi_preferred_port: port, gsi_preferred_port: port, ..pair() };
    // SAFETY: the caller passes a place for a pair.
    unsafe { out.write(made) };
    0
}
