//! Adapters and their ports.

use core::ffi::{CStr, c_char, c_int};
use core::ptr;

use feroce::wire::mad::{PhysicalState, PortState};
use feroce_umad::{Adapter, AdapterPort};

use super::{adapter_name, host};
use crate::abi::*;
use crate::errno;
use crate::log;
use crate::zeroed::Zeroed;

/// What the fabric says of the adapter that a program names; without a name, of the one there is.
///
/// # Safety
/// `name` is NULL or points to a string.
pub(super) unsafe fn find(name: *const c_char) -> Option<Adapter> {
    let host = host()?;
    if !name.is_null() {
        // SAFETY: by this function's contract, `name` points to a string.
        let name = unsafe { CStr::from_ptr(name) };
        if !name.is_empty() && name.to_bytes() != adapter_name().as_bytes() {
            return None;
        }
    }
    let said = host.describe();
    said.inspect_err(|e| log::failure("the fabric does not answer", e)).ok()
}

/// The port that a program names by its number: 0 is one that is active, or else one with a link.
pub(super) fn choose(adapter: &Adapter, number: c_int) -> Option<u8> {
    if number > 0 {
        let number = u8::try_from(number).ok()?;
        return adapter.ports.get(usize::from(number) - 1).map(|_| number);
    }
    let by = |is_good: fn(&AdapterPort) -> bool| adapter.ports.iter().position(is_good);
    let found = by(|port| port.info.state == PortState::ACTIVE)
        .or_else(|| by(|port| port.info.physical_state == PhysicalState::LINK_UP))
        .unwrap_or(0);
    u8::try_from(found + 1).ok()
}

/// Lanes of wires of the link, and tenths of Gb/s of each.
pub(crate) fn width_and_speed(port: &AdapterPort) -> (u32, u32) {
    let width = match port.info.link_width_active {
        1 => 1,
        4 => 8,
        8 => 12,
        _ => 4,
    };
    (width, 25 * u32::from(port.info.link_speed_active.max(1)))
}

/// Writes text that ends with a zero, cut where there is no more room.
pub(super) fn put<const N: usize>(out: &mut [c_char; N], text: &str) {
    let bytes = text.bytes().take(N - 1).chain([0]);
    out.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte.cast_signed());
}

fn fill_port(out: &mut umad_port, number: u8, port: &AdapterPort) -> Option<()> {
    let info = &port.info;
    let (width, speed) = width_and_speed(port);
    put(&mut out.ca_name, &adapter_name());
    put(&mut out.link_layer, "IB");
    out.portnum = number.into();
    out.base_lid = info.lid.0.into();
    out.lmc = info.lmc.into();
    out.sm_lid = info.sm_lid.0.into();
    out.sm_sl = info.sm_sl.into();
    out.state = info.state.0.into();
    out.phys_state = info.physical_state.0.into();
    out.rate = width * speed / 10;
    out.capmask = info.capability_mask.to_be();
    out.gid_prefix = info.gid_prefix.to_be();
    out.port_guid = port.guid.to_be();
    // SAFETY: the call has no preconditions.
    let keys = unsafe { libc::calloc(port.pkeys.len().max(1), size_of::<u16>()) }.cast::<u16>();
    if keys.is_null() {
        return None;
    }
    for (index, key) in port.pkeys.iter().enumerate() {
        // SAFETY: the allocation has room for all of them.
        let to = unsafe { keys.add(index) };
        // SAFETY: `to` is inside of the allocation and aligned.
        unsafe { to.write(key.0) };
    }
    out.pkeys = keys;
    out.pkeys_size = port.pkeys.len() as u32;
    Some(())
}

pub(crate) unsafe extern "C" fn umad_get_port(
    name: *const c_char,
    number: c_int,
    out: *mut umad_port,
) -> c_int {
    // SAFETY: the caller passes a string or NULL.
    let adapter = unsafe { find(name) };
    let found = adapter.and_then(|adapter| {
        let number = choose(&adapter, number)?;
        Some((number, adapter.ports.into_iter().nth(usize::from(number) - 1)?))
    });
    let Some((number, port)) = found else {
        errno::set(libc::ENODEV);
        return -libc::ENODEV;
    };
    let mut made = umad_port::zeroed();
    if fill_port(&mut made, number, &port).is_none() {
        return -libc::ENOMEM;
    }
    // SAFETY: the caller passes a place for a port.
    unsafe { out.write(made) };
    0
}

pub(crate) unsafe extern "C" fn umad_release_port(port: *mut umad_port) -> c_int {
    // SAFETY: the caller passes a port that `umad_get_port` has filled in.
    let Some(port) = (unsafe { port.as_mut() }) else { return -libc::ENODEV };
    // SAFETY: `fill_port` allocated it, or it is NULL.
    unsafe { libc::free(port.pkeys.cast()) };
    (port.pkeys, port.pkeys_size) = (ptr::null_mut(), 0);
    0
}

pub(crate) unsafe extern "C" fn umad_get_ca(name: *const c_char, out: *mut umad_ca) -> c_int {
    // SAFETY: the caller passes a string or NULL.
    let Some(adapter) = (unsafe { find(name) }) else {
        errno::set(libc::ENODEV);
        return -libc::ENODEV;
    };
    let mut ca = umad_ca::zeroed();
    put(&mut ca.ca_name, &adapter_name());
    put(&mut ca.fw_ver, env!("CARGO_PKG_VERSION"));
    put(&mut ca.ca_type, "feroce");
    put(&mut ca.hw_ver, "0");
    ca.node_type = adapter.info.node_type.0.into();
    ca.node_guid = adapter.info.node_guid.to_be();
    ca.system_guid = adapter.info.system_image_guid.to_be();
    for (port, number) in adapter.ports.iter().zip(1..UMAD_CA_MAX_PORTS as u8) {
        // SAFETY: the call has no preconditions.
        let place = unsafe { libc::calloc(1, size_of::<umad_port>()) }.cast::<umad_port>();
        // SAFETY: NULL, or zero bytes for one port, which are a value of it.
        let filled = unsafe { place.as_mut() }.and_then(|place| fill_port(place, number, port));
        ca.ports[usize::from(number)] = place;
        if filled.is_none() {
            release(&mut ca);
            return -libc::ENOMEM;
        }
        ca.numports = number.into();
    }
    // SAFETY: the caller passes a place for an adapter.
    unsafe { out.write(ca) };
    0
}

fn release(ca: &mut umad_ca) {
    for port in &mut ca.ports {
        if !port.is_null() {
            // SAFETY: `umad_get_ca` has made the port.
            unsafe { umad_release_port(*port) };
            // SAFETY: `umad_get_ca` has allocated it, and nothing refers to it below.
            unsafe { libc::free(port.cast()) };
            *port = ptr::null_mut();
        }
    }
}

pub(crate) unsafe extern "C" fn umad_release_ca(ca: *mut umad_ca) -> c_int {
    // SAFETY: the caller passes an adapter that `umad_get_ca` has filled in.
    let Some(ca) = (unsafe { ca.as_mut() }) else { return -libc::ENODEV };
    release(ca);
    0
}

pub(crate) unsafe extern "C" fn umad_get_cas_names(
    names: *mut [c_char; UMAD_CA_NAME_LEN],
    max: c_int,
) -> c_int {
    if host().is_none() || max < 1 {
        return 0;
    }
    let mut name = [0; UMAD_CA_NAME_LEN];
    put(&mut name, &adapter_name());
    // SAFETY: the caller passes a place for `max` names.
    unsafe { names.write(name) };
    1
}

/// Port 0, which an adapter does not have, counts as well.
pub(crate) unsafe extern "C" fn umad_get_ca_portguids(
    name: *const c_char,
    guids: *mut be64,
    max: c_int,
) -> c_int {
    // SAFETY: the caller passes a string or NULL.
    let Some(adapter) = (unsafe { find(name) }) else { return -libc::ENODEV };
    if guids.is_null() {
        return 0;
    }
    let all: Vec<u64> = [0].into_iter().chain(adapter.ports.iter().map(|port| port.guid)).collect();
    if usize::try_from(max).is_ok_and(|max| all.len() > max) {
        return -libc::ENOMEM;
    }
    for (index, guid) in all.iter().enumerate() {
        // SAFETY: the caller passes a place for `max` GUIDs, and there are no more than that.
        let to = unsafe { guids.add(index) };
        // SAFETY: `to` is inside of that place.
        unsafe { to.write_unaligned(guid.to_be()) };
    }
    all.len() as c_int
}

pub(crate) unsafe extern "C" fn umad_get_issm_path(
    name: *const c_char,
    number: c_int,
    path: *mut c_char,
    max: c_int,
) -> c_int {
    // SAFETY: the caller passes a string or NULL.
    let Some(adapter) = (unsafe { find(name) }) else { return -libc::ENODEV };
    let port = choose(&adapter, number).and_then(|n| adapter.ports.get(usize::from(n) - 1));
    let Some(port) = port else { return -libc::EINVAL };
    if usize::try_from(max).is_ok_and(|max| port.issm.len() >= max) {
        return -libc::ENOMEM;
    }
    // SAFETY: the caller passes a place for `max` bytes, and there are fewer.
    unsafe { ptr::copy_nonoverlapping(port.issm.as_ptr(), path.cast(), port.issm.len()) };
    // SAFETY: there is room for the zero.
    let end = unsafe { path.add(port.issm.len()) };
    // SAFETY: `end` is inside of the caller's place.
    unsafe { end.write(0) };
    0
}

/// A list of one adapter, or none: the node, and behind it the name.
pub(crate) extern "C" fn umad_get_ca_device_list() -> *mut umad_device_node {
    if host().is_none() {
        errno::set(0);
        return ptr::null_mut();
    }
    let name = adapter_name();
    let size = size_of::<umad_device_node>() + name.len() + 1;
    // SAFETY: the call has no preconditions.
    let node = unsafe { libc::calloc(1, size) }.cast::<umad_device_node>();
    if node.is_null() {
        return node;
    }
    // SAFETY: the allocation is one node and the name behind it.
    let behind = unsafe { node.add(1) }.cast::<u8>();
    // SAFETY: there is room for the name, and a zero is behind it already.
    unsafe { ptr::copy_nonoverlapping(name.as_ptr(), behind, name.len()) };
    let made = umad_device_node { next: ptr::null_mut(), ca_name: behind.cast() };
    // SAFETY: the allocation has room for the node.
    unsafe { node.write(made) };
    node
}

pub(crate) unsafe extern "C" fn umad_free_ca_device_list(head: *mut umad_device_node) {
    // SAFETY: NULL, or what `umad_get_ca_device_list` allocated.
    unsafe { libc::free(head.cast()) };
}

/// A list of one is sorted.
pub(crate) extern "C" fn umad_sort_ca_device_list() -> c_int {
    0
}
