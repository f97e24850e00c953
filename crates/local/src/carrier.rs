//! What a carrier between the processes of one host adds to [`Carrier`].

use std::os::fd::BorrowedFd;

use feroce_link::tcp::TcpPort;
use feroce_link::{Carrier, Fault, Layer as _, Pcap, PortLink, RoceLink, Tapped, Trace, Verified};
use feroce_train::{Path, Single, Train};
use feroce_wire::Qpn;

/// A carrier that may deliver to other processes of this host.
pub trait HostCarrier: Carrier {
    /// Whether it is certain, without a system call, that no process of this host has sent anything
    /// that [`Carrier::receive`] would return.
    fn is_quiet(&self) -> bool;

    /// Whether trains that are about to be sent, at least one, should wait until more can be sent
    /// with them. Single packets may leave together; collecting long trains would only delay the
    /// first.
    fn wants_more(&self, trains: &[Train]) -> bool;

    /// Sends a packet as [`Carrier::send_single`] does, but only if that takes no system call. The
    /// caller then calls [`HostCarrier::wake_receiver`], which may, when no other thread waits for
    /// it.
    fn publish_single(&mut self, packet: Single<'_>) -> bool;

    /// Wakes the process that [`HostCarrier::publish_single`] has sent to, if it sleeps.
    fn wake_receiver(&mut self);

    /// Says that queue pairs of this device have sent packets to each other, past the carrier. The
    /// next answer is probably such a packet, too, so that a poll of the network can wait.
    fn note_inside(&mut self);

    /// Says whether the thread that calls [`Carrier::arm`] next checks its memory when it wakes. If
    /// so, peers also wake it when they have written there by direct access, which leaves nothing
    /// to receive.
    fn set_looks(&mut self, looks: bool);

    /// A polling thread has waited long for an answer. The carrier writes to the
    /// [`HostCarrier::kick_fd`] of every peer process that has not taken yet what was sent to it.
    fn kick(&mut self);

    /// Readable when a peer process waits for this one to call [`Carrier::receive`] and no thread
    /// sleeps on [`Carrier::wait_fd`]: the thread that polled may have ended. The driver thread
    /// reads it empty, which never blocks.
    fn kick_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Whether it is certain that the process that owns a queue pair is alive and has not taken yet
    /// what was sent to it.
    fn peer_has_unread(&self, path: &Path, qpn: Qpn) -> bool;
}

/// A carrier that delivers to no other process of this host. It is a [`HostCarrier`] by that.
pub trait RemoteCarrier: Carrier {
    /// As [`HostCarrier::wants_more`].
    fn wants_more(&self, trains: &[Train]) -> bool;
}

impl RemoteCarrier for RoceLink {
    fn wants_more(&self, trains: &[Train]) -> bool {
        ends_with_single(trains)
    }
}

/// Packets between processes of one host of a fabric pass its switch.
impl RemoteCarrier for PortLink {
    fn wants_more(&self, trains: &[Train]) -> bool {
        ends_with_single(trains)
    }
}

/// A device with streams sends no packets.
impl RemoteCarrier for TcpPort {
    fn wants_more(&self, _: &[Train]) -> bool {
        false
    }
}

/// Whether the last train is a single packet, which may leave together with others.
fn ends_with_single(trains: &[Train]) -> bool {
    trains.last().is_none_or(|train| train.count == 1)
}

impl<C: RemoteCarrier> HostCarrier for C {
    fn is_quiet(&self) -> bool {
        false
    }

    fn wants_more(&self, trains: &[Train]) -> bool {
        RemoteCarrier::wants_more(self, trains)
    }

    fn publish_single(&mut self, _: Single<'_>) -> bool {
        false
    }

    fn wake_receiver(&mut self) {}

    fn note_inside(&mut self) {}

    fn set_looks(&mut self, _: bool) {}

    fn kick(&mut self) {}

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn peer_has_unread(&self, _: &Path, _: Qpn) -> bool {
        false
    }
}

impl HostCarrier for Box<dyn HostCarrier> {
    fn is_quiet(&self) -> bool {
        (**self).is_quiet()
    }

    fn wants_more(&self, trains: &[Train]) -> bool {
        (**self).wants_more(trains)
    }

    fn publish_single(&mut self, packet: Single<'_>) -> bool {
        (**self).publish_single(packet)
    }

    fn wake_receiver(&mut self) {
        (**self).wake_receiver();
    }

    fn note_inside(&mut self) {
        (**self).note_inside();
    }

    fn set_looks(&mut self, looks: bool) {
        (**self).set_looks(looks);
    }

    fn kick(&mut self) {
        (**self).kick();
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).kick_fd()
    }

    fn peer_has_unread(&self, path: &Path, qpn: Qpn) -> bool {
        (**self).peer_has_unread(path, qpn)
    }
}

/// A layer delivers where the carrier below does. It may hold packets back, so it never says that
/// it is quiet, and it handles every packet, so none passes it on the shortest way.
macro_rules! impl_through_layer {
    ($($layer:ident),*) => {$(
        impl<C: HostCarrier> HostCarrier for $layer<C> {
            fn is_quiet(&self) -> bool {
                false
            }

            fn wants_more(&self, trains: &[Train]) -> bool {
                self.inner().wants_more(trains)
            }

            fn publish_single(&mut self, _: Single<'_>) -> bool {
                false
            }

            fn wake_receiver(&mut self) {}

            fn note_inside(&mut self) {
                self.inner_mut().note_inside();
            }

            fn set_looks(&mut self, looks: bool) {
                self.inner_mut().set_looks(looks);
            }

            fn kick(&mut self) {
                self.inner_mut().kick();
            }

            fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
                self.inner().kick_fd()
            }

            fn peer_has_unread(&self, path: &Path, qpn: Qpn) -> bool {
                self.inner().peer_has_unread(path, qpn)
            }
        }
    )*};
}
impl_through_layer!(Fault, Pcap, Tapped, Trace, Verified);
