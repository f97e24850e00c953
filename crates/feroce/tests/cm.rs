//! Connections by address, over loopback devices.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::disallowed_methods, reason = "two ends that block need two threads")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use feroce::cm::{
    CmError, CmId, ConnParam, Connection, Connector, Event, EventChannel, EventKind, IdOption,
    Listener, Manager, PortSpace, RejReason, UDP_QKEY,
};
use feroce::{
    Access, Device, Error, FaultConfig, Qp, QpCap, QpState, SendOp, SendWr, Settings, WcStatus,
};

/// A manager with one device at `127.net.0.number`; or with the one that `FEROCE_TEST_DEVICE`
/// names, for another backend.
fn host(net: u8, number: u8) -> (Manager, Ipv4Addr) {
    let device = match std::env::var("FEROCE_TEST_DEVICE") {
        Ok(name) => Device::named(&name).unwrap(),
        Err(_) => Device::at([Ipv4Addr::new(127, net, 0, number).into()]),
    };
    let ip = device.gids().iter().find_map(|gid| gid.as_ipv4()).expect("an address of IPv4");
    (Manager::with([device.open().unwrap()]).unwrap(), ip.into())
}

/// Whether the test runs on another backend, on a device that is not a software adapter.
fn is_foreign() -> bool {
    std::env::var_os("FEROCE_TEST_DEVICE").is_some()
}

/// The next event, which must be of this kind.
fn expect(channel: &EventChannel, kind: EventKind) -> Event {
    let event = channel.wait_event(Some(20_000)).unwrap().expect("an event in time");
    assert_eq!(event.kind, kind, "{event:?}");
    event
}

/// The next event of either channel: each end may wait until the other has taken its event.
fn next_of(channels: [&EventChannel; 2]) -> Event {
    let looks = (0..1000).flat_map(|_| channels);
    let mut found = looks.filter_map(|channel| channel.wait_event(Some(15)).unwrap());
    found.next().expect("an event in time")
}

/// An id that is ready to connect to the peer.
fn resolved(channel: &EventChannel, space: PortSpace, to: SocketAddr) -> CmId {
    let id = channel.create_id(space).unwrap();
    resolve(channel, &id, to);
    id
}

fn resolve(channel: &EventChannel, id: &CmId, to: SocketAddr) {
    id.resolve_addr(None, to, 1000).unwrap();
    assert_eq!(expect(channel, EventKind::AddrResolved).id, *id);
    id.resolve_route(1000).unwrap();
    expect(channel, EventKind::RouteResolved);
}

fn listening(channel: &EventChannel, space: PortSpace, ip: Ipv4Addr) -> CmId {
    let id = channel.create_id(space).unwrap();
    id.bind((ip, 0).into()).unwrap();
    id.listen(16).unwrap();
    id
}

fn qp_for(id: &CmId) -> Qp {
    let context = id.context().unwrap();
    let cq = context.create_cq(64).unwrap();
    let pd = context.alloc_pd().unwrap();
    let qp = match id.is_datagrams() {
        false => pd.rc_qp(&cq, &cq, QpCap::new(16, 16)),
        true => pd.ud_qp(&cq, &cq, QpCap::new(16, 16)),
    };
    let qp = qp.create().unwrap();
    id.use_qp(&qp).unwrap();
    qp
}

/// Sends a message from one end to the other.
fn exchange(from: &mut Connection, to: &mut Connection) {
    let (source, target) = (
        from.pd().alloc_mr(64, Access::LOCAL_WRITE).unwrap(),
        to.pd().alloc_mr(64, Access::LOCAL_WRITE).unwrap(),
    );
    source.write_at(0, b"across").unwrap();
    to.post_recv([target.recv(1, 0..64)]).unwrap();
    from.post_send([SendWr::new(2, SendOp::Send, source.data(0..6))]).unwrap();
    assert_eq!(from.send_cq().wait().unwrap().status, WcStatus::Success);
    assert_eq!(to.recv_cq().wait().unwrap().status, WcStatus::Success);
    let mut bytes = [0; 6];
    target.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"across");
}

#[test]
fn connections_carry_data_and_private_data_both_ways() {
    let ((server, ip), (client, from)) = (host(130, 1), host(130, 2));
    let listener = Listener::bind(&server, (ip, 0).into()).unwrap();
    let to = listener.local_addr();
    let asking =
        std::thread::spawn(move || Connector::new(&client).private_data(b"ask").connect(to));
    let request = listener.accept().unwrap();
    assert_eq!(&request.private_data()[..4], b"ask\0");
    assert_eq!(request.peer_addr().unwrap().ip(), from);
    let param = ConnParam { private_data: b"welcome".to_vec(), ..ConnParam::default() };
    let mut there = request.param(param).accept().unwrap();
    let mut here = asking.join().unwrap().unwrap();
    assert_eq!(&here.private_data()[..8], b"welcome\0");
    assert_eq!(here.id().peer_addr(), Some(to));
    assert_eq!((here.state(), there.state()), (QpState::Rts, QpState::Rts));
    exchange(&mut here, &mut there);
    exchange(&mut there, &mut here);
    // The side that disconnects waits for its peer.
    let ending = std::thread::spawn(move || here.disconnect());
    there.wait_disconnected().unwrap();
    ending.join().unwrap().unwrap();
}

#[test]
fn refusals_say_why() {
    let ((server, ip), (client, _)) = (host(131, 1), host(131, 2));
    // No process listens.
    let refused = Connector::new(&client).connect((ip, 9).into()).unwrap_err();
    let Error::Cm(CmError::Rejected { reason, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(reason, RejReason::INVALID_SERVICE_ID);
    // A process listens, but its consumer rejects the request.
    let listener = Listener::bind(&server, (ip, 0).into()).unwrap();
    let to = listener.local_addr();
    let again = client.clone();
    let asking = std::thread::spawn(move || Connector::new(&client).connect(to));
    listener.accept().unwrap().reject(b"no thanks").unwrap();
    let refused = asking.join().unwrap().unwrap_err();
    let Error::Cm(CmError::Rejected { reason, private_data }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!((reason, &private_data[..9]), (RejReason::CONSUMER, &b"no thanks"[..]));
    // Dropping a request rejects it, too.
    let asking = std::thread::spawn(move || Connector::new(&again).connect(to));
    drop(listener.accept().unwrap());
    assert!(matches!(asking.join().unwrap(), Err(Error::Cm(CmError::Rejected { .. }))));
}

#[test]
fn a_request_may_come_a_moment_before_its_listener() {
    let ((server, ip), (client, _)) = (host(129, 1), host(129, 2));
    let (asked, asking) = (server.event_channel().unwrap(), client.event_channel().unwrap());
    let to = (ip, 7471).into();
    let id = resolved(&asking, PortSpace::Tcp, to);
    let _qp = qp_for(&id);
    // Both are bound and know of it, so nothing is left to do but to listen.
    let listener = asked.create_id(PortSpace::Tcp).unwrap();
    listener.bind(to).unwrap();
    id.connect(&ConnParam::default()).unwrap();
    listener.listen(1).unwrap();
    expect(&asked, EventKind::ConnectRequest);
}

#[test]
fn a_process_that_ends_takes_leave_of_its_peers() {
    let ((server, ip), (client, _)) = (host(128, 1), host(128, 2));
    let leaving = client.context_for(Ipv4Addr::new(127, 128, 0, 2).into()).unwrap().downgrade();
    let listener = Listener::bind(&server, (ip, 0).into()).unwrap();
    let to = listener.local_addr();
    let asking = std::thread::spawn(move || Connector::new(&client).connect(to));
    let there = listener.accept().unwrap().accept().unwrap();
    let here = asking.join().unwrap().unwrap();
    leaving.prepare_exit();
    there.wait_disconnected().unwrap();
    drop(here);
}

#[test]
fn a_process_that_ends_waits_until_its_peer_has_confirmed() {
    // The server sees every packet a tenth of a second late.
    let fault = FaultConfig { delay_ns: 100_000_000, ..FaultConfig::default() };
    let settings = Settings { fault: Some(fault), ..Settings::default() };
    let ip: IpAddr = Ipv4Addr::new(127, 128, 1, 1).into();
    let server = Manager::with([Device::at([ip]).open_with(settings).unwrap()]).unwrap();
    let own: IpAddr = Ipv4Addr::new(127, 128, 1, 2).into();
    let client = Manager::with([Device::at([own]).open().unwrap()]).unwrap();
    let leaving = client.context_for(own).unwrap().downgrade();
    let listener = Listener::bind(&server, (ip, 0).into()).unwrap();
    let to = listener.local_addr();
    let asking = std::thread::spawn(move || Connector::new(&client).connect(to));
    let there = listener.accept().unwrap().accept().unwrap();
    let here = asking.join().unwrap().unwrap();
    leaving.prepare_exit();
    // It did not only send the message: the message has arrived.
    let event = there.id().channel().try_event().expect("the end of the connection");
    assert_eq!(event.kind, EventKind::Disconnected);
    drop(here);
}

#[test]
fn ids_work_call_by_call() {
    let ((server, ip), (client, _)) = (host(132, 1), host(132, 2));
    let (asked, asking) = (server.event_channel().unwrap(), client.event_channel().unwrap());
    let listener = listening(&asked, PortSpace::Tcp, ip);
    let id = resolved(&asking, PortSpace::Tcp, listener.local_addr().unwrap());
    let qp = qp_for(&id);
    assert_eq!(qp.state(), QpState::Init);
    let param = ConnParam { responder_resources: 3, initiator_depth: 5, ..ConnParam::default() };
    id.connect(&param).unwrap();
    let request = expect(&asked, EventKind::ConnectRequest);
    assert_eq!(request.listener, Some(listener));
    let offer = request.conn.unwrap();
    assert_eq!((offer.responder_resources, offer.initiator_depth), (5, 3));
    assert_eq!(offer.qpn, qp.qpn());
    let there = qp_for(&request.id);
    request.id.accept(&request.id.offered().unwrap()).unwrap();
    // On a device of the kernel, the active side continues when it takes this event.
    expect(&asking, EventKind::Established);
    expect(&asked, EventKind::Established);
    let attr = qp.handle().query().unwrap();
    // A driver may give more, and chooses times of its own.
    assert!(attr.max_rd_atomic >= Some(5) && attr.max_dest_rd_atomic >= Some(3));
    if !is_foreign() {
        assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (Some(5), Some(3)));
        assert_eq!((attr.timeout, attr.min_rnr_timer), (Some(19), Some(0)));
    }
    assert_eq!(there.state(), QpState::Rts);
    request.id.disconnect().unwrap();
    // The peer answers the disconnect request when it takes this event.
    expect(&asking, EventKind::Disconnected);
    expect(&asked, EventKind::Disconnected);
    id.disconnect().unwrap();
    expect(&asking, EventKind::TimewaitExit);
    expect(&asked, EventKind::TimewaitExit);
}

#[test]
fn queue_pairs_may_be_brought_up_by_hand() {
    let ((server, ip), (client, _)) = (host(133, 1), host(133, 2));
    let (asked, asking) = (server.event_channel().unwrap(), client.event_channel().unwrap());
    let listener = listening(&asked, PortSpace::Tcp, ip);
    let id = resolved(&asking, PortSpace::Tcp, listener.local_addr().unwrap());
    let make = |id: &CmId| {
        let context = id.context().unwrap();
        let cq = context.create_cq(8).unwrap();
        context.alloc_pd().unwrap().rc_qp(&cq, &cq, QpCap::new(4, 4)).create().unwrap()
    };
    let up = |id: &CmId, qp: &Qp| {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            qp.handle().modify(&id.qp_attr(state).unwrap()).unwrap();
        }
    };
    let qp = make(&id);
    id.connect(&ConnParam { qpn: qp.qpn(), ..ConnParam::default() }).unwrap();
    let request = expect(&asked, EventKind::ConnectRequest);
    let there = make(&request.id);
    up(&request.id, &there);
    request.id.accept(&ConnParam { qpn: there.qpn(), ..ConnParam::default() }).unwrap();
    let response = expect(&asking, EventKind::ConnectResponse);
    assert_eq!(response.conn.unwrap().qpn, there.qpn());
    up(&id, &qp);
    id.establish().unwrap();
    expect(&asked, EventKind::Established);
    assert_eq!((qp.state(), there.state()), (QpState::Rts, QpState::Rts));
}

#[test]
fn datagram_services_are_found() {
    let ((server, ip), (client, _)) = (host(134, 1), host(134, 2));
    let (asked, asking) = (server.event_channel().unwrap(), client.event_channel().unwrap());
    let listener = listening(&asked, PortSpace::Udp, ip);
    let id = resolved(&asking, PortSpace::Udp, listener.local_addr().unwrap());
    let mut qp = qp_for(&id);
    id.connect(&ConnParam { private_data: b"who".to_vec(), ..ConnParam::default() }).unwrap();
    let request = expect(&asked, EventKind::ConnectRequest);
    assert_eq!(&request.private_data[..3], b"who");
    let mut there = qp_for(&request.id);
    request.id.accept(&ConnParam::default()).unwrap();
    let ud = expect(&asking, EventKind::Established).ud.unwrap();
    assert_eq!((ud.qpn, ud.qkey), (there.qpn(), UDP_QKEY));
    let ah = qp.handle().pd().create_ah(ud.av).unwrap();
    let source = qp.handle().pd().alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    let target = there.handle().pd().alloc_mr(128, Access::LOCAL_WRITE).unwrap();
    there.post_recv([target.recv(1, 0..128)]).unwrap();
    let wr = SendWr::new(2, SendOp::Send, source.data(0..8));
    qp.post_send([SendWr { dest: ah.dest(ud.qpn, ud.qkey), ..wr }]).unwrap();
    assert_eq!(there.recv_cq().wait().unwrap().byte_len, 48);
    // A service that no process offers.
    let mut elsewhere = listener.local_addr().unwrap();
    elsewhere.set_port(elsewhere.port() ^ 1);
    let id = resolved(&asking, PortSpace::Udp, elsewhere);
    id.connect(&ConnParam::default()).unwrap();
    assert_eq!(expect(&asking, EventKind::Unreachable).status, 1);
}

#[test]
fn a_service_of_the_port_space_ib_is_for_connections_or_for_datagrams() {
    let ((server, ip), (client, _)) = (host(146, 1), host(146, 2));
    let (asked, asking) = (server.event_channel().unwrap(), client.event_channel().unwrap());
    let make = |channel: &EventChannel, is_datagrams: bool| match is_datagrams {
        true => channel.create_datagram_id().unwrap(),
        false => channel.create_id(PortSpace::Ib).unwrap(),
    };
    for of_service in [true, false] {
        let listener = make(&asked, of_service);
        listener.bind((ip, 0).into()).unwrap();
        listener.listen(16).unwrap();
        for of_client in [true, false] {
            let id = make(&asking, of_client);
            assert_eq!((id.port_space(), id.is_datagrams()), (PortSpace::Ib, of_client));
            resolve(&asking, &id, listener.local_addr().unwrap());
            let _qp = qp_for(&id);
            id.connect(&ConnParam::default()).unwrap();
            if of_client == of_service {
                let request = expect(&asked, EventKind::ConnectRequest).id;
                assert_eq!(request.is_datagrams(), of_service);
                let _there = qp_for(&request);
                request.accept(&ConnParam::default()).unwrap();
                let ud = expect(&asking, EventKind::Established).ud;
                assert_eq!(ud.map(|ud| ud.qkey), of_service.then_some(UDP_QKEY));
            } else {
                let refused = if of_client { EventKind::Unreachable } else { EventKind::Rejected };
                expect(&asking, refused);
            }
        }
    }
}

#[test]
fn ports_are_held_by_one_at_a_time() {
    let (manager, ip) = host(135, 1);
    let id = || manager.create_id(PortSpace::Tcp).unwrap();
    let first = id();
    first.bind((ip, 0).into()).unwrap();
    let at = first.local_addr().unwrap();
    let taken = id().bind(at);
    assert!(matches!(taken, Err(Error::Cm(CmError::Port(_)))), "{taken:?}");
    assert!(matches!(first.bind(at), Err(Error::Cm(CmError::WrongState))));
    drop(first);
    let (one, two) = (id(), id());
    for id in [&one, &two] {
        id.set_option(IdOption::ReuseAddr(true)).unwrap();
        id.bind(at).unwrap();
    }
    // Linux lets no id listen while another id has the port.
    assert_eq!(one.listen(1).is_err(), is_foreign());
    assert!(matches!(two.listen(1), Err(Error::Cm(CmError::Port(_)))));
    let elsewhere = id().bind((Ipv4Addr::new(127, 135, 0, 99), 0).into());
    assert!(matches!(elsewhere, Err(Error::Cm(CmError::NoDevice(_)))), "{elsewhere:?}");
}

#[test]
fn events_follow_an_id_to_another_channel() {
    let (manager, ip) = host(136, 1);
    let (old, new) = (manager.event_channel().unwrap(), manager.event_channel().unwrap());
    let id = old.create_id(PortSpace::Tcp).unwrap();
    id.resolve_addr(None, (ip, 7).into(), 1000).unwrap();
    id.migrate(&new).unwrap();
    assert!(old.try_event().is_none());
    assert_eq!(expect(&new, EventKind::AddrResolved).id, id);
    id.resolve_route(1000).unwrap();
    expect(&new, EventKind::RouteResolved);
    // Events of an id that was dropped are not reported.
    id.connect(&ConnParam::default()).unwrap();
    drop(id);
    assert!(new.try_event().is_none());
}

#[test]
fn many_connect_at_once() {
    const COUNT: usize = 200;
    let ((server, ip), (client, _)) = (host(137, 1), host(137, 2));
    let (asked, asking) = (server.event_channel().unwrap(), client.event_channel().unwrap());
    let listener = asked.create_id(PortSpace::Tcp).unwrap();
    listener.bind((ip, 0).into()).unwrap();
    listener.listen(COUNT as u32).unwrap();
    let to = listener.local_addr().unwrap();
    let ids: Vec<CmId> = (0..COUNT).map(|_| resolved(&asking, PortSpace::Tcp, to)).collect();
    let qps: Vec<Qp> = ids.iter().map(qp_for).collect();
    for id in &ids {
        id.connect(&ConnParam::default()).unwrap();
    }
    let (mut accepted, mut established) = (Vec::new(), 0);
    while established < 2 * COUNT {
        let event = next_of([&asked, &asking]);
        match event.kind {
            EventKind::ConnectRequest => {
                let qp = qp_for(&event.id);
                event.id.accept(&event.id.offered().unwrap()).unwrap();
                accepted.push((event.id, qp));
            }
            EventKind::Established => established += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(qps.iter().all(|qp| qp.state() == QpState::Rts));
    ids.iter().for_each(|id| id.disconnect().unwrap());
    let mut over = 0;
    while over < 2 * COUNT {
        over += usize::from(next_of([&asked, &asking]).kind == EventKind::Disconnected);
    }
}

#[test]
fn tasks_connect_as_threads_do() {
    let ((server, ip), (client, _)) = (host(138, 1), host(138, 2));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let listener = Listener::bind(&server, (ip, 0).into()).unwrap();
        let connector = Connector::new(&client);
        let (here, there) = tokio::join!(connector.connect_async(listener.local_addr()), async {
            listener.accept_async().await?.accept_async().await
        },);
        let (here, there) = (here.unwrap(), there.unwrap());
        assert_eq!(here.state(), QpState::Rts);
        // The side that disconnects waits for its peer, which may have to take the event for that.
        let (ended, heard) = tokio::join!(here.disconnect_async(), there.wait_disconnected_async());
        assert!(ended.is_ok() && heard.is_ok(), "{ended:?} {heard:?}");
    });
}

#[test]
fn a_group_is_joined_and_left() {
    let (manager, ip) = host(139, 1);
    let channel = manager.event_channel().unwrap();
    let id = channel.create_id(PortSpace::Udp).unwrap();
    id.bind((ip, 0).into()).unwrap();
    let mut qp = qp_for(&id);
    let group = Ipv4Addr::new(239, 39, 1, 1).into();
    id.join_multicast(group, false).unwrap();
    let ud = expect(&channel, EventKind::MulticastJoin).ud.unwrap();
    assert_eq!(ud.av.dgid.as_ipv4(), Some([239, 39, 1, 1]));
    let target = qp.handle().pd().alloc_mr(128, Access::LOCAL_WRITE).unwrap();
    let ah = qp.handle().pd().create_ah(ud.av).unwrap();
    qp.post_recv([target.recv(1, 0..128)]).unwrap();
    let wr = SendWr::new(2, SendOp::Send, target.data(64..72));
    qp.post_send([SendWr { dest: ah.dest(ud.qpn, ud.qkey), ..wr }]).unwrap();
    // The member receives its own datagram, as it does those of other members.
    let done = [qp.recv_cq().wait().unwrap(), qp.recv_cq().wait().unwrap()];
    assert!(done.iter().all(|cqe| cqe.status == WcStatus::Success), "{done:?}");
    id.leave_multicast(group).unwrap();
    assert!(id.leave_multicast(group).is_err());
    assert!(id.join_multicast(ip.into(), false).is_err());
}
