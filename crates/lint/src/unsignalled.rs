//! A send queue that is full of unsignalled requests.
//!
//! An entry of a send queue is free again when the program polls a completion of the same or a
//! later request. If no request in the queue is signalled, an adapter may keep the queue full for
//! ever. The software adapter does not, so the mistake shows only on other adapters.

use crate::ledger::{Ledger, Name};
use crate::report::Rule;

/// Checks a queue pair before another send.
pub(crate) fn check(ledger: &mut Ledger, name: Name) {
    let Some(qp) = ledger.qps.get(&name) else { return };
    let most = qp.queues.max_send as usize;
    if qp.sends.len() < most || qp.sends.iter().rev().any(|request| request.signalled) {
        return;
    }
    ledger.said.once(Rule::Unsignalled, name.object(), || {
        format!(
            "{name}: a send is posted to a queue that is full of unsignalled requests (requests: \
             {most}): set IBV_SEND_SIGNALED on some and poll for them, or the queue never empties"
        )
    });
}
