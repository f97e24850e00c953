//! What congestion control is told, and how its window bounds the requester. `qp` spaces trains by
//! its rate.

use feroce_train::Instant;
use feroce_wire::Bth;

use super::qp::Qp;
use crate::hca::config::Config;
use crate::hca::congestion::{Ack, Loss};
use crate::ib::destination::PACKET_COST;

impl Qp {
    /// Bytes of requests on their way, as congestion control counts them.
    pub(super) fn bytes_in_flight(&self, config: &Config) -> u64 {
        let outstanding = &self.req.outstanding;
        let packets = u64::from(outstanding.cursor_psn().since(outstanding.una));
        let headers = Bth::LEN as u64 + u64::from(config.packet_overhead);
        outstanding.cost.saturating_sub(packets * PACKET_COST) + packets * headers
    }

    /// Bytes of a full packet, as congestion control counts them.
    fn packet_bytes(&self, config: &Config) -> u64 {
        (self.pmtu + Bth::LEN) as u64 + u64::from(config.packet_overhead)
    }

    /// How many packets the window of congestion control has room for. One more may go if no
    /// acknowledgement is on its way: the window may have shrunk since the last train, which did
    /// not request one.
    pub(super) fn packets_allowed(&self, config: &Config) -> u32 {
        let Some(cc) = &self.cc else { return u32::MAX };
        let in_flight = self.bytes_in_flight(config);
        let room = cc.control.window().saturating_sub(in_flight);
        let packets = room.div_ceil(self.packet_bytes(config));
        let packets = if self.req.awaits_ack() { packets } else { packets.max(1) };
        u32::try_from(packets).unwrap_or(u32::MAX)
    }

    /// Whether packets that cost `cost` at the destination, and are not accounted yet, should
    /// request an acknowledgement for congestion control: it stops at its window, which may be far
    /// smaller than that of the destination, and measures round trips.
    pub(super) fn window_wants_ack(&self, config: &Config, psns: u32, cost: u64) -> bool {
        let Some(cc) = &self.cc else { return false };
        let window = cc.control.window();
        let sent = u64::from(psns) * self.packet_bytes(config);
        self.bytes_in_flight(config) + sent >= window
            || self.req.ack_requests.unrequested + cost >= (window / 4).min(cc.control.ack_every())
    }

    /// Packets were acknowledged; `rtt_ns` if that measured a round trip.
    #[cold]
    pub(super) fn control_acked(&mut self, config: &Config, now: Instant, rtt_ns: Option<u64>) {
        let in_flight = self.bytes_in_flight(config);
        if let Some(cc) = self.cc.as_mut() {
            let bytes = cc.in_flight.saturating_sub(in_flight);
            cc.in_flight = in_flight;
            cc.control.on_ack(now, Ack { bytes, in_flight, rtt_ns });
        }
    }

    /// Packets were lost, and the cursor has gone back to them.
    #[cold]
    pub(super) fn control_lost(&mut self, config: &Config, now: Instant) {
        let in_flight = self.bytes_in_flight(config);
        let loss = if self.req.unanswered { Loss::Timeout } else { Loss::Gap };
        if let Some(cc) = self.cc.as_mut() {
            cc.in_flight = in_flight;
            cc.control.on_loss(now, loss);
        }
    }
}
