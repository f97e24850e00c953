//! The transport of a queue pair.

use crate::ib;

/// A queue pair, by its transport. Each variant holds what every queue pair has
/// (`hca::qp::QpCommon`) and the protocol machines of its transport.
///
/// The engine takes a queue pair apart by `let Transport::Ib(qp) = ...`. A second transport makes
/// these patterns refutable, so that the compiler shows every place that has to distinguish.
#[derive(Debug)]
pub(super) enum Transport {
    /// RC, UC, UD and XRC over packets.
    Ib(ib::qp::Qp),
}
