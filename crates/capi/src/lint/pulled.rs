//! Memory that is deregistered while requests name it.

use feroce::Lkey;

use super::ledger::{Memory, Name};
use super::report::Rule;

/// Says so if requests whose completion the program has not seen name memory that it deregisters.
/// Only those of queue pairs that are `alive` count: others have let go of theirs. Sends that are
/// not signalled do not count either, because programs may know from their peer that they are done.
pub(crate) fn pulled(context: usize, lkey: u32, alive: impl Fn(Name) -> bool) {
    let (memory, suspects) = super::with(|ledger| {
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
    // Not under the lock: it asks the adapter.
    for (name, count) in suspects.into_iter().filter(|(name, _)| alive(*name)) {
        super::with(|ledger| {
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
