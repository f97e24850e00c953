//! Answers that the peer did not send: an attacker who knows the address and the queue pair, but
//! not the PSNs that wait for an answer.

use feroce_engine::{Data, QpState, SendOp, SendWr, WcStatus};
use feroce_testkit::script::{ACK, nak, rnr};
use feroce_testkit::{OUR_PSN, Scripted, wr};
use feroce_wire::{NakCode, Syndrome};

const OK: WcStatus = WcStatus::Success;

const CODES: [NakCode; 4] = [
    NakCode::PsnSequence,
    NakCode::InvalidRequest,
    NakCode::RemoteAccess,
    NakCode::RemoteOperational,
];

fn send(id: u64) -> SendWr {
    wr(id, SendOp::Send, Data::EMPTY)
}

/// Every kind of acknowledgement.
fn syndromes() -> impl Iterator<Item = Syndrome> {
    CODES.into_iter().map(nak).chain([rnr(1), ACK])
}

/// PSNs without those from `first` to `last`: all near them, and a sample of the rest.
fn outside(first: u32, last: u32) -> impl Iterator<Item = u32> {
    let near = (first.wrapping_sub(70)..first).chain(last + 1..last + 70);
    let far = (0..1 << 24).step_by(1009);
    near.chain(far).map(|psn| psn & 0xff_ffff).filter(move |psn| !(first..=last).contains(psn))
}

#[test]
fn nothing_outside_the_window_is_an_answer() {
    let mut script = Scripted::rc();
    let sent = script.post_all((0..5).map(send));
    assert_eq!(sent.len(), 5);
    let mut forged = 0;
    for psn in outside(OUR_PSN, OUR_PSN + 4) {
        for syndrome in syndromes() {
            // The acknowledgement before the first is a repetition; it may bring credits.
            if (psn, syndrome) != (OUR_PSN - 1, ACK) {
                assert!(script.answer(psn, syndrome).is_empty(), "{psn:#x} {syndrome:?}");
                forged += 1;
            }
        }
    }
    assert_eq!(script.host.engine.drops().drop_ghost_response, forged);
    assert_eq!((script.done(), script.state()), (vec![], QpState::Rts));
    // The peer's answer is as good as before.
    script.answer(OUR_PSN + 4, ACK);
    assert_eq!(script.done(), [(0, OK), (1, OK), (2, OK), (3, OK), (4, OK)]);
}

#[test]
fn a_requester_that_waits_for_nothing_has_no_window() {
    let mut script = Scripted::rc();
    script.post(send(1));
    script.answer(OUR_PSN, ACK);
    assert_eq!(script.done(), [(1, OK)]);
    for psn in outside(OUR_PSN, OUR_PSN).chain([OUR_PSN]) {
        for code in CODES {
            assert!(script.answer(psn, nak(code)).is_empty(), "{psn:#x} {code:?}");
        }
    }
    assert_eq!((script.done(), script.state()), (vec![], QpState::Rts));
    script.post(send(2));
    script.answer(OUR_PSN + 1, ACK);
    assert_eq!(script.done(), [(2, OK)]);
}
