//! Congestion control: what an algorithm is told, what it decides, and the choice of one.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;

use feroce_train::{Hop, Instant};

use super::congestion_params::{
    ConnectXConfig, DcqcnConfig, HpccConfig, SwiftConfig, TimelyConfig,
};

/// A congestion control algorithm of one queue pair.
///
/// An algorithm is told what happens and says how fast its queue pair may send, and how much may be
/// on its way. It has no clock: equal calls have equal results. The engine spaces trains by
/// [`CongestionControl::rate_bps`] and stops at [`CongestionControl::window`], but one packet may
/// always be on its way.
///
/// Bytes are those on the link: payload, headers, and
/// [`Config::packet_overhead`](crate::Config::packet_overhead) for each packet.
///
/// Calls come per train and per answer. Only requests are answered: the sender of read responses,
/// and of unreliable services, hears of congestion by [`CongestionControl::on_cnp`] alone.
///
/// ```
/// use feroce_engine::{Ack, CongestionConfig, CongestionControl};
/// use feroce_train::Instant;
///
/// /// A window of constant size.
/// #[derive(Debug)]
/// struct Constant(u64);
///
/// impl CongestionControl for Constant {
///     fn rate_bps(&self) -> f64 {
///         f64::INFINITY
///     }
///
///     fn window(&self) -> u64 {
///         self.0
///     }
/// }
///
/// let congestion = CongestionConfig::custom("constant", || Box::new(Constant(64 << 10)));
/// ```
pub trait CongestionControl: fmt::Debug + Send {
    /// How fast the queue pair may send, in bits per second; more than zero.
    fn rate_bps(&self) -> f64;

    /// Most bytes on their way.
    fn window(&self) -> u64 {
        u64::MAX
    }

    /// Bytes after which it wants to hear from the peer again: at the latest then, an
    /// acknowledgement is requested. One is also requested for every quarter of the window.
    fn ack_every(&self) -> u64 {
        u64::MAX
    }

    /// A train of `bytes` leaves.
    fn on_sent(&mut self, now: Instant, bytes: u64) {
        let _ = (now, bytes);
    }

    /// The peer has acknowledged packets.
    fn on_ack(&mut self, now: Instant, ack: Ack) {
        let _ = (now, ack);
    }

    /// What switches wrote into a packet that the peer received. An acknowledgement that follows at
    /// the same time is for that packet.
    fn on_telemetry(&mut self, now: Instant, hops: &[Hop]) {
        let _ = (now, hops);
    }

    /// The peer received a packet that a switch had marked (a congestion notification).
    fn on_cnp(&mut self, now: Instant) {
        let _ = now;
    }

    /// Packets were lost and are sent again.
    fn on_loss(&mut self, now: Instant, loss: Loss) {
        let _ = (now, loss);
    }
}

/// What an acknowledgement says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ack {
    /// Bytes that it acknowledges and that no earlier one did.
    pub bytes: u64,
    /// Bytes that are on their way after it.
    pub in_flight: u64,
    /// How long a packet and its acknowledgement took, if this one ends a measurement. One packet
    /// at a time is measured, and none that was sent twice.
    pub rtt_ns: Option<u64>,
}

/// How a sender knows that packets were lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// The peer received later ones.
    Gap,
    /// The peer did not answer in time.
    Timeout,
}

/// How a queue pair decides how fast to send.
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub enum CongestionConfig {
    /// As fast as the window of the destination allows.
    #[default]
    None,
    /// DCQCN as published (SIGCOMM 2015).
    Dcqcn(DcqcnConfig),
    /// DCQCN as ConnectX-4 and later adapters run it.
    ConnectX(ConnectXConfig),
    /// TIMELY (SIGCOMM 2015).
    Timely(TimelyConfig),
    /// Swift (SIGCOMM 2020).
    Swift(SwiftConfig),
    /// HPCC (SIGCOMM 2019). It needs telemetry from the switches
    /// ([`Engine::handle_telemetry`](crate::Engine::handle_telemetry)); without it, the queue pair
    /// sends at line rate.
    Hpcc(HpccConfig),
    /// An algorithm of the caller.
    Custom(CustomCongestion),
}

impl CongestionConfig {
    /// An algorithm of the caller: `make` is called for each queue pair that begins to send.
    pub fn custom(
        name: &'static str,
        make: impl Fn() -> Box<dyn CongestionControl> + Send + Sync + 'static,
    ) -> Self {
        Self::Custom(CustomCongestion { name, make: Arc::new(make) })
    }

    /// Whether it needs telemetry from switches, which packets on a real wire do not have.
    pub fn needs_telemetry(&self) -> bool {
        matches!(self, Self::Hpcc(_))
    }
}

/// Makes a congestion control algorithm of the caller; see [`CongestionConfig::custom`].
#[derive(Clone)]
pub struct CustomCongestion {
    name: &'static str,
    make: Arc<dyn Fn() -> Box<dyn CongestionControl> + Send + Sync>,
}

impl CustomCongestion {
    /// The algorithm of a new queue pair.
    pub(crate) fn make(&self) -> Box<dyn CongestionControl> {
        (self.make)()
    }
}

/// Equal if one is a clone of the other.
impl PartialEq for CustomCongestion {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.make, &other.make)
    }
}

impl fmt::Debug for CustomCongestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CustomCongestion").field(&self.name).finish()
    }
}
