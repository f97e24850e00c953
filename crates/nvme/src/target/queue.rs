//! A queue of a host, from its acceptance to its end.

use std::sync::Arc;

use feroce::cm::{Accepting, ConnParam, Request};
use feroce::{Cq, Error, Pd, Pool, QpCap, RoutedBuf, Router, Srq, TransportKind};

use super::association::Shared;
use super::session::{Session, receive};
use super::{QueueSlot, until};
use crate::controller::{EVENTS, IN_CAPSULE, TRANSFER};
use crate::tasks::Tasks;
use crate::wire::{CAPSULE, COMPLETION, CmReply, CmRequest};

/// Data buffers of an I/O queue: so many commands of the greatest length move at a time, and more
/// wait for a buffer.
const BUFFERS: usize = 32;

/// Data buffers of an admin queue.
const ADMIN_BUFFERS: usize = 4;

/// A queue of a host that is about to be accepted.
#[derive(Debug)]
pub struct Queue {
    accepting: Accepting,
    router: Router,
    srq: Srq,
    receives: Vec<RoutedBuf>,
    data: Pool,
    asked: CmRequest,
    shared: Arc<Shared>,
    slot: QueueSlot,
    /// Where disks in memory may be registered.
    pd: Option<Pd>,
}

/// What the queue pair of a queue is made of.
pub(super) struct Parts {
    pd: Pd,
    srq: Srq,
    cq: Cq,
    router: Router,
    receives: Vec<RoutedBuf>,
    data: Pool,
    cap: QpCap,
    asked: CmRequest,
}

impl Parts {
    /// Makes them, and posts receives; none if there are no resources.
    pub(super) fn make(request: &Request, asked: CmRequest) -> Option<Self> {
        let context = request.context()?;
        let entries = usize::from(asked.send_size) + 1;
        // A held asynchronous event request leaves its receive at once, but the host need not know
        // that.
        let count = entries + EVENTS;
        let pd = context.alloc_pd().ok()?;
        let srq = pd.create_srq(number(count), 1).ok()?;
        // A command has at most two sends under way: data and response.
        let cq = context.create_cq(number(3 * count)).ok()?;
        let capsules = Pool::new(&pd, count, CAPSULE + IN_CAPSULE).ok()?;
        let buffers = if asked.queue == 0 { ADMIN_BUFFERS } else { BUFFERS.min(entries) };
        let data = Pool::new(&pd, buffers, TRANSFER).ok()?;
        let router = Router::new(&cq);
        let receives = std::iter::from_fn(|| capsules.try_take());
        let receives = receives.map(|buf| router.recv_buf_shared(&srq, buf).ok());
        let receives = receives.collect::<Option<Vec<_>>>()?;
        let cap = QpCap { max_inline: COMPLETION as u32, ..QpCap::new(number(2 * count), 0) };
        Some(Self { pd, srq, cq, router, receives, data, cap, asked })
    }
}

impl Queue {
    /// Makes the queue pair. If that fails, the request is rejected.
    pub(super) fn new(
        shared: Arc<Shared>,
        request: Request,
        parts: Parts,
        slot: QueueSlot,
    ) -> Result<Self, Error> {
        let Parts { pd, srq, cq, router, receives, data, cap, asked } = parts;
        let reply = CmReply { recv_size: asked.send_size + 1 };
        let offered = request.offered().unwrap_or_default();
        let param = ConnParam { private_data: reply.emit().to_vec(), ..offered };
        // Over iWARP, bytes are placed before their checksum is known.
        let transport = request.context().map(|context| context.attr().transport);
        let places_unchecked = transport == Some(TransportKind::Iwarp);
        let request = request.param(param).pd(&pd).cqs(&cq, &cq).srq(&srq).cap(cap);
        let accepting = request.prepare()?;
        let pd = (!places_unchecked).then_some(pd);
        Ok(Self { accepting, router, srq, receives, data, asked, shared, slot, pd })
    }

    /// Serves the queue until the host ends it.
    pub async fn serve(self) -> Result<(), Error> {
        let Self { accepting, router, srq, receives, data, asked, shared, slot, pd } = self;
        let connection = accepting.accept_async().await?;
        let session = Arc::new(Session::new(connection, router, srq, data, asked, shared, pd));
        let mut tasks = Tasks::default();
        for received in receives {
            tasks.add(receive(Arc::clone(&session), received));
        }
        until(tasks, session.ended()).await;
        session.leave();
        drop(slot);
        Ok(())
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
