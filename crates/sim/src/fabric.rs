//! The seam between hosts and the network between them.

use feroce_train::{Instant, RxMeta};

use crate::kernel::Trace;

/// Packets that leave or reach a port back to back.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Addresses, traffic class and ECN, equal for all of them.
    pub meta: RxMeta,
    /// The packets, each from the BTH to the end of the padding.
    pub packets: Vec<Vec<u8>>,
}

/// Packets that arrive.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The port that sent them.
    pub from: usize,
    /// The port that receives them.
    pub to: usize,
    /// The packets.
    pub batch: Batch,
}

/// A network between ports; port `i` is that of host `i`.
///
/// Like an engine, a fabric is driven: time is an argument, and it says when it wants to be called
/// again. The same calls at the same times give the same deliveries.
pub trait Fabric {
    /// The host at `port` sends packets. What becomes of each goes to `trace`.
    ///
    /// An injection may change the deadline: call [`Fabric::poll`] afterwards.
    fn inject(&mut self, now: Instant, port: usize, batch: Batch, trace: &mut Trace);

    /// A delivery that is due, and the time of the next call: at `now` again while more are due,
    /// never if nothing is on its way.
    fn poll(&mut self, now: Instant) -> (Option<Delivery>, Option<Instant>);
}
