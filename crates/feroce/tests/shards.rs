//! Devices with several shards.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::disallowed_methods, reason = "two ends that block need two threads")]

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use feroce::cm::{Connector, Listener, Manager};
use feroce::{
    Access, Context, Cq, Dest, Device, Error, FaultConfig, Iova, Mr, Notify, Pd, Qp, QpAttr, QpCap,
    QpState, Rereg, ResizeError, SendFlags, SendOp, SendWr, Settings, TransportKind, WcStatus,
};
use nix::sched::sched_getaffinity;
use nix::unistd::Pid;

use crate::common::{ALL, connect};

const SHARDS: u8 = 4;
/// Bytes of the memory that belong to one queue pair.
const PART: usize = 64 << 10;
const QPS: usize = 8;

/// A device with its objects and queue pairs.
struct Host {
    context: Context,
    pd: Pd,
    cq: Cq,
    mr: Mr,
    qps: Vec<Qp>,
}

fn settings() -> Settings {
    Settings { shards: SHARDS, ..Settings::default() }
}

fn address(net: u8, number: u8) -> IpAddr {
    Ipv4Addr::new(127, net, 3, number).into()
}

impl Host {
    fn new(address: IpAddr, settings: Settings) -> Self {
        let context = Device::at([address]).open_with(settings).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1024).unwrap());
        let mr = pd.alloc_mr(QPS * PART, ALL - Access::MW_BIND).unwrap();
        let qp = |_| pd.rc_qp(&cq, &cq, QpCap::new(64, 64)).create().unwrap();
        let qps = (0..QPS).map(qp).collect();
        Self { context, pd, cq, mr, qps }
    }

    /// Two hosts whose queue pairs are connected in order.
    fn pair(net: u8, settings: &Settings) -> (Self, Self) {
        let mut a = Self::new(address(net, 1), settings.clone());
        let mut b = Self::new(address(net, 2), settings.clone());
        a.qps.iter_mut().zip(&mut b.qps).for_each(|(a, b)| connect(a, b));
        (a, b)
    }

    /// The shards that its queue pairs are in.
    fn shards(&self) -> BTreeSet<u32> {
        self.qps.iter().map(|qp| qp.qpn().get() >> 16).collect()
    }

    fn fill(&self, seed: u8) -> Vec<u8> {
        let bytes: Vec<u8> = (0..QPS * PART).map(|i| (i / 7 + i / 900) as u8 ^ seed).collect();
        self.mr.write_at(0, &bytes).unwrap();
        bytes
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; QPS * PART];
        self.mr.read_at(0, &mut bytes).unwrap();
        bytes
    }
}

/// Each queue pair writes its part of the memory in pieces; all of them complete to one queue.
fn write_everything(a: &mut Host, b: &Host) {
    let bytes = a.fill(0x5a);
    let pieces = 16;
    let len = PART / pieces;
    for piece in 0..pieces {
        for (i, qp) in a.qps.iter_mut().enumerate() {
            let at = i * PART + piece * len;
            let op = SendOp::Write(b.mr.remote(at));
            let wr = SendWr::new((i * pieces + piece) as u64, op, a.mr.data(at..at + len));
            qp.post_send([wr]).unwrap();
        }
    }
    let mut next = [0; QPS];
    for _ in 0..QPS * pieces {
        let cqe = a.cq.wait().unwrap();
        let (qp, piece) = (cqe.wr_id as usize / pieces, cqe.wr_id as usize % pieces);
        assert_eq!(cqe.status, WcStatus::Success);
        assert_eq!((cqe.qpn, piece), (a.qps[qp].qpn(), next[qp]), "in the order of posting");
        next[qp] += 1;
    }
    assert!(b.bytes() == bytes, "every byte is there");
}

#[test]
fn queue_pairs_of_every_shard_reach_the_same_memory() {
    let (mut a, b) = Host::pair(231, &settings());
    assert_eq!((a.shards().len(), b.shards().len()), (4, 4));
    write_everything(&mut a, &b);
}

/// With a fault layer everything goes in packets, and these are lost.
#[test]
fn packets_of_every_shard_may_be_lost() {
    let fault: FaultConfig = "loss=2%,reorder=2%:3,seed=5".parse().unwrap();
    let (mut a, b) = Host::pair(232, &Settings { fault: Some(fault), ..settings() });
    write_everything(&mut a, &b);
    assert!(a.context.counters().sent_pkts >= (QPS * 16) as u64);
}

/// The device with one shard knows nothing of those of its peer.
#[test]
fn a_device_with_one_shard_talks_to_one_with_several() {
    let mut a = Host::new(address(233, 1), Settings::default());
    let mut b = Host::new(address(233, 2), settings());
    a.qps.iter_mut().zip(&mut b.qps).for_each(|(a, b)| connect(a, b));
    assert_eq!((a.shards().len(), b.shards().len()), (1, 4));
    write_everything(&mut a, &b);
    write_everything(&mut b, &a);
}

#[test]
fn a_key_ends_and_changes_in_every_shard() {
    let (mut a, b) = Host::pair(234, &settings());
    let other = b.pd.alloc_mr(PART, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let target = other.remote(0);
    let write = |qps: &mut [Qp]| {
        for qp in qps.iter_mut() {
            qp.post_send([SendWr::new(1, SendOp::Write(target), a.mr.data(0..8))]).unwrap();
        }
        let all = qps.iter().map(|_| a.cq.wait().unwrap().status);
        all.collect::<Vec<_>>()
    };
    let (first, second) = a.qps.split_at_mut(4);
    assert_eq!(write(first), [WcStatus::Success; 4]);
    other.dereg().unwrap();
    assert_eq!(write(first), [WcStatus::RemoteAccess; 4], "one of each shard");
    // A key that names other memory does so in every shard.
    let mut again = b.pd.alloc_mr(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let region = feroce::Region::alloc(64).unwrap();
    let memory = Some((region.clone(), Iova::Natural));
    again.rereg(Rereg { memory, ..Rereg::default() }).unwrap();
    let target = again.remote(0);
    for (i, qp) in second.iter_mut().enumerate() {
        a.mr.write_at(i, &[i as u8 + 1]).unwrap();
        let op = SendOp::Write(feroce::Remote { addr: target.addr + i as u64, ..target });
        qp.post_send([SendWr::new(1, op, a.mr.data(i..i + 1))]).unwrap();
    }
    assert!((0..4).all(|_| a.cq.wait().unwrap().status == WcStatus::Success));
    let mut bytes = [0; 4];
    region.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 2, 3, 4]);
}

#[test]
fn one_event_comes_for_a_request_of_whatever_shard() {
    let a = Host::new(address(235, 1), settings());
    let mut b = Host::new(address(235, 2), settings());
    let channel = a.context.create_comp_channel().unwrap();
    let cq = a.context.create_cq_with(64, &channel).unwrap();
    let mut qps: Vec<Qp> =
        (0..4).map(|_| a.pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).create().unwrap()).collect();
    qps.iter_mut().zip(&mut b.qps).for_each(|(a, b)| connect(a, b));
    let (source, target) = (a.mr.data(0..8), b.mr.remote(64));
    let mut write = |i: usize| {
        qps[i].post_send([SendWr::new(i as u64, SendOp::Write(target), source.clone())]).unwrap();
    };
    let take = || loop {
        if let Some(cqe) = cq.take_one() {
            break cqe;
        }
        std::thread::yield_now();
    };
    for round in 0..40 {
        cq.notify(Notify::Next);
        assert!(cq.poll_one().is_none());
        write(round % 4);
        assert_eq!(channel.wait(Some(20_000)).unwrap(), Some(cq.id()), "round {round}");
        assert_eq!(take().wr_id, round as u64 % 4);
        // The consumer has not asked for an event of this one.
        write((round + 1) % 4);
        take();
        assert_eq!(channel.try_event(), None, "round {round}");
    }
}

/// A request for any completion ends with its event, also in the shards that did not give it.
#[test]
fn a_request_for_solicited_completions_waits_for_one() {
    let mut a = Host::new(address(246, 1), settings());
    let b = Host::new(address(246, 2), settings());
    let channel = b.context.create_comp_channel().unwrap();
    let cq = b.context.create_cq_with(64, &channel).unwrap();
    let mut receivers: Vec<Qp> =
        (0..2).map(|_| b.pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).create().unwrap()).collect();
    a.qps.iter_mut().zip(&mut receivers).for_each(|(a, b)| connect(a, b));
    let mut send = |i: usize, flags: SendFlags| {
        receivers[i].post_recv([b.mr.recv(i as u64, 0..8)]).unwrap();
        let mut wr = SendWr::new(0, SendOp::Send, a.mr.data(0..8));
        wr.flags |= flags;
        a.qps[i].post_send([wr]).unwrap();
        assert_eq!(a.cq.wait().unwrap().status, WcStatus::Success);
        // A thread that waits would ask for an event itself.
        while cq.take_one().is_none() {
            std::thread::yield_now();
        }
    };
    for first in [0, 1] {
        cq.notify(Notify::Next);
        send(first, SendFlags::empty());
        assert_eq!(channel.wait(Some(20_000)).unwrap(), Some(cq.id()));
        cq.notify(Notify::Solicited);
        send(first ^ 1, SendFlags::empty());
        assert_eq!(channel.wait(Some(50)).unwrap(), None, "an event of what was not asked for");
        send(first ^ 1, SendFlags::SOLICITED);
        assert_eq!(channel.wait(Some(20_000)).unwrap(), Some(cq.id()));
    }
}

/// The queue is polled while it has no queue pair, one of a single shard, and those of all shards.
#[test]
fn a_queue_is_polled_whatever_shards_complete_to_it() {
    let a = Host::new(address(240, 1), settings());
    let mut b = Host::new(address(240, 2), settings());
    let cq = a.context.create_cq(64).unwrap();
    assert!(cq.poll_one().is_none());
    let mut qps: Vec<Qp> = Vec::new();
    for (i, there) in b.qps.iter_mut().enumerate() {
        let mut here = a.pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).create().unwrap();
        connect(&mut here, there);
        there.post_recv([b.mr.recv(0, i * PART..i * PART + 8)]).unwrap();
        qps.push(here);
        for (wr_id, qp) in qps.iter_mut().enumerate() {
            let wr = SendWr::new(wr_id as u64, SendOp::Write(b.mr.remote(64)), a.mr.data(0..8));
            qp.post_send([wr]).unwrap();
        }
        // `wait` would sleep until there is an event: this only polls.
        let poll = || loop {
            if let Some(cqe) = cq.poll_one() {
                assert_eq!(cqe.status, WcStatus::Success);
                break cqe.wr_id;
            }
        };
        let seen: BTreeSet<u64> = qps.iter().map(|_| poll()).collect();
        assert_eq!(seen.len(), i + 1, "one of each queue pair");
    }
}

#[test]
fn receives_of_xrc_complete_to_a_queue_that_no_queue_pair_uses() {
    let (a, b) = (Host::new(address(245, 1), settings()), Host::new(address(245, 2), settings()));
    let (xrcd, cq) = (b.context.open_xrcd().unwrap(), b.context.create_cq(16).unwrap());
    let srq = b.pd.create_xrc_srq(&xrcd, &cq, 8, 1).unwrap();
    let mut target = xrcd.target_qp().create().unwrap();
    let mut initiator = a.pd.xrc_qp(&a.cq, QpCap::new(8, 0)).create().unwrap();
    connect(&mut initiator, &mut target);
    let bytes = a.fill(3);
    for wr_id in 0..4 {
        srq.post_recv([b.mr.recv(wr_id, 0..5000)]).unwrap();
        let send = SendWr::new(7, SendOp::Send, a.mr.data(0..5000));
        initiator.post_send([SendWr { dest: Dest::Xrc(srq.number()), ..send }]).unwrap();
        let received = cq.wait_timeout(Duration::from_secs(10)).unwrap().expect("a completion");
        assert_eq!((received.wr_id, received.status), (wr_id, WcStatus::Success));
        assert_eq!(a.cq.wait().unwrap().status, WcStatus::Success);
    }
    assert_eq!(b.bytes()[..5000], bytes[..5000]);
}

#[test]
fn objects_end_when_no_shard_uses_them() {
    let mut host = Host::new(address(236, 1), settings());
    let is_busy = |result: Result<(), Error>| matches!(result, Err(Error::Destroy(_)));
    while let Some(qp) = host.qps.pop() {
        assert!(is_busy(host.cq.destroy()) && is_busy(host.pd.dealloc()));
        drop(qp);
    }
    host.cq.destroy().unwrap();
    assert!(is_busy(host.pd.dealloc()), "it has memory");
    host.mr.dereg().unwrap();
    host.pd.dealloc().unwrap();
    // Names are used again, in every shard.
    let (pd, cq) = (host.context.alloc_pd().unwrap(), host.context.create_cq(4).unwrap());
    let qp = |_| pd.rc_qp(&cq, &cq, QpCap::new(4, 4)).create().unwrap();
    let qps: Vec<Qp> = (0..4).map(qp).collect();
    assert_eq!(qps.iter().map(|qp| qp.qpn().get() >> 16).collect::<BTreeSet<_>>().len(), 4);
}

#[test]
fn a_queue_takes_a_new_depth_while_shards_complete_to_it() {
    let (mut a, b) = Host::pair(237, &settings());
    for depth in [2048, 512] {
        a.cq.resize(depth).unwrap();
        assert!(a.cq.depth() >= depth as usize);
        write_everything(&mut a, &b);
    }
}

#[test]
fn a_queue_that_holds_more_than_would_fit_keeps_its_depth_in_every_shard() {
    let (mut a, b) = Host::pair(248, &settings());
    let (depth, last) = (a.cq.depth(), QPS - 1);
    assert_ne!(a.qps[last].qpn().get() >> 16, a.qps[0].qpn().get() >> 16);
    a.qps[last].post_recv((0..16).map(|id| a.mr.recv(id, 0..8))).unwrap();
    a.qps[last].modify(&QpAttr::to(QpState::Err)).unwrap();
    let resized = a.cq.resize(8);
    let refused = ResizeError::TooSmall { waiting: 16 };
    assert!(matches!(resized, Err(Error::Resize(error)) if error == refused), "{resized:?}");
    assert_eq!(a.cq.depth(), depth);
    assert_eq!((0..).map_while(|_| a.cq.take_one()).count(), 16);
    a.cq.resize(8).unwrap();
    assert!(a.cq.depth() < depth && b.cq.depth() == depth);
}

#[test]
fn the_connection_manager_brings_up_queue_pairs_of_every_shard() {
    let open = |number| Device::at([address(238, number)]).open_with(settings()).unwrap();
    let (server, client) = (Manager::with([open(1)]).unwrap(), Manager::with([open(2)]).unwrap());
    let listener = Listener::bind(&server, (address(238, 1), 0).into()).unwrap();
    let to = listener.local_addr();
    let mut shards = BTreeSet::new();
    for _ in 0..5 {
        let client = client.clone();
        let asking = std::thread::spawn(move || Connector::new(&client).connect(to));
        let accepting = listener.accept().unwrap().prepare().unwrap();
        shards.insert(accepting.qpn().get() >> 16);
        let target = accepting.pd().alloc_mr(8, Access::LOCAL_WRITE).unwrap();
        let mut there = accepting.accept().unwrap();
        let mut here = asking.join().unwrap().unwrap();
        let source = here.pd().alloc_mr(8, Access::LOCAL_WRITE).unwrap();
        source.write_at(0, b"sharded!").unwrap();
        there.post_recv([target.recv(1, 0..8)]).unwrap();
        here.post_send([SendWr::new(2, SendOp::Send, source.data(0..8))]).unwrap();
        assert_eq!(here.send_cq().wait().unwrap().status, WcStatus::Success);
        assert_eq!(there.recv_cq().wait().unwrap().status, WcStatus::Success);
        let mut bytes = [0; 8];
        target.read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"sharded!");
        let ending = std::thread::spawn(move || here.disconnect());
        there.wait_disconnected().unwrap();
        ending.join().unwrap().unwrap();
    }
    assert_eq!(shards.len(), 4);
}

#[test]
fn what_cannot_be_in_several_shards_is_refused() {
    let refused = |settings: Settings| match Device::at([address(239, 1)]).open_with(settings) {
        Err(Error::Io(e)) => {
            assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
            e.to_string()
        }
        other => panic!("{other:?}"),
    };
    assert!(refused(Settings { shared: false, ..settings() }).contains("`shared`"));
    let mut iwarp = settings();
    iwarp.engine.transport = TransportKind::Iwarp;
    assert!(refused(iwarp.clone()).contains("iWARP"));
    let automatic = Device::at([address(239, 2)]).open_with(Settings { shards: 0, ..iwarp });
    assert_eq!(automatic.unwrap().attr().shards, 1);
    let host = Host::new(address(239, 1), settings());
    assert_eq!(host.context.attr().max_mw, 0);
    assert!(matches!(host.pd.alloc_mw(feroce::MwType::Two), Err(Error::Unsupported(_))));
}

/// The processors on which each thread of a device may run, as the kernel lists them, in order.
fn processors_of(device: &str) -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let processors = tasks.filter_map(|task| {
        let folder = task.unwrap().path();
        // The kernel keeps the first 15 characters of a thread's name.
        let name = fs::read_to_string(folder.join("comm")).unwrap();
        let status = fs::read_to_string(folder.join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        device.starts_with(name.trim()).then(|| line.unwrap().trim().to_owned())
    });
    let mut processors: Vec<String> = processors.collect();
    processors.sort_unstable();
    processors
}

#[test]
fn threads_of_shards_run_on_the_processors_of_the_setting() {
    // Where the test itself may run.
    let all = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let allowed: Vec<u16> = (0..1024).filter(|&at| all.is_set(at.into()).unwrap()).collect();
    let affinity: Vec<u16> = allowed.iter().copied().take(2).collect();
    let settings = Settings { affinity: affinity.clone(), ..settings() };
    let host = Host::new(address(247, 1), settings.clone());
    // A thread sets its name when it runs for the first time.
    let device = host.context.attr().name;
    while processors_of(&device).len() < SHARDS.into() {
        std::thread::yield_now();
    }
    let turns = affinity.iter().cycle().take(SHARDS.into());
    let mut expected: Vec<String> = turns.map(u16::to_string).collect();
    expected.sort_unstable();
    assert_eq!(processors_of(&device), expected);
    assert_eq!(sched_getaffinity(Pid::from_raw(0)).unwrap(), all, "the test runs where it ran");
    drop(host);

    let missing = (0..1024).find(|at| !allowed.contains(at)).unwrap();
    let settings = Settings { affinity: vec![affinity[0], missing], ..settings };
    let refused = Device::at([address(247, 2)]).open_with(settings).unwrap_err().to_string();
    assert!(refused.contains(&format!("may not run on processor {missing}")), "{refused}");
}
