//! A send queue that is full of requests nobody will ever hear of.
//!
//! A place in a send queue is free again when a completion is polled that comes after it. If none
//! of the requests in the queue asks for one, an adapter may keep the queue full for ever. Ours
//! does not, which hides the mistake until the program meets another.

use super::ledger::{Ledger, Name};
use super::report::Rule;

/// Looks at a queue pair before one more send.
pub(super) fn check(ledger: &mut Ledger, name: Name) {
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
