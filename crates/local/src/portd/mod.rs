//! Several users, one address.
//!
//! Linux lets only sockets of one user share a UDP port, so of several users one has to receive for
//! all, and sees the packets of all. Every user trusts root already; so a process of root, portd,
//! receives ([`Portd`]) and passes to each process the packets for its queue pairs and no others.
//! A process receives through a portd of root, of its own user, or of a user that its settings
//! name, and asks the kernel whose portd it is. It sends from sockets of its own.
//!
//! The processes of one user still find each other in their registry, and portd does not see what
//! they send to each other. Packets to processes of other users on this host take the wire, which
//! leads to portd.
//!
//! A process has a connection to portd ([`Lease`]) that carries its packets and, while it lasts,
//! gives it a prefix that no other process of the host has. Each service that it listens for is
//! another connection. The kernel closes both however the process ends; portd then tells processes
//! of other users, which end their connections with it. When portd ends, processes
//! keep their numbers and connect again as soon as there is a portd; meanwhile packets from other
//! hosts and users are lost, and retransmitted. No other user gets their prefixes and services in
//! between: portd writes down whose they are (`ledger`).
//!
//! Sockets of one `SO_REUSEPORT` group, handed to the processes and steered by a BPF program, would
//! save a copy. But every owner of such a socket may detach the program
//! (`SO_DETACH_REUSEPORT_BPF`, which `SO_LOCK_FILTER` does not prevent), and would then get packets
//! of other users.

mod lease;
mod ledger;
mod message;
mod server;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use feroce_link::port::PortSocket;
use feroce_wire::Gid;

use crate::Registry;

pub use lease::Lease;
pub(crate) use lease::{Asked, Claims, Heard, News};
pub(crate) use message::Prefixes;
pub use server::Portd;

/// How often other processes may take the prefix that this one is about to lease.
const TRIES: u32 = 100;

/// Names that portd may have, so that another user who takes some of them is not in its way.
const NAMES: u8 = 8;

/// What a process tells portd when it opens a device.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// The addresses of the device.
    pub addresses: &'a [Gid],
    /// The index of its interface, or 0.
    pub scope: u32,
    /// Users whose portd the process trusts, beside root and its own user.
    pub trusted: &'a [u32],
}

impl Registry {
    /// Joins the registry as [`Registry::join`] does, and asks portd for a lease, if there is a
    /// portd that this process trusts. This waits for the answer of portd.
    pub fn join_with_portd(
        root: &Path,
        seed: u64,
        opening: Opening<'_>,
    ) -> io::Result<(Self, Option<Lease>)> {
        let mut taken = Prefixes::default();
        for _ in 0..TRIES {
            let registry = Self::join_avoiding(root, seed, &taken)?;
            match Lease::ask(registry.prefix(), opening) {
                Ok(Asked::Leased(lease)) => {
                    registry.claim_with(lease.claims());
                    return Ok((registry, Some(lease)));
                }
                Ok(Asked::NoPortd) => return Ok((registry, None)),
                Ok(Asked::Taken(now)) => {
                    taken.iter_mut().zip(now).for_each(|(bits, now)| *bits |= now);
                }
                Err(e) => {
                    tracing::warn!(
                        "feroce portd gives no lease, so this process does without: {e}"
                    );
                    return Ok((registry, None));
                }
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "other processes take every prefix first"))
    }
}

/// A name of portd: abstract, so that it belongs to the network namespace, as addresses do.
fn name(i: u8) -> PathBuf {
    OsStr::from_bytes(format!("\0feroce-portd-{i}").as_bytes()).into()
}

/// Connects to the portd of a user that is trusted.
fn connect(is_trusted: impl Fn(u32) -> bool) -> io::Result<PortSocket> {
    let sockets = (0..NAMES).map(|i| PortSocket::connect(&name(i)));
    let mut trusted = sockets.flatten().filter(|s| s.peer_user().is_ok_and(&is_trusted));
    trusted.next().ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The users whose portd receives for the processes of all users here, whether or not they are
/// trusted.
pub fn portd_users() -> Vec<u32> {
    let sockets = (0..NAMES).filter_map(|i| PortSocket::connect(&name(i)).ok());
    sockets.filter_map(|socket| socket.peer_user().ok()).collect()
}

/// Whether an address is one of IPv6 that belongs to an interface (RFC 4291 section 2.4).
fn is_link_local(gid: Gid) -> bool {
    gid.0[0] == 0xfe && gid.0[1] & 0xc0 == 0x80
}
