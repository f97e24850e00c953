//! What the link between processes of one host does beyond a [`Carrier`](feroce_link::Carrier).

use std::os::fd::BorrowedFd;

use feroce_link::SharedPort;
use feroce_train::{Path, Single, Train};
use feroce_wire::Qpn;

use crate::peers::Route;
use crate::{HostCarrier, HostLink, QUIET};

/// Most trains that the link collects into one remote payload.
const GATHERED: usize = 8;

/// How often a polling thread checks the rings before it is told that nothing has arrived: so often
/// that the checks take about twice as long as releasing the link and taking it again, during which
/// an arriving packet waits.
const LOOKS: u32 = 64;

impl<C: SharedPort> HostCarrier for HostLink<C> {
    #[inline]
    fn wants_more(&self, trains: &[Train]) -> bool {
        let Some(last) = trains.last() else { return true };
        let is_short = last.payload_len < last.stride || last.payload_len == 0;
        if last.count == 1 && !is_short {
            // It may be the first of many packets, whatever their route.
            return true;
        }
        match self.peers.route(last.path.dst.gid, last.bth.dest_qp) {
            // The receiver fetches a remote payload with one system call, so the link collects
            // trains of a message into one. A train that requests an ACK should not wait.
            Route::Slot(slot) if !is_short && self.peers.may_send_remote(slot) => {
                let is_over = last.bth.ack_req || ends_message(last);
                last.revocation_epoch.is_some() && !is_over && trains.len() < GATHERED
            }
            // To send it alone through a ring costs almost nothing.
            Route::Slot(_) => false,
            _ => last.count == 1,
        }
    }

    #[inline]
    fn is_quiet(&self) -> bool {
        // Returning takes as long as a few checks. A thread that is served past the rings checks
        // its memory, or its completion queue, instead.
        let looks = if self.is_past_rings { 1 } else { LOOKS };
        let is_quiet = self.quiet < QUIET
            && self.local.is_empty()
            && (0..looks).all(|_| self.peers.is_quiet());
        if is_quiet {
            self.registry.show_polling();
        }
        is_quiet
    }

    #[inline]
    fn publish_single(&mut self, packet: Single<'_>) -> bool {
        self.sync();
        match self.peers.route(packet.path.dst.gid, packet.dest) {
            Route::Slot(slot) => self.publish_to(slot, packet),
            _ => false,
        }
    }

    #[inline]
    fn wake_receiver(&mut self) {
        if let Some(slot) = self.published_to.take() {
            self.peers.wake(slot);
        }
    }

    #[inline]
    fn note_inside(&mut self) {
        self.quiet = 0;
        self.is_past_rings = true;
    }

    fn set_looks(&mut self, looks: bool) {
        self.looks = looks;
    }

    fn kick(&mut self) {
        self.peers.kick();
    }

    fn peer_has_unread(&self, path: &Path, qpn: Qpn) -> bool {
        self.peers.peer_has_unread(path.dst.gid, qpn)
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.registry.kick_fd())
    }
}

impl<C: SharedPort> HostLink<C> {
    /// Puts a packet into the ring to a process, if it can go there without a train.
    #[inline]
    pub(crate) fn publish_to(&mut self, slot: u8, packet: Single<'_>) -> bool {
        // `send` announces granted direct access first.
        if self.peers.wants_icrc(slot) || self.registry.has_offers() {
            return false;
        }
        let meta = self.meta_of(packet.path);
        let is_published = self.peers.publish_single(slot, packet, meta);
        if is_published {
            self.counters.tx_trains += 1;
            self.published_to = Some(slot);
        }
        is_published
    }
}

/// Whether the last packet of a train is the last of its message.
fn ends_message(train: &Train) -> bool {
    let last = if train.count > 1 { train.ops.last } else { train.ops.first };
    last.decode().is_some_and(|(_, op)| op.ends())
}
