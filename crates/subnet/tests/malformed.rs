//! Management datagrams that are not what they should be: each class answers with a status that
//! says what is wrong (IBTA vol1 13.4.7), or not at all.

use feroce_wire::mad::{Attribute, Class, DirectedRoute, MAD_LEN, MadHeader, Method, Smp, Status};
use feroce_wire::{Lid, Qpn};

use super::common::Bench;

/// What is wrong with a request.
type Damage = fn(&mut MadHeader);

/// Another base version, another class version, a method and an attribute that classes do not have.
const DAMAGES: [Damage; 4] = [
    |header| header.base_version = 9,
    |header| header.class_version = 9,
    |header| header.method = 0x7f,
    |header| header.attribute = 0xeeee,
];

/// The answer of Leaf1, by LID.
fn answer(bench: &mut Bench, qpn: Qpn, mad: [u8; MAD_LEN]) -> Option<MadHeader> {
    let packet = bench.packet(Lid(2), qpn, mad);
    bench.subnet.send(bench.now, bench.host1, packet);
    let answer = bench.received(bench.host1)?;
    assert_eq!(bench.received(bench.host1), None, "more than one answer");
    Some(MadHeader::parse(&answer.mad).expect("whole").0)
}

fn request(bench: &mut Bench, class: u8, version: u8, attribute: Attribute) -> MadHeader {
    let header = bench.header(Class(class), Method::GET, attribute);
    MadHeader { class_version: version, ..header }
}

#[test]
fn agents_say_what_is_wrong_with_a_request() {
    let mut bench = Bench::up();
    let wrong =
        [Status::BAD_VERSION, Status::BAD_VERSION, Status::BAD_METHOD, Status::BAD_ATTRIBUTE];
    for (class, qpn) in [(Class::SUBNET_LID.0, Qpn::QP0), (Class::PERFORMANCE.0, Qpn::QP1)] {
        let first = if qpn == Qpn::QP0 { Attribute::NODE_INFO } else { Attribute(1) };
        for (damage, status) in DAMAGES.iter().zip(wrong) {
            let mut header = request(&mut bench, class, 1, first);
            damage(&mut header);
            let mut mad = [0; MAD_LEN];
            header.emit(mad.first_chunk_mut().expect("room"));
            let said = answer(&mut bench, qpn, mad).expect("an answer");
            assert_eq!(Status(said.status), status, "class {class:#x}: {header:?}");
            assert_eq!((said.class, said.transaction), (class, header.transaction));
        }
    }
}

#[test]
fn a_class_without_an_agent_answers_requests_alone() {
    let mut bench = Bench::up();
    // Subnet administration, device management, communication, vendors' and applications' classes,
    // and one that is reserved.
    for class in [0x03, 0x06, 0x07, 0x0a, 0x21, 0x30, 0x3f, 0x7e] {
        for method in 0..=0xff {
            let header = request(&mut bench, class, 1, Attribute(1));
            let header = MadHeader { method, ..header };
            let mut mad = [0xa5; MAD_LEN];
            header.emit(mad.first_chunk_mut().expect("room"));
            let said = answer(&mut bench, Qpn::QP1, mad).map(|said| Status(said.status));
            let is_request = matches!(Method(method), Method::GET | Method::SET);
            let expected = is_request.then_some(Status::BAD_ATTRIBUTE);
            assert_eq!(said, expected, "class {class:#x}, method {method:#x}");
        }
    }
}

#[test]
fn routes_beyond_their_path_are_dropped_and_counted() {
    let mut bench = Bench::up();
    let errors = |bench: &Bench| {
        bench.subnet.port(bench.port("Leaf1", 1)).expect("a port").counters().rcv_errors
    };
    let before = errors(&bench);
    let cases = [(5, 3), (0, 64), (255, 255), (65, 63), (2, 64)];
    for (hop_pointer, hop_count) in cases {
        let header = bench.header(Class::SUBNET_DIRECTED, Method::GET, Attribute::NODE_INFO);
        let mut smp = Smp::by_path(header, &[2]).expect("few hops");
        // Its directed part begins at the switch, which gets the packet by LID.
        smp.dr_slid = Lid(1);
        smp.set_directed_route(DirectedRoute { is_returning: false, hop_pointer, hop_count });
        assert_eq!(bench.exchange(smp, Lid(2)), None, "{hop_pointer} of {hop_count}");
    }
    assert_eq!(errors(&bench) - before, cases.len() as u64);
    assert!(bench.ask_lid(2, Method::GET, Attribute::NODE_INFO, 0).is_some());
}

#[test]
fn unexpected_answers_have_no_answer() {
    let mut bench = Bench::up();
    for (class, qpn) in [(0x01, Qpn::QP0), (0x03, Qpn::QP1), (0x04, Qpn::QP1), (0x07, Qpn::QP1)] {
        for method in [Method::GET_RESP, Method::TRAP_REPRESS, Method(0xff)] {
            let header = request(&mut bench, class, 1, Attribute(0x11));
            let header = MadHeader { method: method.0, ..header };
            let mut mad = [0; MAD_LEN];
            header.emit(mad.first_chunk_mut().expect("room"));
            assert_eq!(answer(&mut bench, qpn, mad), None, "class {class:#x}, {method}");
        }
    }
}
