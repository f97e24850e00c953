//! Memory that is deregistered while outstanding requests refer to it.

use feroce::Lkey;

use crate::ledger::{Memory, Name, with};
use crate::report::Rule;

/// The program deregisters memory: warns if requests refer to it whose completion the program has
/// not polled. Requests of queue pairs that are not `alive` do not count, because the adapter has
/// dropped them; nor do unsignalled sends, because the peer may have told the program that they are
/// complete.
pub fn pulled(context: usize, lkey: u32, alive: impl Fn(Name) -> bool) {
    let (memory, suspects) = with(|ledger| {
        let memory = ledger.mrs.get(&(context, lkey)).copied();
        let here = ledger.qps.iter().filter(|(name, _)| name.context == context);
        let suspects: Vec<(Name, usize)> = here
            .map(|(name, qp)| {
                let shared = qp.queues.srq.and_then(|srq| ledger.srqs.get(&srq));
                let receives = qp.receives.iter().chain(shared.into_iter().flatten());
                let posted = qp.sends.iter().filter(|r| r.signalled).chain(receives);
                (*name, posted.filter(|r| r.lkeys.contains(&Lkey(lkey))).count())
            })
            .filter(|(_, count)| *count > 0)
            .collect();
        (memory, suspects)
    });
    let Some(Memory { addr, .. }) = memory else { return };
    // `alive` asks the adapter, so it is called without the lock of the ledger.
    for (name, count) in suspects.into_iter().filter(|(name, _)| alive(*name)) {
        with(|ledger| {
            ledger.said.once(Rule::Pulled, (addr, lkey.into()), || {
                format!(
                    "the memory region at {addr:#x} is deregistered while requests on {name} name \
                     it (requests: {count}): poll their completions first, or destroy the queue \
                     pair"
                )
            });
        });
    }
}
