//! Settings of sockets.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use feroce::cm::IdOption;

use super::service;
use super::settings::Settings;
use super::stream::{Phase, Stream};
use super::table::{self, Socket};
use crate::abi::*;
use crate::errno::{Errno, status};
use crate::verbs::object::zeroed;

/// `TCP_ESTABLISHED` and `TCP_CLOSE` of the kernel's header.
const ESTABLISHED: u8 = 1;
const CLOSED: u8 = 7;

/// The number that a program gives.
///
/// # Safety
/// `value` is NULL or leads to `len` bytes.
unsafe fn number(value: *const c_void, len: libc::socklen_t) -> Result<c_int, Errno> {
    match len as usize {
        _ if value.is_null() => Err(Errno(libc::EFAULT)),
        // SAFETY: as the caller says.
        1 => Ok(unsafe { value.cast::<u8>().read() }.into()),
        // SAFETY: as the caller says.
        4.. => Ok(unsafe { value.cast::<c_int>().read_unaligned() }),
        _ => Err(Errno::INVALID),
    }
}

pub(crate) unsafe extern "C" fn rsetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> c_int {
    // SAFETY: the program gives a value of this length.
    let number = unsafe { number(value, len) };
    status(table::get(fd).and_then(|socket| match socket {
        Socket::Stream(stream) => set(&stream, level, name, number?),
        Socket::Datagram(datagram) if level == SOL_RDMA => {
            set_rdma(&mut datagram.lock().settings, name, number?)
        }
        Socket::Datagram(datagram) => {
            match (level, name) {
                (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
                    datagram.lock().settings.set_recv_bytes(number?.cast_unsigned());
                }
                (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
                    datagram.lock().settings.set_send_bytes(number?.cast_unsigned());
                }
                _ => {}
            }
            // SAFETY: the program gives a value of this length.
            match unsafe { libc::setsockopt(datagram.number(), level, name, value, len) } {
                0 => Ok(()),
                _ => Err(Errno::last()),
            }
        }
    }))
}

fn set(stream: &Arc<Stream>, level: c_int, name: c_int, value: c_int) -> Result<(), Errno> {
    let mut core = stream.lock();
    let is_on = value != 0;
    let size = value.cast_unsigned();
    let is_fresh = matches!(core.phase, Phase::Fresh | Phase::Listening(..));
    let settings = &mut core.settings;
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => {
            settings.reuse_addr = is_on;
            // On a socket that has its address already it changes nothing, and hurts nobody.
            let _ = core.id.set_option(IdOption::ReuseAddr(is_on));
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF) if is_fresh => settings.set_recv_bytes(size),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) if is_fresh => settings.set_send_bytes(size),
        // Rings are not made anew under a connection.
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) => {}
        (libc::SOL_SOCKET, libc::SO_LINGER) => settings.linger_off = !is_on,
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => settings.oob_inline = is_on,
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => {
            settings.keepalive = is_on;
            drop(core);
            return if is_on { service::keep_alive(stream) } else { Ok(()) };
        }
        (libc::IPPROTO_IP, libc::IP_TOS) => {
            settings.tos = value;
            core.id.set_option(IdOption::Tos(value as u8))?;
        }
        // Connections are reliable: there is nothing to repeat.
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL) => {}
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
            settings.keep_idle =
                u32::try_from(value).ok().filter(|s| *s > 0).ok_or(Errno::INVALID)?;
            let is_kept = settings.keepalive;
            drop(core);
            return if is_kept { service::keep_alive(stream) } else { Ok(()) };
        }
        // Nothing is ever delayed.
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => settings.no_delay = is_on,
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG | libc::TCP_CONGESTION) => {}
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
            settings.v6_only = is_on;
            core.id.set_option(IdOption::AfOnly(is_on))?;
        }
        (SOL_RDMA, _) if !is_fresh => return Err(Errno::INVALID),
        (SOL_RDMA, _) => return set_rdma(settings, name, value),
        _ => return Err(Errno::UNSUPPORTED),
    }
    Ok(())
}

fn set_rdma(settings: &mut Settings, name: c_int, value: c_int) -> Result<(), Errno> {
    let size = value.cast_unsigned();
    match name.cast_unsigned() {
        RDMA_SQSIZE => settings.set_send_depth(size),
        RDMA_RQSIZE => settings.set_recv_depth(size),
        RDMA_INLINE => settings.set_inline(size),
        RDMA_IOMAPSIZE => settings.set_iomaps(size),
        // On Ethernet there is one way, and the kernel knows it.
        RDMA_ROUTE => {}
        _ => return Err(Errno::UNSUPPORTED),
    }
    Ok(())
}

/// An answer of `rgetsockopt`.
enum Answer {
    Number(c_int),
    Linger(libc::linger),
    Info(Box<libc::tcp_info>),
    Nothing,
    /// The kernel has answered.
    Given,
}

pub(crate) unsafe extern "C" fn rgetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut libc::socklen_t,
) -> c_int {
    if value.is_null() || len.is_null() {
        return status(Err(Errno(libc::EFAULT)));
    }
    let answer = table::get(fd).and_then(|socket| match socket {
        Socket::Stream(stream) => get(&stream, level, name),
        Socket::Datagram(datagram) if level == SOL_RDMA => {
            get_rdma(&datagram.lock().settings, name)
        }
        Socket::Datagram(datagram) => {
            // SAFETY: the program gives room, and says how much.
            match unsafe { libc::getsockopt(datagram.number(), level, name, value, len) } {
                0 => Ok(Answer::Given),
                _ => Err(Errno::last()),
            }
        }
    });
    status(answer.map(|answer| {
        let (from, size) = match &answer {
            Answer::Number(number) => (core::ptr::from_ref(number).cast::<u8>(), 4),
            Answer::Linger(linger) => {
                (core::ptr::from_ref(linger).cast(), size_of::<libc::linger>())
            }
            Answer::Info(info) => {
                (core::ptr::from_ref(info.as_ref()).cast(), size_of::<libc::tcp_info>())
            }
            Answer::Nothing => (core::ptr::null(), 0),
            Answer::Given => return,
        };
        // SAFETY: the program says how much room there is.
        let size = unsafe { *len as usize }.min(size);
        // SAFETY: not more than there is, nor more than there is room for.
        unsafe { core::ptr::copy_nonoverlapping(from, value.cast(), size) };
        // SAFETY: the program learns how much that was.
        unsafe { *len = size as libc::socklen_t };
    }))
}

fn get(stream: &Stream, level: c_int, name: c_int) -> Result<Answer, Errno> {
    stream.look(|core| {
        let settings = &core.settings;
        let size = |bytes: u32| c_int::try_from(bytes).unwrap_or(c_int::MAX);
        let is_open = matches!(&core.phase, Phase::Open(endpoint) if endpoint.is_open());
        Ok(Answer::Number(match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => settings.reuse_addr.into(),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => settings.keepalive.into(),
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => settings.oob_inline.into(),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => size(settings.recv_bytes),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => size(settings.send_bytes),
            (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
                matches!(core.phase, Phase::Listening(..)).into()
            }
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let l_onoff = (!settings.linger_off).into();
                return Ok(Answer::Linger(libc::linger { l_onoff, l_linger: 0 }));
            }
            (libc::SOL_SOCKET, libc::SO_ERROR) => std::mem::take(&mut core.error),
            (libc::SOL_SOCKET, libc::SO_BROADCAST) => 0,
            (libc::IPPROTO_IP, libc::IP_TOS) => settings.tos,
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL) => 1,
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => size(settings.keep_idle),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => settings.no_delay.into(),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                let mtu = core.id.context().map(|context| context.port().active_mtu.bytes());
                mtu.map_or(2048, |mtu| mtu as c_int)
            }
            (libc::IPPROTO_TCP, libc::TCP_INFO) => {
                // SAFETY: numbers.
                let mut info: libc::tcp_info = unsafe { zeroed() };
                info.tcpi_state = if is_open { ESTABLISHED } else { CLOSED };
                info.tcpi_snd_cwnd = settings.send_depth.into();
                return Ok(Answer::Info(Box::new(info)));
            }
            // There is none, and the name of that is empty.
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => return Ok(Answer::Nothing),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => settings.v6_only.into(),
            (SOL_RDMA, _) => return get_rdma(settings, name),
            _ => return Err(Errno::UNSUPPORTED),
        }))
    })
}

fn get_rdma(settings: &Settings, name: c_int) -> Result<Answer, Errno> {
    Ok(Answer::Number(match name.cast_unsigned() {
        RDMA_SQSIZE => settings.send_depth.into(),
        RDMA_RQSIZE => settings.recv_depth.into(),
        RDMA_INLINE => c_int::try_from(settings.inline).unwrap_or(c_int::MAX),
        RDMA_IOMAPSIZE => settings.iomaps.into(),
        RDMA_ROUTE => return Ok(Answer::Nothing),
        _ => return Err(Errno::UNSUPPORTED),
    }))
}

/// The third argument is there for the two commands that need it; the calling convention lets it
/// be missing.
pub(crate) extern "C" fn rfcntl(fd: c_int, command: c_int, value: c_int) -> c_int {
    let done = table::get(fd).and_then(|socket| {
        socket.settings(|settings| match command {
            libc::F_GETFL => Ok(libc::O_RDWR | settings.status_flags),
            libc::F_SETFL => {
                settings.status_flags = value & (libc::O_NONBLOCK | libc::O_ASYNC);
                Ok(0)
            }
            libc::F_GETFD => Ok(settings.descriptor_flags),
            libc::F_SETFD => {
                settings.descriptor_flags = value;
                Ok(0)
            }
            _ => Err(Errno::UNSUPPORTED),
        })
    });
    done.unwrap_or_else(|errno| {
        crate::errno::set(errno.0);
        -1
    })
}
