//! Several links of one device that receive at the same address.
//!
//! Each has a socket on port 4791 (`SO_REUSEPORT`), and the kernel chooses one by a program that
//! reads the destination queue pair in the BTH: the upper eight bits of its number are the prefix
//! of the link that owns it. No privilege is needed for that. A wrong choice does no harm, because
//! every link passes on what is not its own: queue pair 1, datagrams of several queue pairs that
//! the kernel has merged, numbers of other processes, packets that come while a socket opens or
//! closes.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce_wire::Gid;
use socket2::Socket;

use crate::sys;

/// Where the upper eight bits of the destination queue pair are, in the payload of a datagram.
const DEST_QP: u32 = 5;

/// Instructions (`linux/bpf_common.h`).
const LOAD_BYTE: u16 = 0x30;
const IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

/// The sockets of the links of one device.
///
/// ```
/// let steering = std::sync::Arc::<feroce_link::Steering>::default();
/// let config = feroce_link::UdpConfig { steering: Some((steering, 7)), ..Default::default() };
/// ```
#[derive(Debug, Default)]
pub struct Steering {
    groups: Mutex<Vec<Group>>,
}

/// The sockets at one address, as prefixes of their links, in the order in which the kernel has
/// them.
#[derive(Debug)]
struct Group {
    addr: Gid,
    prefixes: Vec<u8>,
}

impl Steering {
    fn groups(&self) -> MutexGuard<'_, Vec<Group>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another link than the one with `prefix` receives at an address.
    pub(super) fn is_shared(&self, addr: Gid, prefix: u8) -> bool {
        let is_other = |group: &Group| group.prefixes.iter().any(|other| *other != prefix);
        self.groups().iter().any(|group| group.addr == addr && is_other(group))
    }

    /// Opens a socket with `open` as that of the link with `prefix`, and tells the kernel.
    pub(super) fn open(
        self: &Arc<Self>,
        addr: Gid,
        prefix: u8,
        open: impl FnOnce() -> io::Result<Socket>,
    ) -> io::Result<(Socket, Seat)> {
        let mut groups = self.groups();
        let socket = open()?;
        if !groups.iter().any(|group| group.addr == addr) {
            groups.push(Group { addr, prefixes: Vec::new() });
        }
        for group in groups.iter_mut().filter(|group| group.addr == addr) {
            group.prefixes.push(prefix);
            if let Err(e) = sys::attach_reuseport_filter(&socket, &program(&group.prefixes)) {
                // The kernel divides packets by their addresses and ports, and the links pass them
                // on to each other.
                tracing::debug!("no program chooses among the sockets at {addr}: {e}");
            }
        }
        drop(groups);
        Ok((socket, Seat { steering: Arc::clone(self), addr, prefix }))
    }

    fn leave(&self, addr: Gid, prefix: u8) {
        let mut groups = self.groups();
        for group in groups.iter_mut().filter(|group| group.addr == addr) {
            if let Some(at) = group.prefixes.iter().position(|other| *other == prefix) {
                // As the kernel does: the last socket takes the place of the one that has closed.
                // The program may now choose a wrong socket, or a place that is empty; then the
                // kernel takes any.
                group.prefixes.swap_remove(at);
            }
        }
        groups.retain(|group| !group.prefixes.is_empty());
    }
}

/// The place of a socket among those of its address, until it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    steering: Arc<Steering>,
    addr: Gid,
    prefix: u8,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.steering.leave(self.addr, self.prefix);
    }
}

/// Chooses the socket of the link whose prefix the destination queue pair has; without one, the
/// first.
fn program(prefixes: &[u8]) -> Vec<libc::sock_filter> {
    let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = vec![op(LOAD_BYTE, 0, 0, DEST_QP)];
    for (place, &prefix) in (0..).zip(prefixes) {
        program.push(op(IF_EQUAL, 0, 1, prefix.into()));
        program.push(op(RETURN, 0, 0, place));
    }
    program.push(op(RETURN, 0, 0, 0));
    program
}
