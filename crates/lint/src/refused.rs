//! Access to memory without the right to it.

use feroce::{Access, Lkey};

use crate::ledger::{Ledger, Name, Request, Work, with};
use crate::report::Rule;

/// A request failed because of its local memory.
pub(crate) fn locally(ledger: &mut Ledger, name: Name, request: Option<&Request>) {
    let why = request.and_then(|request| culprit(ledger, name, request));
    ledger.said.once(Rule::RefusedLocally, name.object(), || {
        let why = why.unwrap_or_else(|| {
            "a request names memory that is not in the region of its lkey, or of another \
             protection domain: check addr, length and lkey"
                .to_owned()
        });
        format!("{name}: {why}")
    });
}

/// The reason why a key of a request is refused.
fn culprit(ledger: &Ledger, name: Name, request: &Request) -> Option<String> {
    request.lkeys.iter().find_map(|&Lkey(lkey)| {
        let Some(memory) = ledger.mrs.get(&(name.context, lkey)) else {
            return Some(format!(
                "a request names lkey {lkey:#x}, which no memory region has: register the memory, \
                 and deregister it only after its last completion"
            ));
        };
        let denied = request.work.writes_here() && !memory.access.contains(Access::LOCAL_WRITE);
        denied.then(|| {
            let what = match request.work {
                Work::Read => "an RDMA read",
                Work::Atomic => "an atomic",
                _ => "a receive",
            };
            format!(
                "{what} writes to the memory region at {:#x}, which does not allow that: register \
                 it with IBV_ACCESS_LOCAL_WRITE",
                memory.addr
            )
        })
    })
}

/// The right that the request needs at the peer.
fn right(work: Option<Work>) -> &'static str {
    match work {
        Some(Work::Write) => "IBV_ACCESS_REMOTE_WRITE",
        Some(Work::Read) => "IBV_ACCESS_REMOTE_READ",
        Some(Work::Atomic) => "IBV_ACCESS_REMOTE_ATOMIC",
        _ => "the right to it",
    }
}

/// The peer refused access to its memory.
pub(crate) fn by_peer(ledger: &mut Ledger, name: Name, request: Option<&Request>) {
    let right = right(request.map(|request| request.work));
    ledger.said.once(Rule::RefusedByPeer, name.object(), || {
        format!(
            "{name}: the peer refused access to its memory: check rkey and range, and give \
             {right} there, to the memory region and in qp_access_flags of the queue pair"
        )
    });
}

/// The adapter refused a peer access to memory of this process.
pub fn access_refused_here(name: Name) {
    with(|ledger| {
        let access = ledger.qps.get(&name).map_or(Access::empty(), |qp| qp.access);
        let given = [
            (Access::REMOTE_WRITE, "IBV_ACCESS_REMOTE_WRITE"),
            (Access::REMOTE_READ, "IBV_ACCESS_REMOTE_READ"),
            (Access::REMOTE_ATOMIC, "IBV_ACCESS_REMOTE_ATOMIC"),
        ];
        let given = given.iter().filter(|(flag, _)| access.contains(*flag)).map(|(_, name)| *name);
        let given: Vec<&str> = given.collect();
        let given = if given.is_empty() { "nothing".to_owned() } else { given.join(" | ") };
        ledger.said.once(Rule::RefusedHere, name.object(), || {
            format!(
                "{name}: a peer was refused access to memory here; qp_access_flags allow {given}: \
                 add what it needs there and to the memory region, and check its rkey and range"
            )
        });
    });
}
