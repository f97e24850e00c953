//! Ports that a program has open, and its agents there.

use core::ffi::{c_char, c_int, c_long};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::IntoRawFd as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use feroce_umad::Registration;

use super::adapter::{choose, find};
use super::host;
use crate::abi::*;
use crate::errno;
use crate::log;

/// Management classes of vendors that name their organisation.
const VENDOR_CLASSES: core::ops::RangeInclusive<u8> = 0x30..=0x4f;

/// The numbers by which the fabric knows open ports, by descriptor.
static OPEN: Mutex<BTreeMap<c_int, u32>> = Mutex::new(BTreeMap::new());

fn open() -> MutexGuard<'static, BTreeMap<c_int, u32>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) unsafe extern "C" fn umad_open_port(name: *const c_char, number: c_int) -> c_int {
    // SAFETY: the caller passes a string or NULL.
    let adapter = unsafe { find(name) };
    let number = adapter.and_then(|adapter| choose(&adapter, number));
    let (Some(host), Some(number)) = (host(), number) else {
        errno::set(libc::ENODEV);
        return -libc::ENODEV;
    };
    match host.open(number) {
        Ok((socket, file)) => {
            let fd = socket.into_raw_fd();
            open().insert(fd, file);
            fd
        }
        Err(e) => {
            log::failure("the port cannot be opened", &e);
            errno::set(e.raw_os_error().unwrap_or(libc::EIO));
            -libc::EIO
        }
    }
}

pub(crate) extern "C" fn umad_close_port(fd: c_int) -> c_int {
    if open().remove(&fd).is_none() {
        errno::set(libc::EBADF);
        return -1;
    }
    // SAFETY: the descriptor came from `umad_open_port`, and is closed once.
    unsafe { libc::close(fd) };
    0
}

pub(crate) extern "C" fn umad_get_fd(fd: c_int) -> c_int {
    fd
}

fn register(fd: c_int, registration: Registration) -> io::Result<u32> {
    let file = open().get(&fd).copied().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
    let host = host().ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
    host.register(file, registration)
}

/// What a call returns: the agent, or that it is not permitted, whatever the reason.
fn agent(registered: io::Result<u32>) -> c_int {
    match registered {
        Ok(agent) => agent.cast_signed(),
        Err(e) => {
            errno::set(e.raw_os_error().unwrap_or(libc::EIO));
            -libc::EPERM
        }
    }
}

/// # Safety
/// `mask` is NULL or points to 128 bits.
unsafe fn methods(mask: *const c_long) -> u128 {
    if mask.is_null() {
        return 0;
    }
    // SAFETY: by this function's contract.
    let words = unsafe { mask.cast::<[u64; 2]>().read_unaligned() };
    u128::from(words[0]) | u128::from(words[1]) << 64
}

pub(crate) unsafe extern "C" fn umad_register(
    fd: c_int,
    class: c_int,
    version: c_int,
    rmpp_version: u8,
    mask: *const c_long,
) -> c_int {
    // SAFETY: the caller passes NULL or 128 bits.
    let methods = unsafe { methods(mask) };
    let (class, version) = (class as u8, version as u8);
    agent(register(
        fd,
        Registration { class, version, rmpp_version, methods, ..Default::default() },
    ))
}

pub(crate) unsafe extern "C" fn umad_register_oui(
    fd: c_int,
    class: c_int,
    rmpp_version: u8,
    oui: *const [u8; 3],
    mask: *const c_long,
) -> c_int {
    let class = class as u8;
    if !VENDOR_CLASSES.contains(&class) {
        return -libc::EINVAL;
    }
    // SAFETY: the caller passes three bytes.
    let oui = unsafe { oui.read() };
    // SAFETY: the caller passes NULL or 128 bits.
    let methods = unsafe { methods(mask) };
    let registration =
        Registration { class, version: 1, rmpp_version, oui, methods, ..Default::default() };
    agent(register(fd, registration))
}

/// Returns the error itself. Flags that are not known are refused, and the known ones reported.
pub(crate) unsafe extern "C" fn umad_register2(
    fd: c_int,
    attr: *mut umad_reg_attr,
    out: *mut u32,
) -> c_int {
    // SAFETY: the caller passes what to register for.
    let Some(attr) = (unsafe { attr.as_mut() }) else { return libc::EINVAL };
    if out.is_null() {
        return libc::EINVAL;
    }
    if attr.flags & !UMAD_USER_RMPP != 0 {
        attr.flags = UMAD_USER_RMPP;
        return libc::EINVAL;
    }
    let [_, a, b, c] = attr.oui.to_be_bytes();
    let registration = Registration {
        class: attr.mgmt_class,
        version: attr.mgmt_class_version,
        rmpp_version: attr.rmpp_version,
        has_own_rmpp: attr.flags & UMAD_USER_RMPP != 0,
        oui: [a, b, c],
        methods: u128::from(attr.method_mask[0]) | u128::from(attr.method_mask[1]) << 64,
    };
    match register(fd, registration) {
        Ok(agent) => {
            // SAFETY: the caller passes a place for the number.
            unsafe { out.write(agent) };
            0
        }
        Err(e) => e.raw_os_error().unwrap_or(libc::EIO),
    }
}

pub(crate) extern "C" fn umad_unregister(fd: c_int, agent: c_int) -> c_int {
    let file = open().get(&fd).copied();
    let done = match (file, host()) {
        (Some(file), Some(host)) => host.unregister(file, agent.cast_unsigned()),
        _ => Err(io::Error::from_raw_os_error(libc::EBADF)),
    };
    match done {
        Ok(()) => 0,
        Err(e) => {
            errno::set(e.raw_os_error().unwrap_or(libc::EIO));
            -1
        }
    }
}
