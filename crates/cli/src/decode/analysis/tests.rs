//! Connections that follow each other between the same ends.

use super::*;

const REQUESTER: [u8; 4] = [10, 0, 0, 1];
const RESPONDER: [u8; 4] = [10, 0, 0, 2];

/// Packets from the requester to the responder or back, numbered in their order.
#[derive(Default)]
struct Script {
    analysis: Analysis,
    number: u64,
}

impl Script {
    fn note(&mut self, fact: Fact) -> Option<String> {
        self.number += 1;
        let time_ns = Some(self.number * 1_000_000);
        self.analysis.note(&Fact { number: self.number, time_ns, ..fact })
    }

    fn send(&mut self, psn: u32) -> Option<String> {
        self.note(fact(Op::SendOnly, psn))
    }

    fn ack(&mut self, psn: u32) -> Option<String> {
        let syndrome = Some(Syndrome::from_u8(0));
        let (from, to) = (RESPONDER.into(), REQUESTER.into());
        let qp = Qpn::new(0x11);
        self.note(Fact { from, to, qp, syndrome, is_awaited: false, ..fact(Op::Acknowledge, psn) })
    }

    /// The responder accepts a connection, whose first number is `psn`.
    fn accept(&mut self, psn: u32, transaction: u64) {
        let (from, to) = (RESPONDER.into(), REQUESTER.into());
        let opens = Some(Opening { qp: Qpn::new(0x22), psn: Psn::new(psn), transaction });
        self.note(Fact { from, to, qp: Qpn::QP1, opens, ..fact(Op::SendOnly, 0) });
    }

    fn names(&self) -> Vec<String> {
        self.analysis.table().iter().skip(1).map(|row| row[0].clone()).collect()
    }
}

fn fact(op: Op, psn: u32) -> Fact {
    Fact {
        number: 0,
        time_ns: None,
        from: REQUESTER.into(),
        to: RESPONDER.into(),
        qp: Qpn::new(0x22),
        psn: Psn::new(psn),
        service: Service::Rc,
        op,
        payload_len: 8,
        is_awaited: true,
        reads: None,
        syndrome: None,
        is_marked: false,
        opens: None,
    }
}

#[test]
fn a_connection_manager_that_opens_again_starts_over() {
    let mut script = Script::default();
    script.accept(100, 1);
    assert_eq!((script.send(100), script.ack(100)), (None, None));
    // The reply is sent again; the connection is the same, and so is a request.
    script.accept(100, 1);
    assert!(script.send(100).is_some_and(|said| said.starts_with("sent again")));
    script.accept(100, 2);
    assert_eq!((script.send(100), script.ack(100)), (None, None));
    let name = "10.0.0.1 → 10.0.0.2 QP 0x22";
    assert_eq!(script.names(), [name.to_owned(), format!("{name} (connection 2)")]);
}

#[test]
fn without_one_the_numbers_tell() {
    let mut script = Script::default();
    for psn in 5000..5003 {
        assert_eq!((script.send(psn), script.ack(psn)), (None, None));
    }
    assert_eq!(script.send(5003), None);
    // Something waits for an answer: it is sent again, and the first one too.
    assert!(script.send(5000).is_some_and(|said| said.starts_with("sent again")));
    assert_eq!(script.ack(5003), None);
    assert_eq!(script.send(5000), None, "nothing waits: another connection");
    // Numbers that were never sent, before and far ahead.
    assert_eq!(script.send(17), None);
    assert_eq!(script.send(0x40_0000), None);
    assert_eq!(script.names().len(), 4);
    assert!(script.analysis.findings().iter().all(|said| !said.contains("not in the capture")));
}
