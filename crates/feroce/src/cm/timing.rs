//! What a manager is made with.

use feroce_cm::Config;

use crate::Error;
use crate::context::Context;
use crate::device::Device;

/// How long the manager waits for a peer that does not answer. The defaults are those of Linux,
/// which add up to more than 90 seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// How long either side may take to answer, as a code: 4.096 us * 2^code.
    pub response_timeout: u8,
    /// How long a packet may be in the network, as a code.
    pub packet_life_time: u8,
    /// How often a message is repeated.
    pub max_retries: u8,
}

impl Default for Timing {
    fn default() -> Self {
        let Config { response_timeout, packet_life_time, max_retries, .. } = Config::default();
        Self { response_timeout, packet_life_time, max_retries }
    }
}

/// Opens a device.
pub(crate) type Opener = fn(&Device) -> Result<Context, Error>;
