//! What runs inside the driver beside the engine.

use std::any::Any;
use std::fmt::Debug;

use feroce_engine::Engine;
use feroce_engine::iwarp::StreamEvent;
use feroce_link::LinkCounters;
use feroce_train::{GidEntry, Instant};
use feroce_wire::Qpn;

use super::stream_order::{StreamInput, StreamOrder};
use crate::watch::ConnectionSnapshot;

/// An agent of the device, which uses the engine from inside the driver: connection management.
/// The driver calls it with the engine's lock held, so it must not block. Its owner finds it in
/// the state as the type that it is ([`agent`], [`agent_mut`]).
///
/// [`agent`]: super::State::agent
/// [`agent_mut`]: super::State::agent_mut
pub(crate) trait Agent: Any + Debug + Send {
    /// Handles received datagrams and expired timers, and posts datagrams to send. Returns whether
    /// it has more to do.
    fn drive(&mut self, engine: &mut Engine, now: Instant) -> bool;

    /// When it has to be driven again, if nothing else happens.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Data has arrived on a queue pair whose connection is not established yet.
    fn on_established(&mut self, qpn: Qpn);

    /// The addresses of the device have changed.
    fn on_addresses(&mut self, gids: &[GidEntry]);

    /// The process is about to exit without closing the device: tells every peer.
    fn leave(&mut self, now: Instant);

    /// The connections and listeners, for people who look into the device.
    fn connections(&self) -> Vec<ConnectionSnapshot>;

    /// Whether a peer that was told of the end of a connection has not confirmed it yet.
    fn awaits_confirmation(&self) -> bool;

    /// Something has happened to a stream that belongs to no queue pair, or to a listener.
    fn on_stream(&mut self, _engine: &mut Engine, _now: Instant, _event: StreamInput<'_>) {}

    /// The stream of a queue pair has ended.
    fn on_stream_end(&mut self, _now: Instant, _event: StreamEvent) {}

    /// What it has counted.
    fn counters(&self) -> LinkCounters {
        LinkCounters::new()
    }

    /// What is to be done with streams.
    fn take_stream_orders(&mut self) -> Vec<StreamOrder> {
        Vec::new()
    }
}
