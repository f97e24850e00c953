//! Two hosts with a cable between them: two network namespaces and a veth pair.

use std::process::Command;

use crate::common::{ALL, Host, LEN, unexplained_drops};
use crate::netns::{self, Cable, ip, with_cable};
use feroce::{
    AddrVec, AsyncEvent, Device, Gid, Imm, Pmtu, Qkey, Qp, QpAttr, QpCap, QpState, QpType, SendOp,
    SendWr, Settings, WcStatus,
};

/// Opens the device of the cable in the namespace of this thread.
fn host() -> Host {
    host_with(Settings::load().expect("settings that make sense"))
}

fn host_with(settings: Settings) -> Host {
    let device = Device::named("wire").expect("the cable is there");
    let context = device.open_with(settings).expect("the device opens");
    let pd = context.alloc_pd().expect("a domain");
    let cq = context.create_cq(1024).expect("a queue");
    let mr = pd.alloc_mr(LEN, ALL).expect("memory");
    Host { context, pd, cq, mr }
}

/// Index of the first address of a family.
fn gid_index(host: &Host, v4: bool) -> u16 {
    let gids = host.context.port().gids;
    gids.iter().position(|entry| entry.gid.as_ipv4().is_some() == v4).expect("an address") as u16
}

/// Two connected queue pairs over IPv4 or IPv6.
fn connected(a: &Host, b: &Host, qp_type: QpType, v4: bool) -> (Qp, Qp) {
    let make = |host: &Host| {
        let cap = QpCap::new(64, 64);
        match qp_type {
            QpType::Uc => host.pd.uc_qp(&host.cq, &host.cq, cap),
            _ => host.pd.rc_qp(&host.cq, &host.cq, cap),
        }
        .create()
        .expect("a queue pair")
    };
    let (mut qa, mut qb) = (make(a), make(b));
    let ea = qa.endpoint_at(gid_index(a, v4)).expect("an address");
    let eb = qb.endpoint_at(gid_index(b, v4)).expect("an address");
    qa.connect(&eb).expect("connected");
    qb.connect(&ea).expect("connected");
    (qa, qb)
}

/// Transfers data with every operation of a connection, and checks it.
fn exercise(a: &Host, b: &Host, qp_type: QpType, v4: bool) {
    let (mut qa, mut qb) = connected(a, b, qp_type, v4);
    let what = format!("{qp_type:?} IPv4 {v4}");
    for len in [1, 1023, 1024, 1025, 65539, 400_000] {
        if qp_type == QpType::Uc && len > 100_000 {
            // An unreliable service has no flow control: the receiver's socket may drop data beyond
            // one receive buffer.
            continue;
        }
        let bytes = a.fill(0, len, len as u8);
        qb.post_recv([b.mr.recv(2, 0..LEN / 2)]).expect("room");
        qa.post_send([SendWr::new(1, SendOp::Send, a.mr.data(0..len))]).expect("room");
        assert_eq!(a.wait().status, WcStatus::Success, "{what} {len}");
        let got = b.wait();
        assert_eq!((got.status, got.byte_len), (WcStatus::Success, len as u32), "{what} {len}");
        assert_eq!(b.read(0, len), bytes, "{what} {len}");
    }
    if qp_type == QpType::Rc {
        let bytes = a.fill(0, 400_000, 9);
        let (write, read) = (SendOp::Write(b.mr.remote(3)), SendOp::Read(b.mr.remote(3)));
        qa.post_send([
            SendWr::new(3, write, a.mr.data(0..400_000)),
            SendWr::new(4, read, a.mr.data(500_000..900_000)),
        ])
        .expect("room");
        assert_eq!((a.wait().status, a.wait().status), (WcStatus::Success, WcStatus::Success));
        assert_eq!(a.read(500_000, 400_000), bytes);
    }
}

fn datagrams(a: &Host, b: &Host, v4: bool) {
    let make = |host: &Host| {
        let mut qp = host.pd.ud_qp(&host.cq, &host.cq, QpCap::new(16, 16)).create().expect("a QP");
        qp.activate(Qkey(7)).expect("active");
        qp
    };
    let (mut qa, mut qb) = (make(a), make(b));
    let dgid = b.context.port().gids[usize::from(gid_index(b, v4))].gid;
    let av = AddrVec { dgid, sgid_index: gid_index(a, v4), ..AddrVec::default() };
    let ah = a.pd.create_ah(av).expect("a handle");
    let len = a.context.port().active_mtu.bytes();
    let bytes = a.fill(0, len, 5);
    qb.post_recv([b.mr.recv(1, 0..LEN)]).expect("room");
    let dest = ah.dest(qb.qpn(), Qkey(7));
    qa.post_send([SendWr { dest, ..SendWr::new(2, SendOp::Send, a.mr.data(0..len)) }])
        .expect("room");
    assert_eq!(a.wait().status, WcStatus::Success);
    assert_eq!(b.wait().byte_len as usize, len + 40);
    assert_eq!(b.read(40, len), bytes);
}

/// Sends many datagrams and many messages of an unreliable connection while packets are lost: every
/// message that arrives is whole.
fn lossy_unreliable(a: &Host, b: &Host, v4: bool) {
    const COUNT: u32 = 200;
    const SLOT: usize = 5000;
    let (mut qa, mut qb) = connected(a, b, QpType::Uc, v4);
    let (len, mut came) = (3000, 0);
    qb.post_recv((0..64).map(|i| b.mr.recv(i, i as usize * SLOT..(i as usize + 1) * SLOT)))
        .expect("room");
    for n in 0..COUNT {
        let imm = Imm(n);
        a.fill(0, len, n as u8);
        qa.post_send([SendWr::new(n.into(), SendOp::SendImm(imm), a.mr.data(0..len))])
            .expect("room");
        assert_eq!(a.wait().status, WcStatus::Success);
        while let Some(got) = b.cq.poll_one() {
            assert_eq!((got.status, got.byte_len as usize), (WcStatus::Success, len));
            let expected: Vec<u8> =
                (0..len).map(|i| (i as u8).wrapping_mul(7) ^ got.imm.0 as u8).collect();
            let slot = got.wr_id as usize * SLOT;
            assert_eq!(b.read(slot, len), expected, "message {}", got.imm.0);
            qb.post_recv([b.mr.recv(got.wr_id, slot..slot + SLOT)]).expect("room");
            came += 1;
        }
    }
    assert!(came > COUNT / 2, "{came} of {COUNT}");
}

/// A device on each end, which loses received packets.
fn with_loss(cable: &Cable) {
    let fault = "loss=1%,dup=0.5%,reorder=0.5%:3,seed=11".parse().ok();
    assert!(fault.is_some());
    let settings = Settings { fault, ..Settings::default() };
    let (a, b) =
        (cable.in_a(|| host_with(settings.clone())), cable.in_b(|| host_with(settings.clone())));
    for v4 in [true, false] {
        (0..5).for_each(|_| exercise(&a, &b, QpType::Rc, v4));
        lossy_unreliable(&a, &b, v4);
    }
    let counters = a.context.counters();
    assert!(counters.tail_probes + counters.completer_retry_err > 0, "nothing was sent again");
    assert_eq!(unexplained_drops(&a.context), []);
}

#[test]
fn loss_is_made_good_over_1500_bytes() {
    with_cable(1500, with_loss);
}

#[test]
fn loss_is_made_good_over_9000_bytes() {
    with_cable(9000, with_loss);
}

fn everything(cable: &Cable, mtu: Pmtu) {
    let (a, b) = (cable.in_a(host), cable.in_b(host));
    assert_eq!(a.context.port().active_mtu, mtu);
    for v4 in [true, false] {
        exercise(&a, &b, QpType::Rc, v4);
        exercise(&a, &b, QpType::Uc, v4);
        datagrams(&a, &b, v4);
    }
    assert_eq!(unexplained_drops(&a.context), []);
    assert_eq!(unexplained_drops(&b.context), []);
    let count = |host: &Host, name: &str| {
        let counters = host.context.link_counters();
        counters.iter().find(|(n, _)| *n == name).map(|(_, v)| *v)
    };
    assert_eq!(count(&a, "rx_icrc_encapsulated"), Some(0));
    assert_eq!(count(&b, "rx_icrc_encapsulated"), Some(0));
}

#[test]
fn every_service_over_1500_bytes() {
    with_cable(1500, |cable| everything(cable, Pmtu::B1024));
}

#[test]
fn every_service_over_9000_bytes() {
    with_cable(9000, |cable| everything(cable, Pmtu::B4096));
}

#[test]
fn a_host_that_vanishes_in_the_middle_is_noticed() {
    with_cable(9000, |cable| {
        let (a, b) = (cable.in_a(host), cable.in_b(host));
        let (mut qa, qb) = connected(&a, &b, QpType::Rc, true);
        let quick = QpAttr { timeout: Some(10), retry_cnt: Some(3), ..QpAttr::default() };
        qa.modify(&QpAttr::to(QpState::Sqd)).expect("draining");
        qa.modify(&QpAttr { state: Some(QpState::Sqd), ..quick }).expect("quick");
        qa.modify(&QpAttr::to(QpState::Rts)).expect("sending");
        let write = || SendWr::new(1, SendOp::Write(b.mr.remote(0)), a.mr.data(0..LEN));
        qa.post_send((0..60).map(|_| write())).expect("room");
        assert_eq!(a.wait().status, WcStatus::Success);
        drop((qb, b));
        let mut rest = Vec::new();
        while rest.len() < 59 {
            rest.push(a.wait().status);
        }
        let failed = rest.iter().position(|s| *s != WcStatus::Success).expect("it was noticed");
        assert_eq!(rest[failed], WcStatus::RetryExceeded);
        assert!(rest[failed + 1..].iter().all(|s| *s == WcStatus::Flushed));
        assert_eq!(qa.state(), QpState::Err);
    });
}

/// An independent program, tshark, decodes a capture of everything that a device sends and
/// receives.
#[test]
fn tshark_understands_what_a_device_captured() {
    with_cable(1500, |cable| {
        let dir = std::env::temp_dir().join(format!("feroce-cable-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let file = dir.join("wire.pcapng");
        let settings = Settings { pcap: Some(file.clone()), ..Settings::default() };
        let (a, b) = (cable.in_a(|| host_with(settings)), cable.in_b(host));
        for v4 in [true, false] {
            exercise(&a, &b, QpType::Rc, v4);
            exercise(&a, &b, QpType::Uc, v4);
            datagrams(&a, &b, v4);
        }
        drop(a);
        let mut tshark = Command::new("tshark");
        tshark.arg("-r").arg(&file).args(["-T", "fields"]);
        tshark.args(["-e", "infiniband.bth.opcode", "-e", "_ws.malformed"]);
        // tshark takes a payload of one byte for a remote procedure call.
        tshark.args(["--disable-protocol", "rpcordma"]);
        let said = tshark.output();
        std::fs::remove_dir_all(&dir).expect("it is ours");
        let Some(said) = said.ok().filter(|output| output.status.success()) else {
            assert!(std::env::var_os("CI").is_none(), "tshark does not run");
            return eprintln!("SKIPPED: tshark does not run");
        };
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        let packets: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
        assert!(packets.len() > 1000, "{} packets", packets.len());
        // RC: SEND First, WRITE First, READ Request, READ Response First, Acknowledge; UC: SEND
        // First; UD: SEND Only.
        for opcode in ["0", "6", "12", "13", "17", "32", "100"] {
            assert!(packets.iter().any(|p| p[0] == opcode), "no packet with opcode {opcode}");
        }
        assert!(packets.iter().all(|p| !p[0].is_empty()), "a packet that is not RoCE");
        assert!(packets.iter().all(|p| p[1].is_empty()), "a malformed packet");
    });
}

#[test]
fn the_gid_table_lists_ipv4_first_and_link_local_last() {
    with_cable(1500, |cable| {
        let device = cable.in_a(|| Device::named("wire").expect("the cable"));
        let v4 = Gid::from_ipv4(Cable::A4);
        assert_eq!(device.gids(), [v4, netns::global(1), netns::link_local(1)]);
        let names: Vec<_> = cable.in_a(|| {
            let list = Device::list().expect("a list");
            list.iter().map(|d| d.interface_name().map(str::to_owned)).collect()
        });
        assert_eq!(names, [Some("wire".to_owned()), Some("lo".to_owned())]);
    });
}

#[test]
fn a_new_mtu_of_the_interface_is_followed() {
    with_cable(9000, |cable| {
        let (a, b) = (cable.in_a(host), cable.in_b(host));
        let (mut old, _old_peer) = connected(&a, &b, QpType::Rc, true);
        let path_mtu = |qp: &Qp| qp.query().and_then(|attr| attr.path_mtu);
        assert_eq!(path_mtu(&old), Some(Pmtu::B4096));

        for (mtu, pmtu) in [(2200, Pmtu::B2048), (1500, Pmtu::B1024), (9000, Pmtu::B4096)] {
            cable.in_a(|| ip(&format!("link set wire mtu {mtu}")));
            let event = a.context.wait_async_event(Some(10_000)).expect("the queue works");
            assert_eq!(event, Some(AsyncEvent::PortActive), "{mtu}");
            assert_eq!(a.context.port().active_mtu, pmtu);
            let (new, new_peer) = connected(&a, &b, QpType::Rc, true);
            assert_eq!(path_mtu(&new), Some(pmtu), "the lesser of the two");
            assert_eq!(path_mtu(&new_peer), Some(pmtu));
            assert_eq!(path_mtu(&old), Some(Pmtu::B4096), "it keeps its own");
        }
        assert_eq!(b.context.port().active_mtu, Pmtu::B4096);
        assert_eq!(b.context.try_async_event(), None);

        let bytes = a.fill(0, 100_000, 3);
        old.post_send([SendWr::new(1, SendOp::Write(b.mr.remote(0)), a.mr.data(0..100_000))])
            .expect("room");
        assert_eq!(a.wait().status, WcStatus::Success);
        assert_eq!(b.read(0, 100_000), bytes);
    });
}
