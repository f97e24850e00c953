//! The table `[infiniband]`: links with credits and virtual lanes instead of Ethernet.

use feroce_fabric::{InfinibandConfig, VlArbitration};
use serde::Deserialize;
use toml::Spanned;

use super::values::{Fault, Size, Span};

/// Service levels, and virtual lanes at most.
const LEVELS: u8 = 8;

/// See the module documentation.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Infiniband {
    lanes: Spanned<u8>,
    buffer: Spanned<Size>,
    sl_to_vl: Option<Spanned<Vec<u8>>>,
    high: Spanned<Vec<(u8, u8)>>,
    low: Option<Spanned<Vec<(u8, u8)>>>,
    high_limit: u8,
    lifetime: Option<Span>,
}

impl Default for Infiniband {
    fn default() -> Self {
        let InfinibandConfig { lane_buffer, .. } = InfinibandConfig::default();
        Self {
            lanes: Spanned::new(0..0, 1),
            buffer: Spanned::new(0..0, Size(lane_buffer)),
            sl_to_vl: None,
            high: Spanned::new(0..0, Vec::new()),
            low: None,
            high_limit: 0,
            lifetime: None,
        }
    }
}

impl Infiniband {
    /// For packets of at most so many bytes.
    pub(super) fn config(&self, packet_bytes: u32) -> Result<InfinibandConfig, Fault> {
        let lanes = *self.lanes.get_ref();
        if !(1..=LEVELS).contains(&lanes) {
            return Err(Fault::at(&self.lanes, "infiniband.lanes: from 1 to 8"));
        }
        let Size(lane_buffer) = *self.buffer.get_ref();
        if lane_buffer < u64::from(packet_bytes) {
            let what = format!("infiniband.buffer: a packet has {packet_bytes} bytes");
            return Err(Fault::at(&self.buffer, what));
        }
        let mut config = InfinibandConfig {
            lane_buffer,
            lifetime_ps: self.lifetime.map(|span| span.0),
            ..InfinibandConfig::with_lanes(lanes)
        };
        if let Some(levels) = &self.sl_to_vl {
            let table = <[u8; LEVELS as usize]>::try_from(levels.get_ref().as_slice()).ok();
            config.sl_to_vl =
                table.filter(|table| table.iter().all(|vl| *vl < lanes)).ok_or_else(|| {
                    Fault::at(levels, format!("infiniband.sl_to_vl: 8 lanes below {lanes}"))
                })?;
        }
        let high = self.high.get_ref().clone();
        let low = match &self.low {
            Some(low) => low.get_ref().clone(),
            None => {
                let is_high = |lane: u8| high.iter().any(|(of, _)| *of == lane);
                let all = VlArbitration::equal(lanes).low;
                all.into_iter().filter(|(lane, _)| !is_high(*lane)).collect()
            }
        };
        let place = self.low.as_ref().unwrap_or(&self.high);
        let entries = || high.iter().chain(&low);
        if let Some((lane, _)) = entries().find(|(lane, _)| *lane >= lanes) {
            return Err(Fault::at(place, format!("infiniband: lane {lane} of {lanes}")));
        }
        let is_served = |lane: &u8| entries().any(|(of, weight)| of == lane && *weight > 0);
        if let Some(lane) = config.sl_to_vl.iter().find(|lane| !is_served(lane)) {
            let what = format!("infiniband: lane {lane} has no weight in `high` or `low`");
            return Err(Fault::at(place, what));
        }
        config.arbitration = VlArbitration { high, low, high_limit: self.high_limit };
        Ok(config)
    }
}
