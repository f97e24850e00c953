//! Requests that completed in error for a reason that the status alone does not tell.

use crate::ledger::{Ledger, Name, Request, Work};
use crate::report::Rule;

/// A message did not fit (`IBV_WC_LOC_LEN_ERR`).
pub(crate) fn too_long(ledger: &mut Ledger, name: Name, request: Option<&Request>) {
    let is_send = request.is_some_and(|request| request.work != Work::Receive);
    ledger.said.once(Rule::TooLong, name.object(), || {
        let why = if is_send {
            "a message is longer than the queue pair can send: a datagram fits into one packet \
             (active_mtu of the port), a message has at most max_msg_sz bytes"
        } else {
            "a message is longer than the receive that took it: post receives that are as long as \
             the longest message of the peer (a datagram needs 40 bytes more, for the GRH)"
        };
        format!("{name}: {why}")
    });
}

/// The peer found a request invalid (`IBV_WC_REM_INV_REQ_ERR`).
pub(crate) fn invalid_there(ledger: &mut Ledger, name: Name, request: Option<&Request>) {
    let work = request.map(|request| request.work);
    ledger.said.once(Rule::InvalidThere, name.object(), || {
        let check = match work {
            Some(Work::Send | Work::Receive) => {
                "its receive is shorter than the message: post longer receives there"
            }
            Some(Work::Write) => {
                "give IBV_ACCESS_REMOTE_WRITE in qp_access_flags of its queue pair, and with an \
                 immediate, a receive"
            }
            Some(Work::Read) => {
                "give IBV_ACCESS_REMOTE_READ in qp_access_flags of its queue pair, and a \
                 max_dest_rd_atomic that is not less than max_rd_atomic here"
            }
            Some(Work::Atomic) => {
                "give IBV_ACCESS_REMOTE_ATOMIC in qp_access_flags of its queue pair, an address \
                 that is a multiple of 8, and a max_dest_rd_atomic that is not less than \
                 max_rd_atomic here"
            }
            None => "check qp_access_flags of its queue pair and the length of its receives",
        };
        format!("{name}: the peer refused a request as invalid: {check}")
    });
}

/// The peer did not answer (`IBV_WC_RETRY_EXC_ERR`).
pub(crate) fn unanswered(ledger: &mut Ledger, name: Name) {
    ledger.said.once(Rule::Unanswered, name.object(), || {
        format!(
            "{name}: the peer did not answer until retries ran out: check that it runs, that its \
             queue pair was in RTR before the first send, dest_qp_num, dgid and the PSNs, and that \
             UDP port 4791 is not filtered; timeout and retry_cnt say how long to wait"
        )
    });
}

/// A call was refused. `why` is what the adapter says.
pub(crate) fn call(ledger: &mut Ledger, name: Name, call: &str, why: &str) {
    let rule = if call == "ibv_modify_qp" { Rule::Modify } else { Rule::Post };
    ledger.said.once(rule, name.object(), || format!("{name}: {call} failed: {why}"));
}
