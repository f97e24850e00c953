//! Several processes of a registry on one address, in one process.

use crate::common;
use std::path::PathBuf;
use std::sync::Arc;

use crate::common::{SendOne as _, Sent};
use crate::common::{
    counter, flat, is_readable, loopback, packets_of, path, receive, receive_packets, send_of,
};
use feroce_link::{Carrier, Control, IcrcPolicy, UdpConfig, UdpLink, Verified};
use feroce_local::HostCarrier as _;
use feroce_local::{HostLink, Registry};
use feroce_train::{Ext, InlineBytes, Instant, Path, Payload, RxTrain, Single, Train, TrainOps};
use feroce_wire::cm::{CmMessage, CommId, Rej, RejReason, Rtu, ServiceId, SidrReq, Stage};
use feroce_wire::{Bth, Deth, Gid, Op, Opcode, Pkey, Psn, Qkey, Qpn, Service};

const NOW: Instant = Instant::from_nanos(1_000_000_000);

/// A registry that is removed with the test.
struct RegistryDir(PathBuf);

impl RegistryDir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("feroce-shm-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    fn link(&self, address: Gid) -> Host {
        let registry = Arc::new(Registry::join(&self.0, 3).expect("a registry"));
        let mut link = HostLink::new(common::wire(), Arc::clone(&registry), None).expect("a link");
        link.control(Control::Addresses(&[address])).expect("an address");
        Host { link: Verified::new(link, IcrcPolicy::Strict), registry }
    }

    /// A link without layers, and the number of a queue pair of its process.
    fn plain(&self, address: Gid, policy: Option<IcrcPolicy>) -> (HostLink<UdpLink>, Qpn) {
        let registry = Arc::new(Registry::join(&self.0, 4).expect("a registry"));
        let prefix = u32::from(registry.prefix());
        let mut link = HostLink::new(common::wire(), registry, policy).expect("a link");
        link.control(Control::Addresses(&[address])).expect("an address");
        (link, Qpn::new(prefix << 16))
    }
}

impl Drop for RegistryDir {
    fn drop(&mut self) {
        let left = std::fs::read_dir(&self.0).map(Iterator::count).unwrap_or(0);
        let _ = std::fs::remove_dir_all(&self.0);
        if !std::thread::panicking() {
            assert_eq!(left, 0, "files are left");
        }
    }
}

/// A process, with its link.
struct Host {
    link: Verified<HostLink<UdpLink>>,
    registry: Arc<Registry>,
}

impl Host {
    /// The number of one of its queue pairs.
    fn qpn(&self) -> Qpn {
        Qpn::new(u32::from(self.registry.prefix()) << 16 | 0x1234)
    }
}

fn train_to(src: Gid, dst: Gid, qpn: Qpn, count: u32) -> Train {
    let mut train = send_of(path(src, dst), count, 1024, 100);
    train.bth.dest_qp = qpn;
    train
}

/// Sleeps on the link as a driver thread does, and returns whether it was woken within ten seconds.
fn sleep(host: &mut Host) -> bool {
    !host.link.arm(NOW) || is_readable(&host.link, 10_000)
}

#[test]
fn processes_reach_each_other_at_one_address() {
    let directory = RegistryDir::new("reach");
    let address = loopback(1);
    let (mut a, mut b) = (directory.link(address), directory.link(address));
    for count in [1, 2, 60] {
        let (there, back) = (b.qpn(), a.qpn());
        let train = train_to(address, address, there, count);
        assert_eq!(a.link.send_one(NOW, &train).expect("sent"), Sent::Done);
        let got = receive(&mut b.link, NOW);
        assert_eq!((flat(&got), got.len()), (packets_of(&train), 1), "whole, and at once");
        assert_eq!((got[0].meta.src.gid, got[0].meta.dst.gid), (address, address));
        let train = train_to(address, address, back, count);
        b.link.send_one(NOW, &train).expect("sent");
        assert_eq!(flat(&receive(&mut a.link, NOW)), packets_of(&train));
    }
    assert_eq!((counter(&a.link, "shm_tx_trains"), counter(&a.link, "shm_rx_trains")), (3, 3));
    assert_eq!(counter(&a.link, "udp_tx_trains") + counter(&b.link, "udp_tx_trains"), 0);
}

/// A sender kicks only the processes that have not taken what it sent.
#[test]
fn a_peer_that_takes_nothing_is_kicked() {
    let directory = RegistryDir::new("kick");
    let address = loopback(23);
    let [mut a, mut b, c] = [0; 3].map(|_| directory.link(address));
    let is_kicked = |host: &Host| {
        let kicks = host.link.kick_fd().expect("processes are kicked");
        nix::unistd::read(kicks, &mut [0; 64]).is_ok_and(|len| len > 0)
    };
    a.link.kick();
    assert!(!is_kicked(&b), "nothing was sent");
    a.link.send_one(NOW, &train_to(address, address, b.qpn(), 1)).expect("sent");
    assert!(!is_kicked(&b));
    a.link.kick();
    assert_eq!([&a, &b, &c].map(is_kicked), [false, true, false]);
    assert_eq!(receive(&mut b.link, NOW).len(), 1);
    a.link.kick();
    assert!(!is_kicked(&b), "it has taken everything");
    assert_eq!(counter(&a.link, "shm_kicked"), 1);
}

/// A link that checks the ICRC itself gets packets of this host without one, and packets of other
/// hosts checked.
#[test]
fn only_who_wants_the_icrc_gets_it() {
    let directory = RegistryDir::new("icrc");
    let (address, elsewhere) = (loopback(17), loopback(18));
    let (mut with, to_with) = directory.plain(address, None);
    let (mut without, to_without) = directory.plain(address, Some(IcrcPolicy::Strict));
    let lengths = |link: &mut HostLink<UdpLink>, from: &mut dyn Carrier, train: &Train| {
        from.send_one(NOW, train).expect("sent");
        let mut seen = Vec::new();
        while seen.is_empty() {
            let mut see = |t: &RxTrain<'_>| seen.push((t.bytes.len(), t.trailer));
            link.receive(NOW, 8, &mut see).expect("received");
        }
        seen
    };
    let len = packets_of(&train_to(address, address, to_with, 1))[0].len();
    let sent = train_to(address, address, to_without, 1);
    assert_eq!(lengths(&mut without, &mut with, &sent), [(len, 0)]);
    let sent = train_to(address, address, to_with, 1);
    assert_eq!(lengths(&mut with, &mut without, &sent), [(len + 4, 0)], "to be checked above");

    // From the wire, through the first link; the second one checks them.
    let mut other = UdpLink::new(UdpConfig::default(), &[elsewhere]).expect("a link");
    other.send_one(NOW, &train_to(elsewhere, address, to_without, 1)).expect("sent");
    while counter(&with, "shm_forwarded") == 0 {
        with.receive(NOW, 8, &mut |_| panic!("not for us")).expect("received");
    }
    let mut seen = Vec::new();
    without.receive(NOW, 8, &mut |t| seen.push((t.bytes.len(), t.trailer))).expect("received");
    assert_eq!(seen, [(len + 4, 4)]);
    assert_eq!(counter(&without, "rx_icrc_encapsulated"), 0);
}

/// A single packet goes where a train went before, and to other hosts.
#[test]
fn a_packet_needs_no_train() {
    let directory = RegistryDir::new("single");
    let (address, elsewhere) = (loopback(21), loopback(22));
    let (mut a, _) = directory.plain(address, Some(IcrcPolicy::Strict));
    let (mut b, to_b) = directory.plain(address, Some(IcrcPolicy::Strict));
    let (mut layered, to_layered) = directory.plain(address, None);
    let train = train_to(address, address, to_b, 1);
    let bytes = packets_of(&train).remove(0);
    let send = |link: &mut HostLink<UdpLink>, path: &Path, dest| {
        link.send_single(Single { path, dest, bytes: &bytes })
    };
    let receive = |link: &mut HostLink<UdpLink>| {
        let mut seen = Vec::new();
        let mut see = |t: &RxTrain<'_>| seen.push((t.meta, t.bytes.to_vec(), t.stride));
        link.receive(NOW, 8, &mut see).expect("received");
        seen
    };
    assert!(!send(&mut a, &train.path, to_b), "what is the same as before has no before");
    a.send_one(NOW, &train).expect("sent");
    let before = receive(&mut b);
    assert_eq!(before.len(), 1);

    assert!(b.is_quiet());
    assert!(send(&mut a, &train.path, to_b));
    assert!(!b.is_quiet());
    assert_eq!(receive(&mut b), before);
    assert!(b.is_quiet());
    assert!(b.arm(NOW));
    assert!(send(&mut a, &train.path, to_b));
    assert!(is_readable(&b, 10_000), "it sleeps, and is woken");

    let other = Path { hop_limit: 7, ..train.path };
    assert!(!send(&mut a, &other, to_b), "not the same");
    let far = UdpLink::new(UdpConfig::default(), &[elsewhere]).expect("another host");
    let mut far = Verified::new(far, IcrcPolicy::Strict);
    assert!(send(&mut a, &path(address, elsewhere), to_b), "another host");
    assert_eq!(flat(&receive_packets(&mut far, 1)), packets_of(&train));
    assert!(!send(&mut a, &train.path, to_layered), "it wants the ICRC");
    assert_eq!(receive(&mut layered).len(), 0);
    assert_eq!(receive(&mut b), before);

    // Only trains wait for room in a full ring.
    let sent = (0..1 << 20).take_while(|_| send(&mut a, &train.path, to_b)).count();
    assert_eq!(a.send_one(NOW, &train).expect("no error"), Sent::Full);
    let taken = std::iter::from_fn(|| Some(receive(&mut b).len()).filter(|n| *n > 0)).sum();
    assert_eq!(sent, taken);
}

/// A process that has not taken what was sent to it is slow, unless it has gone.
#[test]
fn what_nobody_has_taken_is_not_lost() {
    let directory = RegistryDir::new("untaken");
    let (address, elsewhere) = (loopback(24), loopback(25));
    let (mut a, _) = directory.plain(address, Some(IcrcPolicy::Strict));
    let (mut b, to_b) = directory.plain(address, Some(IcrcPolicy::Strict));
    let train = train_to(address, address, to_b, 1);
    assert!(!a.peer_has_unread(&train.path, to_b));
    a.send_one(NOW, &train).expect("sent");
    assert!(a.peer_has_unread(&train.path, to_b));
    assert!(
        !a.peer_has_unread(&path(address, elsewhere), to_b),
        "the link does not know that of other hosts"
    );
    assert_eq!(b.receive(NOW, 8, &mut |_| {}).expect("received"), 1);
    assert!(!a.peer_has_unread(&train.path, to_b));
    a.send_one(NOW, &train).expect("sent");
    drop(b);
    assert!(!a.peer_has_unread(&train.path, to_b), "it is gone");
}

#[test]
fn processes_at_two_addresses_do_not_need_the_wire_either() {
    let directory = RegistryDir::new("two");
    let (mut a, mut b) = (directory.link(loopback(2)), directory.link(loopback(3)));
    let train = train_to(loopback(2), loopback(3), b.qpn(), 5);
    a.link.send_one(NOW, &train).expect("sent");
    assert_eq!(flat(&receive(&mut b.link, NOW)), packets_of(&train));
    assert_eq!(counter(&a.link, "udp_tx_trains"), 0);
}

#[test]
fn who_sleeps_is_woken_and_who_is_awake_is_left_alone() {
    let directory = RegistryDir::new("wake");
    let address = loopback(4);
    let (mut a, mut b) = (directory.link(address), directory.link(address));
    let train = train_to(address, address, b.qpn(), 1);
    a.link.send_one(NOW, &train).expect("sent");
    assert!(!is_readable(&b.link, 0), "it did not say that it sleeps");
    assert!(!b.link.arm(NOW), "something has come");
    assert_eq!(receive(&mut b.link, NOW).len(), 1);
    for _ in 0..3 {
        assert!(b.link.arm(NOW));
        assert!(!is_readable(&b.link, 0));
        a.link.send_one(NOW, &train).expect("sent");
        a.link.send_one(NOW, &train).expect("sent");
        assert!(sleep(&mut b));
        assert_eq!(receive(&mut b.link, NOW).len(), 2);
    }
}

#[test]
fn packets_to_queue_pairs_that_nobody_has_are_counted() {
    let directory = RegistryDir::new("nobody");
    let address = loopback(5);
    let (mut a, b) = (directory.link(address), directory.link(address));
    let gone = b.qpn();
    drop(b);
    for qpn in [gone, Qpn::new(0x1234)] {
        assert_eq!(
            a.link.send_one(NOW, &train_to(address, address, qpn, 1)).expect("lost"),
            Sent::Done
        );
    }
    assert_eq!(counter(&a.link, "shm_tx_nobody"), 2);
}

#[test]
fn packets_from_other_hosts_are_handed_on() {
    let directory = RegistryDir::new("forward");
    let (address, elsewhere) = (loopback(6), loopback(7));
    let (mut a, mut b) = (directory.link(address), directory.link(address));
    let mut other = UdpLink::new(UdpConfig::default(), &[elsewhere]).expect("a link");
    let to_b = train_to(elsewhere, address, b.qpn(), 7);
    let to_a = train_to(elsewhere, address, a.qpn(), 3);
    other.send_one(NOW, &to_b).expect("sent");
    other.send_one(NOW, &to_a).expect("sent");
    assert_eq!(flat(&receive_packets(&mut a.link, 3)), packets_of(&to_a));
    assert_eq!(flat(&receive_packets(&mut b.link, 7)), packets_of(&to_b));
    assert_eq!(counter(&b.link, "udp_rx_trains"), 0);
    assert!(counter(&a.link, "shm_forwarded") > 0);
    assert_eq!(counter(&b.link, "rx_icrc_encapsulated"), 0);

    // Packets to other hosts do not pass through another process.
    let back = train_to(address, elsewhere, Qpn::new(9), 2);
    b.link.send_one(NOW, &back).expect("sent");
    assert_eq!(receive_packets(&mut other, 2).len(), 1);
}

/// Packets of one length from one sender may arrive in one train.
#[test]
fn a_train_for_several_is_divided() {
    let directory = RegistryDir::new("divide");
    let (address, elsewhere) = (loopback(8), loopback(9));
    let (mut a, mut b) = (directory.link(address), directory.link(address));
    let mut other = UdpLink::new(UdpConfig::default(), &[elsewhere]).expect("a link");
    let owners = [a.qpn(), b.qpn(), b.qpn(), a.qpn(), b.qpn()];
    let trains: Vec<Train> =
        owners.iter().map(|qpn| train_to(elsewhere, address, *qpn, 1)).collect();
    assert_eq!(other.send(NOW, &trains).expect("sent"), 5);
    assert_eq!(counter(&other, "udp_tx_trains"), 1, "they left together");
    let for_a: Vec<_> = [0, 3].iter().flat_map(|i| packets_of(&trains[*i])).collect();
    let for_b: Vec<_> = [1, 2, 4].iter().flat_map(|i| packets_of(&trains[*i])).collect();
    assert_eq!(flat(&receive_packets(&mut a.link, 2)), for_a);
    assert_eq!(flat(&receive_packets(&mut b.link, 3)), for_b);
}

#[test]
fn when_the_receiver_goes_another_takes_its_place() {
    let directory = RegistryDir::new("place");
    let (address, elsewhere) = (loopback(10), loopback(11));
    let (mut a, mut b) = (directory.link(address), directory.link(address));
    let mut other = UdpLink::new(UdpConfig::default(), &[elsewhere]).expect("a link");
    // Idle processes sleep, and have looked for the port owner before.
    assert!(a.link.arm(NOW) && b.link.arm(NOW));
    drop(a);
    assert!(is_readable(&b.link, 10_000), "the kernel did not tell");
    b.link.arm(NOW);
    assert_eq!(counter(&b.link, "shm_taken_over"), 1);
    let train = train_to(elsewhere, address, b.qpn(), 4);
    other.send_one(NOW, &train).expect("sent");
    assert_eq!(flat(&receive_packets(&mut b.link, 4)), packets_of(&train));
}

#[test]
fn an_address_that_somebody_has_who_does_not_share_is_an_error() {
    let directory = RegistryDir::new("taken");
    let _other = UdpLink::new(UdpConfig::default(), &[loopback(12)]).expect("a link");
    let registry = Arc::new(Registry::join(&directory.0, 3).expect("a registry"));
    let mut link = HostLink::new(common::wire(), registry, None).expect("a link");
    let error = link.control(Control::Addresses(&[loopback(12)])).expect_err("taken");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains("does not share it"), "{error}");
    link.control(Control::Addresses(&[loopback(13)])).expect("another");
}

#[test]
fn a_process_that_takes_nothing_loses_its_own_packets_only() {
    let directory = RegistryDir::new("stuck");
    let address = loopback(14);
    let (mut a, b) = (directory.link(address), directory.link(address));
    let mut c = directory.link(address);
    let to_b = train_to(address, address, b.qpn(), 60);
    let mut sent = 0;
    while a.link.send_one(NOW, &to_b).expect("sent") == Sent::Done {
        sent += 1;
        assert!(sent < 1000, "the ring never fills");
    }
    let later = NOW.plus_nanos(5_000_000);
    assert_eq!(a.link.send_one(later, &to_b).expect("full"), Sent::Full, "it may be busy");
    let much_later = NOW.plus_nanos(11_000_000);
    let to_c = train_to(address, address, c.qpn(), 2);
    let trains = [to_b, to_c];
    assert_eq!(a.link.send(much_later, &trains).expect("sent"), 2);
    assert_eq!(flat(&receive(&mut c.link, NOW)), packets_of(&trains[1]));
    assert_eq!(counter(&a.link, "shm_tx_lost"), 1);

    // It receives again: no packet in the ring was lost, and there is room again.
    let mut b = b;
    let mut got = 0;
    while got < sent {
        let some = receive(&mut b.link, NOW).len();
        assert_ne!(some, 0, "{got} of {sent}");
        got += some;
    }
    assert_eq!(a.link.send_one(much_later, &trains[0]).expect("sent"), Sent::Done);
    assert_eq!(receive(&mut b.link, NOW).len(), 1);
}

/// A management datagram to queue pair 1.
fn datagram(src: Gid, dst: Gid, message: &CmMessage) -> Train {
    let op = Opcode::new(Service::Ud, Op::SendOnly);
    let deth = Deth { qkey: Qkey(0x8001_0000), src_qp: Qpn::QP1 };
    let mad = message.emit(1);
    Train {
        path: path(src, dst),
        bth: Bth::new(op, Qpn::QP1, Psn::new(1)),
        ops: TrainOps::all(op),
        count: 1,
        stride: mad.len(),
        payload_len: mad.len(),
        head: Ext::NONE.with(|out| deth.emit(out)),
        body: Ext::NONE,
        tail: Ext::NONE,
        payload: Payload::Inline { data: InlineBytes::new(&mad), offset: 0 },
        revocation_epoch: None,
    }
}

fn request(id: u64) -> CmMessage {
    CmMessage::SidrReq(SidrReq {
        request_id: CommId(1),
        pkey: Pkey::DEFAULT,
        service_id: ServiceId(id),
        private_data: [0; 216],
    })
}

#[test]
fn requests_reach_who_listens_and_answers_who_asked() {
    let directory = RegistryDir::new("cm");
    let (address, elsewhere) = (loopback(15), loopback(16));
    let (mut a, mut b) = (directory.link(address), directory.link(address));
    let mut other = UdpLink::new(UdpConfig::default(), &[elsewhere]).expect("a link");
    b.registry.claim_service(address, 0x0106_1234).expect("free");
    let came = |host: &mut Host| receive(&mut host.link, NOW).len();

    // From this host to the process that listens; to the sender itself if none does, so that a
    // process rejects the request.
    a.link.send_one(NOW, &datagram(address, address, &request(0x0106_1234))).expect("sent");
    assert_eq!((came(&mut a), came(&mut b)), (0, 1));
    a.link.send_one(NOW, &datagram(address, address, &request(0x0106_9999))).expect("sent");
    assert_eq!((came(&mut a), came(&mut b)), (1, 0));

    // By the communication id.
    let id = CommId(u32::from(a.registry.prefix()) << 24 | 7);
    let rtu = CmMessage::Rtu(Rtu { local_id: id, remote_id: id, private_data: [0; 224] });
    b.link.send_one(NOW, &datagram(address, address, &rtu)).expect("sent");
    assert_eq!((came(&mut a), came(&mut b)), (1, 0));
    a.link.send_one(NOW, &datagram(address, address, &rtu)).expect("sent");
    assert_eq!((came(&mut a), came(&mut b)), (1, 0), "to itself");

    // From another host, through the port owner.
    other.send_one(NOW, &datagram(elsewhere, address, &request(0x0106_1234))).expect("sent");
    assert!(sleep(&mut a));
    assert_eq!((came(&mut a), came(&mut b)), (0, 1));
    other.send_one(NOW, &datagram(elsewhere, address, &request(0x0106_9999))).expect("sent");
    assert_eq!(receive_packets(&mut a.link, 1).len(), 1);
}

/// A requester that gives up before it was answered does not know which of our connections it
/// means, so its REJ names none.
#[test]
fn a_withdrawn_request_reaches_every_process() {
    let directory = RegistryDir::new("withdrawn");
    let (address, elsewhere) = (loopback(25), loopback(26));
    let mut processes = [0; 3].map(|_| directory.link(address));
    let mut apart = directory.link(loopback(27));
    let mut other = UdpLink::new(UdpConfig::default(), &[elsewhere]).expect("a link");
    let rej = CmMessage::Rej(Rej {
        local_id: CommId(0x0700_0001),
        remote_id: CommId(0),
        stage: Stage::Other,
        info_len: 0,
        reason: RejReason::TIMEOUT,
        info: [0; 72],
        private_data: [0; 148],
    });

    // From another host, through the port owner.
    other.send_one(NOW, &datagram(elsewhere, address, &rej)).expect("sent");
    for host in &mut processes {
        assert_eq!(receive_packets(&mut host.link, 1).len(), 1);
    }
    // From this host: a process may have requested from itself.
    processes[1].link.send_one(NOW, &datagram(address, address, &rej)).expect("sent");
    for host in &mut processes {
        assert_eq!(receive_packets(&mut host.link, 1).len(), 1);
    }
    apart.link.send_one(NOW, &datagram(loopback(27), address, &rej)).expect("sent");
    for host in &mut processes {
        assert_eq!(receive_packets(&mut host.link, 1).len(), 1);
        assert_eq!(receive(&mut host.link, NOW).len(), 0);
    }
    assert_eq!(receive(&mut apart.link, NOW).len(), 0, "it has another address");
}
