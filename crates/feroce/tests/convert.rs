//! The setting `convert`: registering private memory of a program makes it shareable.

use crate::common::{ALL, Host, connect};
use feroce::{Context, Iova, SendOp, SendWr, Settings, WcStatus};

/// More than any allocator keeps for reuse, so that this memory is a mapping of its own.
const LEN: usize = 40 << 20;
const MESSAGE: usize = 64 << 10;

fn counter(context: &Context, name: &str) -> u64 {
    context.link_counters().iter().find(|(n, _)| *n == name).map_or(0, |(_, value)| *value)
}

/// A host whose memory is that of the program.
fn host(net: u8, number: u8, convert: bool) -> Host {
    let device = feroce::Device::at([std::net::Ipv4Addr::new(127, net, 0, number).into()]);
    let settings = Settings { convert, fault: None, ..Settings::load().expect("settings") };
    let context = device.open_with(settings).expect("a device");
    let (pd, cq) = (context.alloc_pd().expect("a domain"), context.create_cq(64).expect("a queue"));
    let memory: &'static mut [u8] = vec![0x11; LEN].leak();
    let start = memory.as_mut_ptr();
    // SAFETY: it was leaked, so it stays, and nothing else leads to it.
    let mr = unsafe { pd.register_raw(start, LEN, Iova::Natural, ALL) }.expect("registered");
    Host { context, pd, cq, mr }
}

/// How many messages the peer fetched, how many of them without the kernel, and how many the sender
/// wrote by direct access, without the peer's help.
fn exchanged(net: u8, convert: bool) -> [u64; 3] {
    let (a, b) = (host(net, 1, convert), host(net, 1, convert));
    let (mut from, mut to) = (a.rc(), b.rc());
    connect(&mut from, &mut to);
    assert_eq!(a.read(LEN - 1, 1), [0x11], "registering changes nothing");
    // The first message may be sent before the peer has announced that it can fetch, and the first
    // write finds no direct access yet.
    for (i, at) in [4096, 8192, LEN - 4096 - MESSAGE].into_iter().enumerate() {
        let (range, seed) = (at..at + MESSAGE, 0x5a + 2 * i as u8);
        to.post_recv([b.mr.recv(2, range.clone())]).expect("posted");
        for (op, seed) in [(SendOp::Send, seed), (SendOp::Write(b.mr.remote(at)), seed + 1)] {
            let bytes = a.fill(at, MESSAGE, seed);
            from.post_send([SendWr::new(1, op, a.mr.data(range.clone()))]).expect("posted");
            assert_eq!(a.wait().status, WcStatus::Success);
            if op == SendOp::Send {
                assert_eq!(b.wait().status, WcStatus::Success);
            }
            assert!(b.read(at, MESSAGE) == bytes, "the bytes at {at}");
        }
    }
    ["shm_rx_fetched", "shm_rx_mapped", "shm_direct"].map(|name| counter(&b.context, name))
}

#[test]
fn memory_is_copied_from_where_it_is_and_written_where_it_is() {
    let [fetched, mapped, passed] = exchanged(171, true);
    assert!(fetched >= 2 && mapped == fetched, "{mapped} of {fetched}");
    assert_eq!(passed, 2);
}

#[test]
fn only_if_the_setting_asks_for_it() {
    let [fetched, mapped, passed] = exchanged(172, false);
    assert!(fetched >= 4 && mapped == 0, "{mapped} of {fetched}");
    assert_eq!(passed, 0);
}
