//! Messages that found no receive.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use feroce::Counters;

use super::ledger::{Ledger, Name};
use super::report::Rule;
use crate::verbs::adapter;

/// A send failed because the peer had no receive for it.
pub(super) fn by_peer(ledger: &mut Ledger, name: Name) {
    ledger.said.once(Rule::PeerStarved, name.object(), || {
        format!(
            "{name}: the peer had no receive posted until retries ran out (RNR): post receives \
             there before sending, or set rnr_retry to 7, which is for ever"
        )
    });
}

/// The process ends, perhaps with devices open.
pub(super) fn process_ends() {
    for (device, counters) in adapter::counters() {
        device_closed(&device, &counters);
    }
}

/// A device is closed, having done so much. Datagrams do not count: they may be lost anyway.
pub(crate) fn device_closed(device: &str, counters: &Counters) {
    let starved = counters.out_of_buffer;
    if starved == 0 {
        return;
    }
    let mut hasher = DefaultHasher::new();
    device.hash(&mut hasher);
    let object = (0, hasher.finish());
    super::with(|ledger| {
        ledger.said.once(Rule::StarvedHere, object, || {
            format!(
                "{device}: messages arrived when no receive was posted (messages: {starved}): post \
                 receives earlier, and more of them"
            )
        });
    });
}
