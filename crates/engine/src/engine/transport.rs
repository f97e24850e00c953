//! The transport of a queue pair.

use feroce_train::Instant;

use crate::hca::attr::QpAttr;
use crate::hca::config::TransportKind;
use crate::hca::error::ModifyQpError;
use crate::hca::id::SrqId;
use crate::hca::qp::QpCommon;
use crate::ib::port::Port;
use crate::{ib, iwarp};

/// A queue pair, by its transport. Each variant holds what every queue pair has
/// (`hca::qp::QpCommon`) and the protocol machines of its transport. All queue pairs of an adapter
/// have the same one.
#[derive(Debug)]
pub(super) enum Transport {
    /// RC, UC, UD and XRC over packets.
    Ib(ib::qp::Qp),
    /// RC over a byte stream.
    Iwarp(iwarp::qp::Qp),
}

/// What the engine asks of a queue pair of either transport.
impl Transport {
    pub(super) fn new(kind: TransportKind, common: QpCommon) -> Self {
        match kind {
            TransportKind::InfiniBand => Self::Ib(ib::qp::Qp::new(common)),
            TransportKind::Iwarp => Self::Iwarp(iwarp::qp::Qp::new(common)),
        }
    }

    pub(super) fn modify(
        &mut self,
        port: &mut Port,
        now: Instant,
        attr: &QpAttr,
    ) -> Result<(), ModifyQpError> {
        match self {
            Self::Ib(qp) => qp.modify(port, now, attr),
            Self::Iwarp(qp) => qp.modify(&mut port.hca, now, attr),
        }
    }

    pub(super) fn query(&self) -> QpAttr {
        match self {
            Self::Ib(qp) => qp.query(),
            Self::Iwarp(qp) => qp.query(),
        }
    }

    pub(super) fn enter_error(&mut self, port: &mut Port, now: Instant) {
        match self {
            Self::Ib(qp) => qp.enter_error(port, now),
            Self::Iwarp(qp) => qp.stop(&mut port.hca, now),
        }
    }

    pub(super) fn reset(&mut self, port: &mut Port) {
        match self {
            Self::Ib(qp) => qp.reset(port),
            Self::Iwarp(qp) => qp.reset(&mut port.hca),
        }
    }

    /// A shared receive queue goes away.
    pub(super) fn forget_receive_of(&mut self, srq: SrqId) {
        match self {
            Self::Ib(qp) => qp.forget_receive_of(srq),
            Self::Iwarp(qp) => qp.forget_receive_of(srq),
        }
    }

    /// What every queue pair has.
    pub(super) fn common(&self) -> &QpCommon {
        match self {
            Self::Ib(qp) => &qp.common,
            Self::Iwarp(qp) => &qp.common,
        }
    }

    /// The queue pair, if its transport is that of InfiniBand.
    #[inline]
    pub(super) fn ib(&mut self) -> Option<&mut ib::qp::Qp> {
        match self {
            Self::Ib(qp) => Some(qp),
            Self::Iwarp(_) => None,
        }
    }

    /// The queue pair, if its transport is iWARP.
    #[inline]
    pub(super) fn iwarp(&mut self) -> Option<&mut iwarp::qp::Qp> {
        match self {
            Self::Ib(_) => None,
            Self::Iwarp(qp) => Some(qp),
        }
    }
}
