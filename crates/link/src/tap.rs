//! A layer that shows every transport packet to a [`Tap`].

use std::fmt;
use std::io;
use std::sync::Arc;

use feroce_train::{Instant, RxTrain, Single, Train};
use feroce_wire::Gid;

use crate::{Carrier, Control, LinkCounters, each_packet, forward_to_inner, impl_layer};

/// Which way a packet went.
///
/// ```
/// # use feroce_link::Direction;
/// let arrow = |direction| if direction == Direction::Sent { "->" } else { "<-" };
/// assert_eq!(arrow(Direction::Received), "<-");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// This port sends it. It is shown before the carrier gets it, so that the answer cannot
    /// be shown first.
    Sent,
    /// This port received it, and its ICRC is right. It is shown before the engine gets it.
    Received,
}

/// A packet that passes.
///
/// ```
/// # use feroce_link::Seen;
/// fn line(packet: &Seen<'_>) -> String {
///     let Seen { direction, src, dst, bytes, .. } = packet;
///     format!("{direction:?} {src} to {dst}: {} bytes", bytes.len())
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Which way it went.
    pub direction: Direction,
    /// When, by the clock of the device.
    pub at: Instant,
    /// Address of the sender.
    pub src: Gid,
    /// Address of the receiver, or of a multicast group.
    pub dst: Gid,
    /// The packet from its base transport header to its padding.
    pub bytes: &'a [u8],
}

/// Looks at packets. The driver calls it with the link of the device locked: return soon, and do
/// not call the device.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// # use feroce_link::{Seen, Tap};
///
/// /// Counts packets.
/// #[derive(Debug, Default)]
/// struct Count(AtomicU64);
///
/// impl Tap for Count {
///     fn see(&self, _: &Seen<'_>) {
///         self.0.fetch_add(1, Ordering::Relaxed);
///     }
/// }
/// ```
pub trait Tap: fmt::Debug + Send + Sync {
    /// A packet passes.
    fn see(&self, packet: &Seen<'_>);
}

/// Shows what passes through a link to a [`Tap`]. Belongs above the layer that checks the ICRC.
#[derive(Debug)]
pub struct Tapped<C> {
    inner: C,
    tap: Arc<dyn Tap>,
    packet: Vec<u8>,
    /// The link was full: the next train is the one that was shown already.
    again: bool,
}

impl<C: Carrier> Tapped<C> {
    /// Shows what passes through `inner` to `tap`.
    pub fn new(inner: C, tap: Arc<dyn Tap>) -> Self {
        Self { inner, tap, packet: Vec::new(), again: false }
    }

    fn show(&mut self, at: Instant, train: &Train) {
        let (src, dst) = (train.path.src.gid, train.path.dst.gid);
        each_packet(train, &mut self.packet, |_, bytes| {
            self.tap.see(&Seen { direction: Direction::Sent, at, src, dst, bytes });
        });
    }
}

impl_layer!(Tapped);

impl<C: Carrier> Carrier for Tapped<C> {
    forward_to_inner!();

    fn control(&mut self, control: Control<'_>) -> io::Result<()> {
        self.inner.control(control)
    }

    fn send(&mut self, now: Instant, trains: &[Train]) -> io::Result<usize> {
        // One at a time: each is shown before the carrier gets it.
        for (taken, train) in trains.iter().enumerate() {
            if !self.again {
                self.show(now, train);
            }
            self.again = self.inner.send(now, std::slice::from_ref(train))? == 0;
            if self.again {
                return Ok(taken);
            }
        }
        Ok(trains.len())
    }

    fn send_single(&mut self, _: Single<'_>) -> bool {
        false
    }

    fn receive(
        &mut self,
        now: Instant,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> io::Result<usize> {
        let tap = &self.tap;
        self.inner.receive(now, budget, &mut |train| {
            let (src, dst) = (train.meta.src.gid, train.meta.dst.gid);
            for bytes in train.packets() {
                tap.see(&Seen { direction: Direction::Received, at: now, src, dst, bytes });
            }
            sink(train);
        })
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.inner.poll_timeout()
    }

    fn counters(&self) -> LinkCounters {
        self.inner.counters()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::sync::Mutex;

    use feroce_train::{Ext, LinkCaps, Path, Payload, RxMeta, TrainOps};
    use feroce_wire::{Bth, Op, Opcode, Psn, Qpn, Service};

    use super::*;

    /// Is full every other time; receives one packet.
    #[derive(Default)]
    struct Moody(bool);

    impl Carrier for Moody {
        fn caps(&self) -> LinkCaps {
            LinkCaps::SINGLE
        }

        fn headers(&self, path: &Path) -> RxMeta {
            path.into()
        }

        fn send(&mut self, _: Instant, _: &[Train]) -> io::Result<usize> {
            self.0 = !self.0;
            Ok(usize::from(!self.0))
        }

        fn send_single(&mut self, _: Single<'_>) -> bool {
            false
        }

        fn arm(&mut self, _: Instant) -> bool {
            true
        }

        fn poll_timeout(&self) -> Option<Instant> {
            None
        }

        fn receive(
            &mut self,
            _: Instant,
            _: usize,
            sink: &mut dyn FnMut(&RxTrain<'_>),
        ) -> io::Result<usize> {
            sink(&RxTrain { trailer: 4, ..RxTrain::single(RxMeta::default(), &[7; 20]) });
            Ok(1)
        }

        fn wait_fd(&self) -> BorrowedFd<'_> {
            unreachable!("the test does not wait")
        }

        fn control(&mut self, _: Control<'_>) -> io::Result<()> {
            Ok(())
        }

        fn counters(&self) -> LinkCounters {
            Vec::new()
        }
    }

    #[derive(Debug, Default)]
    struct Notes(Mutex<Vec<(Direction, Vec<u8>)>>);

    impl Tap for Notes {
        fn see(&self, packet: &Seen<'_>) {
            self.0.lock().expect("lock").push((packet.direction, packet.bytes.to_vec()));
        }
    }

    fn train() -> Train {
        let opcode = Opcode::new(Service::Rc, Op::SendOnly);
        Train {
            path: Path::default(),
            bth: Bth::new(opcode, Qpn::new(5), Psn::new(9)),
            ops: TrainOps::all(opcode),
            count: 2,
            stride: 0,
            payload_len: 0,
            head: Ext::NONE,
            body: Ext::NONE,
            tail: Ext::NONE,
            payload: Payload::Empty,
            revocation_epoch: None,
        }
    }

    #[test]
    fn every_packet_is_shown_once() {
        let notes = Arc::new(Notes::default());
        let tap: Arc<dyn Tap> = Arc::<Notes>::clone(&notes);
        let mut link = Tapped::new(Moody::default(), tap);
        assert_eq!(link.send(Instant::ZERO, &[train()]).expect("sent"), 0);
        assert_eq!(link.send(Instant::ZERO, &[train()]).expect("sent"), 1);
        assert_eq!(link.receive(Instant::ZERO, 1, &mut |_| ()).expect("received"), 1);
        let seen = notes.0.lock().expect("lock");
        let kinds: Vec<_> = seen.iter().map(|(d, b)| (*d, b.len(), b[11])).collect();
        let sent = Direction::Sent;
        assert_eq!(kinds, [(sent, 12, 9), (sent, 12, 10), (Direction::Received, 16, 7)]);
    }
}
