//! Atomics and immediate data over iWARP (RFC 7306), by setting.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::disallowed_methods, reason = "two ends that block need two threads")]

use std::net::{IpAddr, Ipv4Addr};

use feroce::cm::{Connection, Connector, Listener, Manager};
use feroce::{
    Access, AtomicCap, Device, Imm, QpCap, Remote, SendOp, SendWr, Settings, WcOpcode, WcStatus,
};

fn manager(net: u8, number: u8, extensions: &str) -> (Manager, IpAddr) {
    let ip = Ipv4Addr::new(127, net, 0, number).into();
    let mut settings = Settings::default();
    settings.set("transport", "iwarp").unwrap();
    settings.set("iwarp_extensions", extensions).unwrap();
    (Manager::with([Device::at([ip]).open_with(settings).unwrap()]).unwrap(), ip)
}

fn connect(server: &Manager, client: &Manager, at: IpAddr) -> (Connection, Connection) {
    let listener = Listener::bind(server, (at, 0).into()).unwrap();
    let (to, cap) = (listener.local_addr(), QpCap::new(16, 16));
    std::thread::scope(|scope| {
        let accepts = scope.spawn(|| listener.accept().unwrap().cap(cap).accept().unwrap());
        let near = Connector::new(client).cap(cap).connect(to).unwrap();
        (accepts.join().unwrap(), near)
    })
}

fn rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

#[test]
fn atomics_and_immediate_data_between_ends_that_have_them() {
    let ((server, ip), (client, _)) = (manager(183, 1, "1"), manager(183, 2, "1"));
    assert_eq!(client.contexts()[0].attr().atomic_cap, AtomicCap::Hca);
    let (mut far, mut near) = connect(&server, &client, ip);
    let own = near.pd().alloc_mr(4096, rights()).unwrap();
    let other = far.pd().alloc_mr(4096, rights()).unwrap();
    let remote = Remote { addr: other.addr(), rkey: other.rkey() };
    far.post_recv([other.recv(9, 0..0)]).unwrap();
    own.write_at(100, &[5; 3000]).unwrap();
    let behind = Remote { addr: remote.addr + 64, ..remote };
    near.post_send([
        SendWr::new(1, SendOp::FetchAdd { remote, add: 42 }, own.data(0..8)),
        SendWr::new(2, SendOp::CmpSwap { remote, compare: 42, swap: 7 }, own.data(8..16)),
        SendWr::new(3, SendOp::WriteImm(behind, Imm(77)), own.data(100..3100)),
        SendWr::new(4, SendOp::Read(remote), own.data(16..24)),
    ])
    .unwrap();
    for (id, opcode) in
        (1..).zip([WcOpcode::FetchAdd, WcOpcode::CmpSwap, WcOpcode::Write, WcOpcode::Read])
    {
        let cqe = near.send_cq().wait().unwrap();
        assert_eq!((cqe.wr_id, cqe.status, cqe.opcode), (id, WcStatus::Success, opcode));
    }
    let told = far.recv_cq().wait().unwrap();
    assert_eq!((told.wr_id, told.opcode), (9, WcOpcode::RecvWriteImm));
    assert_eq!((told.imm, told.byte_len), (Imm(77), 3000));
    let mut words = [0; 24];
    own.read_at(0, &mut words).unwrap();
    let word = |i: usize| u64::from_ne_bytes(*words[8 * i..].first_chunk().unwrap());
    assert_eq!([word(0), word(1), word(2)], [0, 42, 7]);
    let mut bytes = [0; 3000];
    other.read_at(64, &mut bytes).unwrap();
    assert_eq!(bytes, [5; 3000]);
}

/// Ends do not negotiate: the one without the extensions ends the connection, and counts why.
#[test]
fn an_end_without_the_extensions_refuses_them() {
    let ((server, ip), (client, _)) = (manager(184, 1, "0"), manager(184, 2, "1"));
    assert_eq!(server.contexts()[0].attr().atomic_cap, AtomicCap::None);
    let (far, mut near) = connect(&server, &client, ip);
    let own = near.pd().alloc_mr(64, rights()).unwrap();
    let other = far.pd().alloc_mr(64, rights()).unwrap();
    let remote = Remote { addr: other.addr(), rkey: other.rkey() };
    near.post_send([SendWr::new(1, SendOp::FetchAdd { remote, add: 1 }, own.data(0..8))]).unwrap();
    assert_eq!(near.send_cq().wait().unwrap().status, WcStatus::Flushed);
    near.wait_disconnected().unwrap();
    far.wait_disconnected().unwrap();
    let counter = |manager: &Manager, name: &str| {
        let counters = manager.contexts()[0].link_counters();
        counters.iter().find(|(key, _)| *key == name).unwrap().1
    };
    assert_eq!(counter(&server, "iwarp_refused_opcode"), 1);
    assert_eq!(counter(&client, "iwarp_terminated_by_peer"), 1);
}
