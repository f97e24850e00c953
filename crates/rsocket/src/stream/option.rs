//! Socket options of streams.

use core::ffi::c_int;
use std::sync::Arc;

use feroce::Errno;
use feroce::cm::IdOption;
use feroce_abi::SOL_RDMA;

use super::{Phase, Stream};
use crate::options::{self, Value};
use crate::service;

/// `TCP_ESTABLISHED` and `TCP_CLOSE` of the kernel's header.
const ESTABLISHED: u8 = 1;
const CLOSED: u8 = 7;

impl Stream {
    /// Sets an option.
    pub(crate) fn set_option(
        self: &Arc<Self>,
        level: c_int,
        name: c_int,
        value: c_int,
    ) -> Result<(), Errno> {
        let mut core = self.lock();
        let is_on = value != 0;
        let size = value.cast_unsigned();
        let is_fresh = matches!(core.phase, Phase::Fresh | Phase::Listening(..));
        let settings = &mut core.settings;
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => {
                settings.reuse_addr = is_on;
                // A socket that is bound already refuses it, and does not need it.
                let _ = core.id.set_option(IdOption::ReuseAddr(is_on));
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF) if is_fresh => settings.set_recv_bytes(size),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) if is_fresh => settings.set_send_bytes(size),
            // The rings of a connection keep their size.
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) => {}
            (libc::SOL_SOCKET, libc::SO_LINGER) => settings.linger_off = !is_on,
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => settings.oob_inline = is_on,
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => {
                settings.keepalive = is_on;
                drop(core);
                return self.restart_keepalive();
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                settings.tos = value;
                core.id.set_option(IdOption::Tos(value as u8))?;
            }
            // A reliable queue pair retransmits probes itself.
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL) => {}
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
                settings.keep_idle =
                    u32::try_from(value).ok().filter(|s| *s > 0).ok_or(Errno::INVALID)?;
                drop(core);
                return self.restart_keepalive();
            }
            // Data is never delayed.
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => settings.no_delay = is_on,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG | libc::TCP_CONGESTION) => {}
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
                settings.v6_only = is_on;
                core.id.set_option(IdOption::AfOnly(is_on))?;
            }
            (SOL_RDMA, _) if !is_fresh => return Err(Errno::INVALID),
            (SOL_RDMA, _) => return options::set_rdma(settings, name, value),
            _ => return Err(Errno::UNSUPPORTED),
        }
        Ok(())
    }

    /// Has the service probe the peer at the interval of the settings, if they want that.
    fn restart_keepalive(self: &Arc<Self>) -> Result<(), Errno> {
        let interval = self.settings(|s| s.keepalive.then(|| s.keepalive_interval()));
        interval.map_or(Ok(()), |every| service::keep_alive(Arc::<Self>::downgrade(self), every))
    }

    /// Reads an option.
    pub(crate) fn option(&self, level: c_int, name: c_int) -> Result<Value, Errno> {
        self.update(|core| {
            let settings = &core.settings;
            let size = |bytes: u32| c_int::try_from(bytes).unwrap_or(c_int::MAX);
            let is_open = matches!(&core.phase, Phase::Open(endpoint) if endpoint.is_open());
            Ok(Value::Integer(match (level, name) {
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
                    return Ok(Value::Linger(!settings.linger_off));
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
                    let state = if is_open { ESTABLISHED } else { CLOSED };
                    return Ok(Value::TcpInfo { state, window: settings.send_depth.into() });
                }
                // The name of the congestion control is empty: the stream has none of its own.
                (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => return Ok(Value::Empty),
                (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => settings.v6_only.into(),
                (SOL_RDMA, _) => return options::rdma(settings, name),
                _ => return Err(Errno::UNSUPPORTED),
            }))
        })
    }
}
