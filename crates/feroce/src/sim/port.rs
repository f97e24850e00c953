//! The carrier of a simulated host: what it sends waits here for the fabric, and what the fabric
//! delivers waits here for the host.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce_link::{Carrier, Control, LinkCounters};
use feroce_local::RemoteCarrier;
use feroce_train::{Instant, LinkCaps, Path, RxMeta, RxTrain, Single, Train};
use feroce_wire::Gid;
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Most bytes that wait for the link of the host: five microseconds at 100 Gb/s, which is less than
/// an engine needs to notice that there is room again.
const MAX_WAITING: usize = 64 << 10;

/// Trains are short, so that queue pairs take turns on the link.
const CAPS: LinkCaps = LinkCaps { max_packets: 16, max_bytes: 16 << 10 };

/// A packet, from the BTH to the end of the padding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Body {
    pub(super) meta: RxMeta,
    pub(super) bytes: Vec<u8>,
}

/// What waits at a host.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// For the fabric.
    pub(super) outgoing: VecDeque<Body>,
    outgoing_bytes: usize,
    /// For the host.
    pub(super) incoming: VecDeque<Body>,
    /// The engine found no room.
    pub(super) is_short: bool,
    pub(super) groups: Vec<Gid>,
    /// The host has crashed: nothing leaves it any more.
    pub(super) is_dead: bool,
}

impl Waiting {
    /// The next packet for the fabric.
    pub(super) fn take_outgoing(&mut self) -> Option<Body> {
        let body = self.outgoing.pop_front()?;
        self.outgoing_bytes -= body.bytes.len();
        Some(body)
    }

    /// Whether the engine can go on that found no room before.
    pub(super) fn has_room_again(&mut self) -> bool {
        self.outgoing_bytes < MAX_WAITING / 2 && std::mem::take(&mut self.is_short)
    }
}

/// The world's end of a carrier.
#[derive(Clone, Debug, Default)]
pub(super) struct Port(Arc<Mutex<Waiting>>);

impl Port {
    pub(super) fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The host's end.
#[derive(Debug)]
pub(super) struct PortCarrier {
    port: Port,
    /// Never readable: no thread sleeps in a world.
    silence: EventFd,
}

impl PortCarrier {
    pub(super) fn new(port: &Port) -> io::Result<Self> {
        let silence = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self { port: port.clone(), silence })
    }
}

impl Carrier for PortCarrier {
    fn caps(&self) -> LinkCaps {
        CAPS
    }

    fn headers(&self, path: &Path) -> RxMeta {
        path.into()
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.silence.as_fd()
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }

    fn send(&mut self, _: Instant, trains: &[Train]) -> io::Result<usize> {
        let mut port = self.port.lock();
        if port.is_dead {
            return Ok(trains.len());
        }
        for (taken, train) in trains.iter().enumerate() {
            if port.outgoing_bytes >= MAX_WAITING {
                port.is_short = true;
                return Ok(taken);
            }
            let meta = RxMeta::from(&train.path);
            for i in 0..train.count {
                let mut bytes = vec![0; train.packet_len(i)];
                let len = train.emit(i, &mut bytes);
                bytes.truncate(len);
                port.outgoing_bytes += len;
                port.outgoing.push_back(Body { meta, bytes });
            }
        }
        Ok(trains.len())
    }

    fn send_single(&mut self, _: Single<'_>) -> bool {
        false
    }

    fn receive(
        &mut self,
        _: Instant,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> io::Result<usize> {
        for taken in 0..budget {
            // The engine may send from inside the sink, so the port is not locked meanwhile.
            let next = self.port.lock().incoming.pop_front();
            let Some(body) = next else { return Ok(taken) };
            sink(&RxTrain::single(body.meta, &body.bytes));
        }
        Ok(budget)
    }

    fn arm(&mut self, _: Instant) -> bool {
        self.port.lock().incoming.is_empty()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn control(&mut self, control: Control<'_>) -> io::Result<()> {
        let mut port = self.port.lock();
        match control {
            Control::Join(group) => port.groups.push(group),
            Control::Leave(group) => port.groups.retain(|other| *other != group),
            _ => {}
        }
        Ok(())
    }
}

impl RemoteCarrier for PortCarrier {
    fn wants_more(&self, _: &[Train]) -> bool {
        false
    }
}
