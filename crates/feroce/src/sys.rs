//! System calls that no dependency of this crate wraps.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::virtual_time;

mod ioctl {
    nix::ioctl_read_bad!(get_if_mtu, libc::SIOCGIFMTU, libc::ifreq);
}

/// Calls `take` at once and then whenever `fd` is readable, until it returns a value. Returns
/// `None` if `fd` is not readable for `timeout_ms`. Without a timeout, it waits for ever.
pub(crate) fn wait_for<T>(
    fd: BorrowedFd<'_>,
    timeout_ms: Option<u16>,
    mut take: impl FnMut() -> Option<T>,
) -> io::Result<Option<T>> {
    loop {
        if let Some(taken) = take() {
            return Ok(Some(taken));
        }
        virtual_time::refuse_to_wait();
        let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
        match poll(&mut fds, timeout_ms.map_or(PollTimeout::NONE, PollTimeout::from)) {
            Ok(0) => return Ok(None),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// The MTU of an interface.
pub(crate) fn interface_mtu(name: &str) -> io::Result<u32> {
    // Any socket will do; one that is not bound needs no address.
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: `ifreq` is plain data for which all zeros is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let bytes = name.as_bytes();
    if bytes.len() >= request.ifr_name.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "interface name too long"));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    // SAFETY: the descriptor is open, and `request` is an initialised `ifreq` that outlives the
    // call, as SIOCGIFMTU demands.
    unsafe { ioctl::get_if_mtu(socket.as_raw_fd(), &raw mut request) }?;
    // SAFETY: SIOCGIFMTU filled in the member `ifru_mtu`.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

/// The name of the interface with this index.
pub(crate) fn interface_name(index: u32) -> io::Result<String> {
    let name = nix::net::if_::if_indextoname(index)?;
    Ok(name.to_string_lossy().into_owned())
}

/// The speed of an interface in Mb/s; `None` for an interface that has none or is down.
pub(crate) fn interface_speed_mbit(name: &str) -> Option<u32> {
    std::fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?.trim().parse().ok()
}

/// Random bits from the operating system, or from the seed of a simulated world.
pub(crate) fn random_u64() -> io::Result<u64> {
    if let Some(random) = virtual_time::random_u64() {
        return Ok(random);
    }
    let mut bytes = [0; 8];
    // SAFETY: the pointer leads to `bytes.len()` writable bytes.
    let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if n == bytes.len() as isize {
        Ok(u64::from_ne_bytes(bytes))
    } else {
        Err(io::Error::last_os_error())
    }
}
