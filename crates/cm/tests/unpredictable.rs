//! Communication IDs and PSNs cannot be predicted.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

#[path = "../../wire/tests/common/uniform.rs"]
mod uniform;

use crate::common;
use crate::common::{A, B, Side, connect, req};
use feroce_cm::{Accepts, Config, Serves};
use feroce_wire::Qpn;
use feroce_wire::cm::CmMessage;

#[test]
fn ten_thousand_of_the_active_side() {
    for id_prefix in [None, Some(7)] {
        let mut side = Side::with(A, Config { seed: 3, id_prefix, ..Config::default() });
        let (mut ids, mut psns) = (Vec::new(), Vec::new());
        for n in 0..10_000 {
            let conn = side.manager.connect(side.now, &connect(A, Qpn::new(n + 2)));
            let sent = side.sent();
            let [CmMessage::Req(req)] = sent.as_slice() else { panic!("{sent:?}") };
            assert_eq!(req.local_id, conn.comm_id());
            ids.push(req.local_id.0);
            psns.push(req.psn.get());
        }
        let bits = if id_prefix.is_some() { 24 } else { 32 };
        uniform::assert_unpredictable("communication IDs", &ids, bits);
        uniform::assert_unpredictable("PSNs", &psns, 24);
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 10_000);
    }
}

#[test]
fn ten_thousand_of_the_passive_side() {
    let mut side = Side::with(
        B,
        Config {
            seed: 4,
            max_half_open: 10_000,
            max_half_open_per_listener: 10_000,
            max_half_open_per_source: 10_000,
            ..Config::default()
        },
    );
    side.manager
        .listen(side.now, common::SERVICE, Accepts::Any, Serves::Connections, u32::MAX)
        .unwrap();
    let request = req(1, 2);
    let (mut ids, mut psns) = (Vec::new(), Vec::new());
    for n in 0..10_000 {
        let local_id = feroce_wire::cm::CommId(n + 1);
        let request = feroce_wire::cm::Req { local_id, qpn: Qpn::new(n + 2), ..request };
        side.receive(&CmMessage::Req(request));
        let conn = side.request();
        let rep = side.accept(conn);
        ids.push(rep.local_id.0);
        psns.push(rep.psn.get());
    }
    uniform::assert_unpredictable("communication IDs", &ids, 32);
    uniform::assert_unpredictable("PSNs", &psns, 24);
}
