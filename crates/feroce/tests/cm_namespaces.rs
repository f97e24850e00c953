//! Connections by address between two hosts: network namespaces with a cable between them.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::netns::{Cable, ip, with_cable};
use feroce::cm::{
    CmError, ConnParam, Connection, Connector, EventKind, IdState, Listener, Manager, PortSpace,
};
use feroce::{Access, Error, Qp, QpCap, QpState, SendOp, SendWr, WcStatus};

/// The index of the cable in the namespace of this thread.
fn scope() -> u32 {
    nix::net::if_::if_nametoindex("wire").unwrap()
}

/// Connects from `a` to a listener in `b`; each call runs in its namespace, as devices are opened
/// when they are needed.
fn connect(cable: &Cable, listener: &Listener, to: SocketAddr) -> (Connection, Connection) {
    std::thread::scope(|threads| {
        let asking = threads.spawn(|| {
            cable.in_a(|| Connector::new(&Manager::new()).private_data(b"hello").connect(to))
        });
        let request = cable.in_b(|| listener.accept()).unwrap();
        assert_eq!(&request.private_data()[..5], b"hello");
        let there = request.accept().unwrap();
        (asking.join().unwrap().unwrap(), there)
    })
}

fn write(here: &mut Connection, there: &Connection) {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let source = here.pd().alloc_mr(20_000, access).unwrap();
    let target = there.pd().alloc_mr(20_000, access).unwrap();
    source.write_at(19_990, b"the end").unwrap();
    let wr = SendWr::new(1, SendOp::Write(target.remote(0)), source.data(0..20_000));
    here.post_send([wr]).unwrap();
    assert_eq!(here.send_cq().wait().unwrap().status, WcStatus::Success);
    let mut bytes = [0; 7];
    target.read_at(19_990, &mut bytes).unwrap();
    assert_eq!(&bytes, b"the end");
}

#[test]
fn every_family_connects() {
    with_cable(1500, |cable| {
        let manager = Manager::new();
        // All addresses of all devices, of both families.
        let any = (Ipv6Addr::UNSPECIFIED, 0).into();
        let listener = cable.in_b(|| Listener::bind(&manager, any)).unwrap();
        let port = listener.local_addr().port();
        let local: Ipv6Addr = "fe80::2".parse().unwrap();
        let link_local = SocketAddrV6::new(local, port, 0, cable.in_a(scope));
        for to in [
            (Ipv4Addr::from(Cable::B4), port).into(),
            ("fd09::2".parse::<IpAddr>().unwrap(), port).into(),
            link_local.into(),
        ] {
            let (mut here, there) = connect(cable, &listener, to);
            assert_eq!(here.id().peer_addr(), Some(to));
            assert_eq!(there.id().local_addr().unwrap().ip(), to.ip());
            let (ours, theirs) = (here.id().local_addr(), there.id().peer_addr());
            assert_eq!(ours.map(|a| (a.ip(), a.port())), theirs.map(|a| (a.ip(), a.port())));
            write(&mut here, &there);
            here.disconnect().unwrap();
            there.wait_disconnected().unwrap();
        }
    });
}

#[test]
fn a_host_connects_to_itself() {
    with_cable(1500, |cable| {
        cable.in_a(|| {
            let manager = Manager::new();
            for own in [Ipv4Addr::from(Cable::A4), Ipv4Addr::LOCALHOST] {
                let listener = Listener::bind(&manager, (own, 0).into()).unwrap();
                let (to, again) = (listener.local_addr(), manager.clone());
                let channel = again.event_channel().unwrap();
                let id = channel.create_id(PortSpace::Tcp).unwrap();
                id.resolve_addr(None, to, 0).unwrap();
                id.resolve_route(0).unwrap();
                let context = id.context().unwrap();
                let cq = context.create_cq(8).unwrap();
                let pd = context.alloc_pd().unwrap();
                let qp = pd.rc_qp(&cq, &cq, QpCap::new(4, 4)).create().unwrap();
                id.use_qp(&qp).unwrap();
                id.connect(&ConnParam::default()).unwrap();
                let there = listener.accept().unwrap().accept().unwrap();
                let kinds = [0; 3].map(|_| channel.wait_event(None).unwrap().unwrap().kind);
                assert_eq!(kinds[2], EventKind::Established);
                assert_eq!((qp.state(), there.state()), (QpState::Rts, QpState::Rts));
            }
        });
    });
}

#[test]
fn a_peer_without_a_route_is_unreachable() {
    with_cable(1500, |cable| {
        cable.in_a(|| {
            let nowhere = Connector::new(&Manager::new()).connect(([198, 51, 100, 1], 7).into());
            assert!(matches!(nowhere, Err(Error::Cm(CmError::Route(_)))), "{nowhere:?}");
        });
    });
}

#[test]
fn a_group_is_heard_across_the_cable() {
    with_cable(1500, |cable| {
        let member = |own: [u8; 4], send_only: bool, group: IpAddr| {
            let channel = Manager::new().event_channel().unwrap();
            let id = channel.create_id(PortSpace::Udp).unwrap();
            id.bind((Ipv4Addr::from(own), 0).into()).unwrap();
            let context = id.context().unwrap();
            let cq = context.create_cq(8).unwrap();
            let qp = context.alloc_pd().unwrap().ud_qp(&cq, &cq, QpCap::new(4, 4));
            let qp: Qp = qp.create().unwrap();
            id.use_qp(&qp).unwrap();
            id.join_multicast(group, send_only).unwrap();
            let ud = channel.wait_event(None).unwrap().unwrap().ud.unwrap();
            (id, qp, ud)
        };
        let group: IpAddr = Ipv4Addr::new(239, 1, 1, 1).into();
        let (_listening, mut hears, _) = cable.in_b(|| member(Cable::B4, false, group));
        let (_sending, mut says, ud) = cable.in_a(|| member(Cable::A4, true, group));
        let heard = hears.handle().pd().alloc_mr(128, Access::LOCAL_WRITE).unwrap();
        let said = says.handle().pd().alloc_mr(64, Access::LOCAL_WRITE).unwrap();
        hears.post_recv([heard.recv(1, 0..128)]).unwrap();
        let ah = says.handle().pd().create_ah(ud.av).unwrap();
        let wr = SendWr::new(2, SendOp::Send, said.data(0..8));
        says.post_send([SendWr { dest: ah.dest(ud.qpn, ud.qkey), ..wr }]).unwrap();
        assert_eq!(hears.recv_cq().wait().unwrap().byte_len, 48);
        // A send-only member does not receive its own datagrams.
        assert_eq!(says.send_cq().wait().unwrap().wr_id, 2);
        assert!(says.recv_cq().poll_one().is_none());
    });
}

#[test]
fn a_device_that_loses_its_addresses_is_told_of() {
    with_cable(1500, |cable| {
        cable.in_a(|| {
            let manager = Manager::new();
            let channel = manager.event_channel().unwrap();
            let id = channel.create_id(PortSpace::Tcp).unwrap();
            id.bind((Ipv4Addr::from(Cable::A4), 0).into()).unwrap();
            id.listen(1).unwrap();
            ip("addr flush dev wire");
            let event = channel.wait_event(Some(20_000)).unwrap().expect("an event in time");
            assert_eq!((event.kind, event.id), (EventKind::DeviceRemoval, id));
            assert!(channel.try_event().is_none());
        });
    });
}

/// Addresses on the cable that no host has, of each family; and one behind such a router.
fn unknown(cable: &Cable) -> [SocketAddr; 4] {
    cable.in_a(|| ip("route add 10.10.0.0/24 via 10.9.0.77"));
    let link_local = SocketAddrV6::new("fe80::77".parse().unwrap(), 7471, 0, cable.in_a(scope));
    [
        "10.9.0.77:7471".parse().unwrap(),
        "10.10.0.5:7471".parse().unwrap(),
        "[fd09::77]:7471".parse().unwrap(),
        link_local.into(),
    ]
}

#[test]
fn a_neighbour_that_does_not_answer_is_an_address_error() {
    with_cable(1500, |cable| {
        let targets = unknown(cable);
        cable.in_a(|| {
            let channel = Manager::new().event_channel().unwrap();
            // All at once: none waits for another.
            let ids = targets.map(|to| {
                let id = channel.create_id(PortSpace::Tcp).unwrap();
                id.resolve_addr(None, to, 2000).unwrap();
                assert_eq!(id.state(), Some(IdState::AddrQuery), "{to}");
                assert!(matches!(id.resolve_route(0), Err(Error::Cm(CmError::WrongState))));
                id
            });
            let mut failed: Vec<_> =
                ids.iter().map(|_| channel.wait_event(None).unwrap()).collect();
            failed.sort_by_key(|event| event.as_ref().map(|event| event.id.number()));
            for (event, id) in failed.into_iter().flatten().zip(&ids) {
                let expected = (EventKind::AddrError, -libc::ETIMEDOUT, id);
                assert_eq!((event.kind, event.status, &event.id), expected);
                assert_eq!(id.state(), Some(IdState::AddrBound));
            }
            // The id may try another address.
            ids[0].resolve_addr(None, (Ipv4Addr::from(Cable::B4), 7471).into(), 1000).unwrap();
            let event = channel.wait_event(None).unwrap().unwrap();
            assert_eq!((event.kind, event.id), (EventKind::AddrResolved, ids[0].clone()));
            // One that is destroyed meanwhile has no event.
            let id = channel.create_id(PortSpace::Tcp).unwrap();
            id.resolve_addr(None, targets[0], 100).unwrap();
            drop(id);
            assert!(channel.wait_event(Some(300)).unwrap().is_none());
        });
    });
}

#[test]
fn a_neighbour_is_asked_for_its_address() {
    with_cable(1500, |cable| {
        cable.in_a(|| {
            let channel = Manager::new().event_channel().unwrap();
            for to in ["10.9.0.2", "fd09::2"] {
                ip(&format!("neigh del {to} dev wire"));
                let id = channel.create_id(PortSpace::Tcp).unwrap();
                let to = SocketAddr::new(to.parse().unwrap(), 7471);
                id.resolve_addr(None, to, 60_000).unwrap();
                let event = channel.wait_event(None).unwrap().unwrap();
                assert_eq!((event.kind, event.status), (EventKind::AddrResolved, 0), "{to}");
                assert_eq!(event.id.state(), Some(IdState::AddrResolved));
                // The kernel has asked, and knows it now.
                assert!(ip(&format!("neigh show {}", to.ip())).contains("02:00:00:00:00:02"));
            }
        });
    });
}
