//! Peers that are killed at every step: the survivor always gets an event, and gets it once.
//!
//! The peer is this program, in a process of its own.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command};

use feroce::cm::{
    CmError, ConnParam, Connection, Connector, Event, EventChannel, EventKind, Listener, Manager,
    PortSpace, Timing,
};
use feroce::{Device, Error};

/// Environment variable of the peer: the address to connect to.
const PEER: &str = "FEROCE_TEST_CM_PEER";

/// Four messages, 0.1 s apart.
const QUICK: Timing = Timing { response_timeout: 14, packet_life_time: 12, max_retries: 3 };

fn host(net: u8, number: u8) -> (Manager, Ipv4Addr) {
    let ip = Ipv4Addr::new(127, net, 0, number);
    (Manager::with_timing([Device::at([ip.into()]).open().unwrap()], QUICK).unwrap(), ip)
}

/// In the peer: connects, and waits to be killed.
fn be_the_peer(net: u8) {
    let Ok(to) = std::env::var(PEER) else { return };
    let connection = Connector::new(&host(net, 2).0).connect(to.parse().unwrap());
    loop {
        std::thread::park();
        assert!(connection.is_ok());
    }
}

/// A peer process, which does not outlive the test even if the test fails.
struct Peer(Child);

impl Peer {
    /// One that connects to this address.
    fn start(test: &str, to: SocketAddr) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let test = format!("cm_death::{test}");
        command.args(["--exact", &test, "--nocapture"]).env(PEER, to.to_string());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All further events, up to one that no other can follow.
fn rest(channel: &EventChannel) -> Vec<EventKind> {
    let mut kinds = Vec::new();
    while let Some(event) = channel.wait_event(Some(20_000)).unwrap() {
        kinds.push(event.kind);
        if matches!(event.kind, EventKind::TimewaitExit | EventKind::Unreachable) {
            break;
        }
    }
    kinds
}

#[test]
fn killed_while_it_waits_for_an_answer() {
    be_the_peer(150);
    let (manager, ip) = host(150, 1);
    let listener = Listener::bind(&manager, (ip, 0).into()).unwrap();
    let peer = Peer::start("killed_while_it_waits_for_an_answer", listener.local_addr());
    let request = listener.accept().unwrap();
    drop(peer);
    let outcome = request.accept().map(|_| ());
    assert!(matches!(outcome, Err(Error::Cm(CmError::Unreachable))), "{outcome:?}");
}

#[test]
fn killed_while_connected() {
    be_the_peer(151);
    let (manager, ip) = host(151, 1);
    let listener = Listener::bind(&manager, (ip, 0).into()).unwrap();
    let peer = Peer::start("killed_while_connected", listener.local_addr());
    let here: Connection = listener.accept().unwrap().accept().unwrap();
    let channel = here.id().channel();
    assert!(channel.try_event().is_none());
    drop(peer);
    // As the kernel would report it: it sends a DREQ in the name of a process that is killed.
    let over: Event = channel.wait_event(Some(20_000)).unwrap().expect("an event in time");
    assert_eq!((over.kind, over.status), (EventKind::Disconnected, 0));
    here.id().disconnect().unwrap();
    assert_eq!(rest(&channel), [EventKind::TimewaitExit]);
}

#[test]
fn killed_while_its_listener_is_connected() {
    let Ok(to) = std::env::var(PEER) else {
        let (manager, _) = host(153, 1);
        let at = SocketAddr::from((Ipv4Addr::new(127, 153, 0, 2), 7471));
        let peer = Peer::start("killed_while_its_listener_is_connected", at);
        // Until the peer listens, requests are refused.
        let connect = || Connector::new(&manager).connect(at).ok();
        let here = std::iter::repeat_with(connect).flatten().next().unwrap();
        drop(peer);
        let over = here.id().channel().wait_event(Some(20_000)).unwrap().expect("an event");
        return assert_eq!((over.kind, over.status), (EventKind::Disconnected, 0));
    };
    let listener = Listener::bind(&host(153, 2).0, to.parse().unwrap()).unwrap();
    let connection = listener.accept().unwrap().accept();
    loop {
        std::thread::park();
        assert!(connection.is_ok());
    }
}

#[test]
fn dead_before_it_is_asked() {
    let (manager, ip) = host(152, 1);
    let nobody = SocketAddr::from((Ipv4Addr::new(127, 152, 0, 9), 7471));
    let channel = manager.event_channel().unwrap();
    for space in [PortSpace::Tcp, PortSpace::Udp] {
        let id = channel.create_id(space).unwrap();
        id.resolve_addr(Some((ip, 0).into()), nobody, 0).unwrap();
        id.resolve_route(0).unwrap();
        id.connect(&ConnParam::default()).unwrap();
        let kinds = rest(&channel);
        let expected = [EventKind::AddrResolved, EventKind::RouteResolved, EventKind::Unreachable];
        assert_eq!(kinds, expected);
    }
}
