//! Several adapters that share one address, as processes of a host do.

use std::fs::File;
use std::num::NonZeroUsize;

use crate::common::{ALL, Host, connect};
use feroce::{
    AddrVec, Data, Gid, InlineBytes, Iova, Mr, Qkey, Qp, QpCap, Qpn, SendOp, SendWr, WcStatus,
};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};

const ROUNDS: u64 = 2000;
const LEN: usize = 4096;

/// Registers memory of a file, at an address of its own.
fn register(host: &Host, file: &File) -> Mr {
    let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let len = NonZeroUsize::new(LEN).expect("not empty");
    // SAFETY: a new mapping replaces no other.
    let base = unsafe { mmap(None, len, prot, MapFlags::MAP_SHARED, file, 0) }.expect("mapped");
    // SAFETY: it stays until the process ends, and nothing else leads to it.
    unsafe { host.pd.register_raw(base.as_ptr().cast(), LEN, Iova::Natural, ALL) }.expect("memory")
}

/// Adds one again and again to the first word of some memory.
fn add(from: &Host, qp: &mut Qp, target: &Mr) {
    let op = SendOp::FetchAdd { remote: target.remote(0), add: 1 };
    for _ in 0..ROUNDS {
        qp.post_send([SendWr::new(1, op, from.mr.data(0..8))]).expect("posted");
        assert_eq!(from.wait().status, WcStatus::Success);
    }
}

/// Two responders share the word, each with two requesters: no addition is lost.
#[test]
fn atomics_of_two_adapters_at_one_word() {
    let file = File::from(memfd_create(c"in common", MFdFlags::MFD_CLOEXEC).expect("a file"));
    file.set_len(LEN as u64).expect("memory");
    let responders = [Host::new(177, 1), Host::new(177, 1)];
    let targets = responders.each_ref().map(|host| register(host, &file));
    let pairs: Vec<_> = (0..4)
        .map(|i| {
            let (from, to) = (Host::new(177, 1), &responders[i % 2]);
            let (mut here, mut there) = (from.rc(), to.rc());
            connect(&mut here, &mut there);
            (from, here, there, &targets[i % 2])
        })
        .collect();
    std::thread::scope(|scope| {
        for (from, mut here, there, target) in pairs {
            scope.spawn(move || {
                add(&from, &mut here, target);
                drop(there);
            });
        }
    });
    let mut word = [0; 8];
    targets[0].read_at(0, &mut word).expect("in bounds");
    assert_eq!(u64::from_ne_bytes(word), 4 * ROUNDS);
}

fn datagrams(host: &Host, qkey: Qkey) -> Qp {
    let qp = host.pd.ud_qp(&host.cq, &host.cq, QpCap::new(16, 16)).create();
    let mut qp = qp.expect("a queue pair");
    qp.activate(qkey).expect("ready");
    qp
}

/// Each member receives the datagrams of the group, at the address of the sender and at another,
/// independent of which process has the socket; a queue pair that is not a member does not.
#[test]
fn a_group_is_heard_by_everybody_at_an_address() {
    let (a, others) = (Host::new(178, 1), [1, 1, 2, 2, 2].map(|number| Host::new(178, number)));
    let (qkey, group) = (Qkey(0x1234), Gid::from_ipv4([239, 103, 1, 2]));
    let mut ends = others.each_ref().map(|host| datagrams(host, qkey));
    for (i, (host, qp)) in others.iter().zip(&mut ends).enumerate() {
        qp.post_recv([host.mr.recv(2, 0..4096)]).expect("posted");
        if i < 4 {
            qp.attach_mcast(group).expect("attached");
        }
    }
    let sgid_index = a.context.port().first_gid();
    let path = AddrVec { dgid: group, sgid_index, ..AddrVec::default() };
    let (ah, mut sender) = (a.pd.create_ah(path).expect("a way"), datagrams(&a, qkey));
    let dest = ah.dest(Qpn::MULTICAST, qkey);
    let inline = Data::Inline(InlineBytes::new(b"datagram"));
    let wr = SendWr { dest, ..SendWr::new(4, SendOp::Send, inline) };
    sender.post_send([wr]).expect("posted");
    assert_eq!(a.wait().status, WcStatus::Success);
    for host in &others[..4] {
        assert_eq!((host.wait().wr_id, host.read(40, 8)), (2, b"datagram".to_vec()));
    }
    assert!(others[4].cq.poll_one().is_none(), "it is not in the group");
}
