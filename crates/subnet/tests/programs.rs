//! Programs behind ports: agents, transactions, retries and messages of several segments.

use feroce_subnet::{
    FileId, MadAddress, Output, PortRef, Programs, RegisterError, Registration, SendError, Subnet,
    UserMad,
};
use feroce_train::Instant;
use feroce_wire::Lid;
use feroce_wire::mad::{Attribute, Class, MadHeader, Method, Rmpp, RmppType};

use crate::common::Bench;

/// Methods as bits.
const GET: u128 = 1 << 1;
const GET_TABLE: u128 = 1 << 0x12;

struct World {
    subnet: Subnet,
    programs: Programs,
    now: Instant,
    hosts: [PortRef; 2],
    /// Datagrams that reached programs, whole or in segments.
    passed: usize,
    /// Loses every datagram whose number this says.
    loses: fn(usize) -> bool,
}

impl World {
    /// A subnet that a manager has brought up: Host1 has LID 1, Host4 LID 8.
    fn new() -> Self {
        let bench = Bench::up();
        let hosts = [bench.host1, bench.port("Host4", 1)];
        let (now, programs) = (bench.now, Programs::new());
        let mut world =
            Self { subnet: bench.subnet, programs, now, hosts, passed: 0, loses: |_| false };
        while world.subnet.poll_output().is_some() {}
        world
    }

    fn send(&mut self, file: FileId, mad: UserMad) -> Result<(), SendError> {
        let sent = self.programs.send(self.now, &mut self.subnet, file, mad);
        self.settle();
        sent
    }

    fn settle(&mut self) {
        while let Some(output) = self.subnet.poll_output() {
            let Output::Received(at, packet) = output else { continue };
            self.passed += 1;
            if !(self.loses)(self.passed) {
                self.programs.handle(self.now, &mut self.subnet, at, packet);
            }
        }
    }

    /// Lets time pass until something is due.
    fn next(&mut self) {
        self.now = self.programs.poll_timeout().expect("something is due");
        self.programs.handle_timeout(self.now, &mut self.subnet);
        self.settle();
    }

    fn delivered(&mut self) -> Option<(FileId, UserMad)> {
        let found = self.programs.poll_delivery()?;
        self.programs.taken(found.0);
        Some(found)
    }
}

fn to(lid: u16) -> MadAddress {
    MadAddress { qpn: 1, qkey: 0x8001_0000, lid: Lid(lid), ..MadAddress::default() }
}

fn header(class: u8, method: Method, transaction: u64) -> MadHeader {
    let request = MadHeader::request(Class(class), method, Attribute(0x11));
    MadHeader { transaction, ..request }
}

fn mad(agent: u32, lid: u16, header: MadHeader, timeout_ms: u32, retries: u32) -> UserMad {
    let mut data = vec![0; 256];
    header.emit(data.first_chunk_mut().expect("room"));
    UserMad { agent, status: 0, timeout_ms, retries, address: to(lid), data }
}

fn registration(class: u8, methods: u128) -> Registration {
    Registration { class, version: 1, methods, ..Registration::default() }
}

#[test]
fn requests_find_the_agent_of_their_method_and_responses_that_of_the_request() {
    let mut world = World::new();
    let [client, server] = world.hosts.map(|at| world.programs.open(at));
    let class = 0x0b;
    // Two agents of one program: the response goes to the one that asked.
    let first = world.programs.register(client, registration(class, 0)).expect("an agent");
    let asks = world.programs.register(client, registration(class, 0)).expect("an agent");
    let serves = world.programs.register(server, registration(class, GET)).expect("an agent");
    assert_eq!((first, asks, serves), (0, 1, 0));
    world.send(client, mad(asks, 8, header(class, Method::GET, 7), 100, 0)).expect("sent");
    let (file, request) = world.delivered().expect("a request");
    assert_eq!((file, request.agent, request.address.lid), (server, serves, Lid(1)));
    let (said, _) = MadHeader::parse(&request.data).expect("a header");
    // The upper half is the agent's, the lower half the program's.
    assert_eq!(said.transaction & 0xffff_ffff, 7);
    assert_ne!(said.transaction >> 32, 0);
    let answer = said.response(feroce_wire::mad::Status::OK);
    world.send(server, mad(serves, 1, answer, 0, 0)).expect("sent");
    let (file, response) = world.delivered().expect("a response");
    assert_eq!((file, response.agent, response.status), (client, asks, 0));
    assert_eq!(world.programs.poll_timeout(), None);
    // A second response to one request is for no one.
    world.send(server, mad(serves, 1, answer, 0, 0)).expect("sent");
    assert_eq!(world.delivered(), None);
}

#[test]
fn a_request_that_no_agent_takes_is_refused() {
    let mut world = World::new();
    let client = world.programs.open(world.hosts[0]);
    let asks = world.programs.register(client, registration(0x0b, 0)).expect("an agent");
    world.send(client, mad(asks, 8, header(0x0b, Method::GET, 1), 100, 0)).expect("sent");
    let (_, refusal) = world.delivered().expect("a refusal");
    let (said, _) = MadHeader::parse(&refusal.data).expect("a header");
    assert_eq!((said.method, said.status), (Method::GET_RESP.0, 0x000c));
}

#[test]
fn a_request_without_a_response_is_repeated_and_comes_back() {
    let mut world = World::new();
    let [client, server] = world.hosts.map(|at| world.programs.open(at));
    let asks = world.programs.register(client, registration(0x0b, 0)).expect("an agent");
    world.programs.register(server, registration(0x0b, GET)).expect("an agent");
    let begin = world.now;
    world.send(client, mad(asks, 8, header(0x0b, Method::GET, 9), 200, 2)).expect("sent");
    (0..3).for_each(|_| world.next());
    let all: Vec<(FileId, UserMad)> = std::iter::from_fn(|| world.delivered()).collect();
    let (failed, repeated) = all.split_last().expect("four");
    assert_eq!(repeated.iter().filter(|(file, _)| *file == server).count(), 3);
    assert_eq!((failed.0, failed.1.status), (client, UserMad::TIMED_OUT));
    assert_eq!((failed.1.data.len(), failed.1.data[15]), (MadHeader::LEN, 9));
    assert_eq!(world.now.nanos_since(begin), 600_000_000);
    assert_eq!(world.programs.poll_timeout(), None);
}

#[test]
fn registrations_that_overlap_are_refused_until_the_other_ends() {
    let mut world = World::new();
    let at = world.hosts[0];
    let (one, two) = (world.programs.open(at), world.programs.open(at));
    let elsewhere = world.programs.open(world.hosts[1]);
    let wants = registration(0x0b, GET);
    assert_eq!(world.programs.register(one, wants), Ok(0));
    assert_eq!(world.programs.register(two, wants), Err(RegisterError::InUse));
    assert_eq!(world.programs.register(elsewhere, wants), Ok(0));
    assert_eq!(world.programs.register(two, Registration { version: 2, ..wants }), Ok(0));
    let vendor = Registration { oui: [1, 2, 3], ..registration(0x32, GET) };
    assert_eq!(world.programs.register(one, vendor), Ok(1));
    assert_eq!(world.programs.register(two, vendor), Err(RegisterError::InUse));
    assert_eq!(world.programs.register(two, Registration { oui: [1, 2, 4], ..vendor }), Ok(1));
    let long = Registration { rmpp_version: 1, ..registration(0x04, 0) };
    assert_eq!(world.programs.register(one, long), Err(RegisterError::Rmpp));
    world.programs.close(one);
    assert_eq!(world.programs.register(two, wants), Ok(2));
    assert_eq!(world.programs.register(one, wants), Err(RegisterError::NotOpen));
    let more = (0..40).map(|_| world.programs.register(two, registration(0x0c, 0)));
    assert_eq!(more.filter(Result::is_err).count(), 11, "32 agents at most");
}

/// A client asks subnet administration of Host4 for a table of so many bytes.
fn fetch(loses: fn(usize) -> bool, records: usize) -> (World, Vec<UserMad>, Vec<u8>) {
    let mut world = World::new();
    let [client, server] = world.hosts.map(|at| world.programs.open(at));
    let long = |methods| Registration { version: 2, rmpp_version: 1, ..registration(3, methods) };
    let asks = world.programs.register(client, long(0)).expect("an agent");
    let serves = world.programs.register(server, long(GET_TABLE)).expect("an agent");
    let asked = MadHeader { class_version: 2, ..header(3, Method::GET_TABLE, 5) };
    world.send(client, mad(asks, 8, asked, 30_000, 0)).expect("sent");
    let (_, request) = world.delivered().expect("a request");
    let (said, _) = MadHeader::parse(&request.data).expect("a header");
    let mut table = mad(serves, 1, said.response(feroce_wire::mad::Status::OK), 0, 0);
    let rmpp = Rmpp { version: 1, kind: RmppType::DATA, is_active: true, ..Rmpp::default() };
    table.data[24..36].copy_from_slice(&rmpp.to_bytes());
    table.data.truncate(56);
    let data: Vec<u8> = (0..records).map(|i| (i / 200 * 7 + i) as u8).collect();
    table.data.extend(&data);
    world.loses = loses;
    world.send(server, table).expect("sent");
    while world.programs.poll_timeout().is_some() {
        world.next();
    }
    let delivered = std::iter::from_fn(|| world.delivered().map(|(_, mad)| mad)).collect();
    (world, delivered, data)
}

#[test]
fn long_messages_arrive_whole() {
    // Of one segment, of exactly two, and of more than a window.
    for records in [0, 1, 199, 200, 201, 400, 64 * 200, 65 * 200 + 3, 100_000] {
        let (world, delivered, data) = fetch(|_| false, records);
        assert_eq!(delivered.len(), 1, "{records}");
        assert_eq!(delivered[0].status, 0);
        assert_eq!(delivered[0].data[56..], data, "{records}");
        assert_eq!(world.programs.dropped(), 0);
    }
}

#[test]
fn long_messages_survive_losses() {
    let (_, delivered, data) = fetch(|number| number % 61 == 3, 40_000);
    assert_eq!(delivered.len(), 1);
    assert_eq!(delivered[0].data[56..], data);
}

#[test]
fn a_receiver_that_is_gone_ends_the_transfer() {
    let (world, delivered, _) = fetch(|_| true, 40_000);
    assert_eq!(delivered.len(), 1);
    assert_eq!(delivered[0].status, UserMad::TIMED_OUT);
    assert_eq!(world.programs.poll_timeout(), None);
}

#[test]
fn a_program_that_ends_leaves_nothing_behind() {
    let mut world = World::new();
    let client = world.programs.open(world.hosts[0]);
    let asks = world.programs.register(client, registration(0x0b, 0)).expect("an agent");
    world.loses = |_| true;
    world.send(client, mad(asks, 8, header(0x0b, Method::GET, 1), 100, 9)).expect("sent");
    assert!(world.programs.poll_timeout().is_some());
    assert_eq!(world.programs.files_at(world.hosts[0].node), 1);
    world.programs.close(client);
    assert_eq!(world.programs.poll_timeout(), None);
    assert_eq!(world.programs.files_at(world.hosts[0].node), 0);
    let again = world.send(client, mad(asks, 8, header(0x0b, Method::GET, 1), 100, 9));
    assert_eq!(again, Err(SendError::Invalid));
}

#[test]
fn malformed_datagrams_and_addresses_are_refused() {
    let mut world = World::new();
    let client = world.programs.open(world.hosts[0]);
    let asks = world.programs.register(client, registration(0x0b, 0)).expect("an agent");
    let good = mad(asks, 8, header(0x0b, Method::GET, 1), 0, 0);
    let wrong = |change: fn(&mut UserMad)| {
        let mut mad = good.clone();
        change(&mut mad);
        mad
    };
    for mad in [
        wrong(|mad| mad.agent = 5),
        wrong(|mad| mad.data.truncate(23)),
        wrong(|mad| mad.data.resize(257, 0)),
        wrong(|mad| mad.address.qpn = 77),
        wrong(|mad| mad.address.pkey_index = 64),
        wrong(|mad| mad.address.gid = Some((200, feroce_wire::Gid([0; 16])))),
    ] {
        assert_eq!(world.send(client, mad), Err(SendError::Invalid));
    }
    assert_eq!(world.send(client, good), Ok(()));
}

#[test]
fn messages_of_programs_are_read_as_they_were_written() {
    let gid = Some((3, feroce_wire::Gid([5; 16])));
    let address = MadAddress { sl: 2, path_bits: 1, gid, pkey_index: 9, ..to(8) };
    let mad =
        UserMad { agent: 1, status: 2, timeout_ms: 3, retries: 4, address, data: vec![6; 30] };
    let bytes = mad.to_bytes();
    assert_eq!(UserMad::parse(&bytes), Some(mad));
    assert_eq!(UserMad::parse(&bytes[..63]), None);
}
