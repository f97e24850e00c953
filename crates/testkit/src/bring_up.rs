//! Queue pairs of hosts, brought up.

use feroce_engine::{QpAttr, QpInitAttr, QpType};
use feroce_train::Instant;
use feroce_wire::{Gid, Pmtu, Psn, Qpn};

use crate::{Connection, Host, TestQp};

/// Takes a connected queue pair from RESET to RTS; `peer` is its address, number and first PSN.
pub fn bring_up(
    host: &mut Host,
    now: Instant,
    qp: &TestQp,
    peer: (Gid, Qpn, Psn),
    mtu: Pmtu,
    with: &QpAttr,
) {
    let (dgid, dest, rq_psn) = peer;
    let (sq_psn, with) = (qp.first_psn, *with);
    let connection = Connection { rq_psn, sq_psn, with, ..Connection::new(dgid, dest, mtu) };
    host.connect(now, qp.qpn, &connection);
}

/// A datagram queue pair in RTS.
pub fn datagram_qp(host: &mut Host, now: Instant) -> TestQp {
    let init = host.init_attr(QpType::Ud);
    datagram_qp_with(host, now, init)
}

/// A datagram queue pair in RTS, created with `init`.
pub fn datagram_qp_with(host: &mut Host, now: Instant, init: QpInitAttr) -> TestQp {
    let qp = host.create_qp(init);
    // A datagram queue pair has no peer: only the Q_Key and the PSN are used.
    let connection = Connection::new(host.gid, qp.qpn, Pmtu::B1024);
    host.connect(now, qp.qpn, &connection);
    qp
}
