//! Descriptors that a device and its objects cost.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::fs;
use std::os::fd::AsFd;

use feroce::{Access, Device, Notify, QpCap, SendOp, SendWr};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The descriptors of this process, and what they are.
fn descriptors() -> Vec<(String, String)> {
    let entries = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let named = entries.filter_map(|entry| {
        let to = fs::read_link(entry.path()).ok()?.display().to_string();
        Some((entry.file_name().display().to_string(), to))
    });
    // The descriptor of the listing itself is gone by now.
    named.filter(|(_, to)| !to.ends_with("/fd")).collect()
}

#[test]
fn an_idle_device_costs_few_descriptors_and_a_queue_without_channel_none() {
    let before = descriptors();
    let context = Device::at(["127.185.0.1".parse().unwrap()]).open().unwrap();
    let mut device = descriptors();
    device.retain(|one| !before.contains(one));
    assert!(device.len() <= 12, "{device:#?}");
    // As many as a process can have descriptors, and ten times as many.
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, soft.min(1024), hard).unwrap();
    let queues: Vec<_> = (0..10_000).map(|_| context.create_cq(4).unwrap()).collect();
    let mut all = descriptors();
    all.retain(|one| !before.contains(one));
    assert_eq!(all, device, "{} queues", queues.len());
    // A queue without channel can still be waited on.
    let pd = context.alloc_pd().unwrap();
    let mut ends = queues[..2].iter().map(|cq| {
        let qp = pd.rc_qp(cq, cq, QpCap::new(4, 4)).create().unwrap();
        (qp, cq)
    });
    let ((mut a, cq), (mut b, _)) = (ends.next().unwrap(), ends.next().unwrap());
    let (to_a, to_b) = (a.endpoint().unwrap(), b.endpoint().unwrap());
    a.connect(&to_b).unwrap();
    b.connect(&to_a).unwrap();
    let mr = pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    b.post_recv([mr.recv(7, 0..8)]).unwrap();
    cq.notify(Notify::Next);
    a.post_send([SendWr::new(1, SendOp::Send, mr.data(8..16))]).unwrap();
    // The event precedes the descriptor.
    assert_eq!(cq.channel().wait(Some(20_000)).unwrap(), Some(cq.id()));
    cq.notify(Notify::Next);
    let mut fds = [PollFd::new(cq.channel().as_fd(), PollFlags::POLLIN)];
    b.post_recv([mr.recv(8, 0..8)]).unwrap();
    a.post_send([SendWr::new(2, SendOp::Send, mr.data(8..16))]).unwrap();
    assert_eq!(poll(&mut fds, PollTimeout::from(20_000_u16)), Ok(1));
}

/// A device has a sending and a receiving socket at each of its addresses: a socket at all
/// addresses of the host would take them from other users.
#[test]
fn each_further_address_costs_two_descriptors() {
    let before = descriptors();
    let addresses = (1..=4).map(|last| std::net::IpAddr::from([127, 185, 1, last]));
    let context = Device::at(addresses).open().unwrap();
    let mut device = descriptors();
    device.retain(|one| !before.contains(one));
    assert!(device.len() <= 12 + 3 * 2, "{device:#?}");
    drop(context);
}
