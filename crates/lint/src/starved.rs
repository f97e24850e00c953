//! Messages that found no receive.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use feroce::Counters;

use crate::ledger::{Ledger, Name, with};
use crate::report::Rule;

/// A send failed because the peer had no receive for it.
pub(crate) fn by_peer(ledger: &mut Ledger, name: Name) {
    ledger.said.once(Rule::PeerStarved, name.object(), || {
        format!(
            "{name}: the peer had no receive posted until retries ran out (RNR): post receives \
             there before sending, or set rnr_retry to 7, which is for ever"
        )
    });
}

/// A device is closed; `counters` are its counters. Datagrams do not count, since they may be lost
/// in any case.
pub fn device_closed(device: &str, counters: &Counters) {
    let starved = counters.out_of_buffer;
    if starved == 0 {
        return;
    }
    let mut hasher = DefaultHasher::new();
    device.hash(&mut hasher);
    let object = (0, hasher.finish());
    with(|ledger| {
        ledger.said.once(Rule::StarvedHere, object, || {
            format!(
                "{device}: messages arrived when no receive was posted (messages: {starved}): post \
                 receives earlier, and more of them"
            )
        });
    });
}
