//! A queue pair of the iWARP transport: its state.

use feroce_train::Instant;
use feroce_wire::iwarp::fpdu::{Deframer, Framer};
use feroce_wire::iwarp::terminate::Terminate;

use super::requester_state::Requester;
use super::responder_state::Responder;
use super::setup::{Begin, StreamSetup};
use crate::hca::qp::QpCommon;
use crate::hca::state::QpState;

/// A queue pair of the iWARP transport.
#[derive(Debug)]
pub(crate) struct Qp {
    /// What every queue pair has.
    pub(crate) common: QpCommon,
    /// The stream, from the end of the handshake on.
    pub(super) stream: Option<Stream>,
}

impl Qp {
    /// In INIT: an RNIC has no state before the one in which a stream may be attached.
    pub(crate) fn new(mut common: QpCommon) -> Self {
        common.set_state(QpState::Init);
        Self { common, stream: None }
    }
}

/// The stream of a connected queue pair.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) setup: StreamSetup,
    pub(super) framer: Framer,
    pub(super) deframer: Deframer,
    pub(super) req: Requester,
    pub(super) rsp: Responder,
    /// When the last bytes arrived.
    pub(super) heard_at: Instant,
    /// The driver receives payload into memory, see [`Qp::lend_scatter`].
    pub(super) is_landing: bool,
    /// Bytes given to the driver so far.
    pub(super) given: u64,
    /// Bytes of them that TCP has taken.
    pub(super) taken: u64,
    /// The peer has sent a message, or need not: this end may send.
    pub(super) may_send: bool,
    /// A response was sent last; a request goes next if there is one.
    pub(super) replied: bool,
    pub(super) phase: Phase,
}

/// How far a stream is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Both directions work.
    Open,
    /// A TERMINATE is to be sent; it is the last message.
    Terminating(Terminate),
    /// Nothing is sent or received any more.
    Over,
}

impl Stream {
    pub(super) fn new(setup: &StreamSetup) -> Self {
        let has_announced = setup.begin == Begin::Send;
        Self {
            setup: *setup,
            framer: Framer::new(setup.crc, setup.markers),
            deframer: Deframer::new(setup.crc),
            req: Requester { has_announced, ..Requester::default() },
            rsp: Responder::default(),
            heard_at: Instant::ZERO,
            is_landing: false,
            given: 0,
            taken: 0,
            may_send: !matches!(setup.begin, Begin::Await(_)),
            replied: false,
            phase: Phase::Open,
        }
    }
}
