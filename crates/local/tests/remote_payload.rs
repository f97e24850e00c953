//! Remote payload between processes of one host.

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use crate::common::{SendOne as _, Sent};
use crate::common::{counter, loopback, path, registry};
use feroce_link::{Carrier, UdpLink};
use feroce_local::HostCarrier as _;
use feroce_local::{HostLink, Registry};
use feroce_mem::{Access, HostMemory, Iova, MrLimits, MrTable, PdId, Read, Region};
use feroce_train::{Ext, Instant, Payload, RxTrain, Train, TrainOps};
use feroce_wire::{Bth, Gid, Lkey, Op, Opcode, Psn, Qpn, Service};

const NOW: Instant = Instant::from_nanos(1_000_000_000);
const PD: PdId = PdId(1);
const MTU: usize = 1024;

/// A process with its link, and memory for remote payload.
struct Host {
    link: HostLink<UdpLink>,
    registry: Arc<Registry>,
    mrs: MrTable,
    region: Arc<Region>,
    key: Lkey,
}

impl Host {
    fn new(root: &FilePath, address: Gid, fetches: bool) -> Self {
        Self::with(root, address, fetches, |_, len| Region::alloc(len).expect("memory"))
    }

    fn with(
        root: &FilePath,
        address: Gid,
        fetches: bool,
        alloc: impl FnOnce(&Registry, usize) -> Arc<Region>,
    ) -> Self {
        let (registry, link) = registry(root, address, fetches);
        let mut mrs = MrTable::new(7, MrLimits::default());
        let region = alloc(&registry, 1 << 17);
        let bytes: Vec<u8> = (0..region.len()).map(|i| (i * 7 + i / 251) as u8).collect();
        region.write_at(0, &bytes).expect("in bounds");
        let all = region.len();
        let access = Access::LOCAL_WRITE;
        let key = mrs.reg(PD, Arc::clone(&region), 0, all, Iova::Natural, access).expect("a key");
        Self { link, registry, mrs, region, key }
    }

    fn qpn(&self) -> Qpn {
        Qpn::new(u32::from(self.registry.prefix()) << 16 | 0x1234)
    }

    /// A part of a message to another process: packets `from..from + count` of `total`.
    fn train(&self, address: Gid, to: Qpn, from: u32, count: u32, total: u32) -> Train {
        let (start, len) = (from as usize * MTU, count as usize * MTU);
        let at = self.region.addr() + start as u64;
        let grant = self.mrs.grant_local::<Read>(PD, self.key, at, len as u32).expect("a grant");
        let op = |op| Opcode::new(Service::Rc, op);
        let (is_first, is_last) = (from == 0, from + count == total);
        let first = if is_first { Op::SendFirst } else { Op::SendMiddle };
        let last = if is_last { Op::SendLast } else { Op::SendMiddle };
        Train {
            path: path(address, address),
            bth: Bth::new(op(first), to, Psn::new(100 + from)),
            ops: TrainOps { first: op(first), middle: op(Op::SendMiddle), last: op(last) },
            count,
            stride: MTU,
            payload_len: len,
            head: Ext::NONE,
            body: Ext::NONE,
            tail: Ext::NONE,
            payload: Payload::One(grant),
            revocation_epoch: Some(self.registry.revocation_epoch()),
        }
    }
}

/// What arrived: the headers, how many packets, and the bytes of a remote payload if they could be
/// fetched.
type Seen = (Vec<u8>, usize, Option<Vec<u8>>);

fn receive(host: &mut Host, mut before_fetch: impl FnMut()) -> Vec<Seen> {
    let mut seen = Vec::new();
    let mut see = |train: &RxTrain<'_>| {
        let Some(remote) = train.remote else {
            return seen.push((train.bytes.to_vec(), train.packets().count(), None));
        };
        before_fetch();
        let target = Region::alloc(remote.len).expect("memory");
        let fetched = target.write_from(0, remote.len, remote.source, remote.offset);
        let mut bytes = vec![0; remote.len];
        target.read_at(0, &mut bytes).expect("in bounds");
        let bytes = fetched.is_ok().then_some(bytes);
        seen.push((train.bytes.to_vec(), remote.packets as usize, bytes));
    };
    while host.link.receive(NOW, 16, &mut see).expect("received") > 0 {}
    seen
}

fn directory(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("feroce-remote-payload-{name}-{}", std::process::id()))
}

/// Two processes that have exchanged packets: the first packets are never remote payload.
fn met(root: &FilePath, address: Gid, fetches: bool) -> (Host, Host) {
    let (mut a, mut b) = (Host::new(root, address, true), Host::new(root, address, fetches));
    let hello = a.train(address, b.qpn(), 0, 10, 10);
    assert_eq!(a.link.send_one(NOW, &hello).expect("sent"), Sent::Done);
    assert_eq!(receive(&mut b, || ()).len(), 1);
    (a, b)
}

#[test]
fn trains_that_go_on_are_lent_together() {
    let (root, address) = (directory("together"), loopback(31));
    let (mut a, mut b) = met(&root, address, true);
    let to = b.qpn();
    let trains = [a.train(address, to, 0, 1, 40), a.train(address, to, 1, 39, 40)];
    assert_eq!(a.link.send(NOW, &trains).expect("sent"), 2);
    let seen = receive(&mut b, || ());
    let mut expected = vec![0; 40 * MTU];
    a.region.read_at(0, &mut expected).expect("in bounds");
    let [(headers, 40, Some(bytes))] = &seen[..] else { panic!("{seen:?}") };
    assert!(*bytes == expected, "the payload is whole");
    let (bth, _) = Bth::parse(headers).expect("a BTH");
    assert_eq!((bth.opcode, bth.psn), (Opcode::new(Service::Rc, Op::SendOnly), Psn::new(100)));
    assert_eq!(
        (counter(&a.link, "shm_tx_remote_payload"), counter(&b.link, "shm_rx_fetched")),
        (2, 1)
    );
    drop((a, b));
    std::fs::remove_dir_all(&root).expect("removed");
}

#[test]
fn long_trains_wait_for_more_only_to_be_lent() {
    let (root, address) = (directory("gathered"), loopback(39));
    let (a, b) = met(&root, address, true);
    let train = |from, to| a.train(address, to, from, 10, 1000);
    let several = |n: u32| (0..n).map(|i| train(10 * i, b.qpn())).collect::<Vec<Train>>();
    assert!(a.link.wants_more(&several(1)), "to be fetched in one call");
    assert!(!a.link.wants_more(&several(8)), "the receiver has enough to do meanwhile");
    let mut asking = train(0, b.qpn());
    asking.bth.ack_req = true;
    assert!(!a.link.wants_more(&[asking]), "the requester waits for the answer");
    let last = a.train(address, b.qpn(), 30, 10, 40);
    assert!(!a.link.wants_more(&[last]), "the next message is another remote payload");
    let mut kept = train(0, b.qpn());
    kept.revocation_epoch = None;
    assert!(!a.link.wants_more(&[kept]), "it goes through the ring");
    assert!(!a.link.wants_more(&[train(0, Qpn::new(0xfe_1234))]), "to no registry");
    assert!(a.link.wants_more(&[a.train(address, b.qpn(), 0, 1, 40)]), "the first of many");
    drop((a, b));
    let (a, b) = met(&root, address, false);
    let train = a.train(address, b.qpn(), 0, 10, 40);
    assert!(!a.link.wants_more(&[train]), "to a process that cannot fetch");
    drop((a, b));
    std::fs::remove_dir_all(&root).expect("removed");
}

#[test]
fn what_was_revoked_is_not_to_be_had() {
    let (root, address) = (directory("revoked"), loopback(32));
    let (mut a, mut b) = met(&root, address, true);
    let train = a.train(address, b.qpn(), 0, 30, 40);
    a.link.send_one(NOW, &train).expect("sent");
    let (host_memory, to) = (Arc::clone(&a.registry), b.qpn());
    let seen = receive(&mut b, || host_memory.revoke_from(to));
    assert!(matches!(&seen[..], [(_, 30, None)]), "revoked while it is looked at: {seen:?}");

    // A train that was made before a revocation is not sent as remote payload any more.
    a.link.send_one(NOW, &train).expect("sent");
    assert_eq!(counter(&a.link, "shm_tx_remote_payload"), 1);
    assert!(matches!(&receive(&mut b, || ())[..], [(_, 30, None)]), "packets, as they are");
    drop((a, b));
    std::fs::remove_dir_all(&root).expect("removed");
}

#[test]
fn who_wants_packets_gets_packets() {
    let (root, address) = (directory("packets"), loopback(33));
    let (mut a, mut b) = met(&root, address, false);
    let train = a.train(address, b.qpn(), 0, 30, 40);
    a.link.send_one(NOW, &train).expect("sent");
    let seen = receive(&mut b, || panic!("nothing is remote"));
    assert_eq!((seen.len(), seen[0].1), (1, 30));
    assert_eq!(counter(&a.link, "shm_tx_remote_payload"), 0);
    drop((a, b));
    std::fs::remove_dir_all(&root).expect("removed");
}

/// The receiver maps memory that can be mapped, and fetches its present content, not an earlier
/// one.
#[test]
fn memory_in_files_is_mapped() {
    let (root, address) = (directory("mapped"), loopback(34));
    let shareable = |registry: &Registry, len| registry.alloc(len).expect("memory");
    let mut a = Host::with(&root, address, true, shareable);
    let mut b = Host::new(&root, address, true);
    let to = b.qpn();
    a.link.send_one(NOW, &a.train(address, to, 0, 10, 10)).expect("sent");
    assert_eq!(receive(&mut b, || ()).len(), 1, "they have met");
    for round in 0..3 {
        a.region.write_at(5 * MTU + 7, &[round; 100]).expect("in bounds");
        a.link.send_one(NOW, &a.train(address, to, 5, 40, 60)).expect("sent");
        let mut expected = vec![0; 40 * MTU];
        a.region.read_at(5 * MTU, &mut expected).expect("in bounds");
        let seen = receive(&mut b, || ());
        let [(_, 40, Some(bytes))] = &seen[..] else { panic!("{}", seen.len()) };
        assert!(*bytes == expected, "round {round}");
    }
    assert_eq!(counter(&b.link, "shm_rx_mapped"), 3);
    drop((a, b));
    std::fs::remove_dir_all(&root).expect("removed");
}
