//! Memory of a program that is made shareable when it is registered.

mod common;

use common::{ALL, Host, connect};
use feroce::{Context, Iova, SendOp, SendWr, Settings, WcStatus};

/// More than any allocator keeps for later: such memory is a mapping of its own.
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

/// Writes messages, and says how many the peer fetched, and how many of them without the kernel.
fn written(net: u8, convert: bool) -> [u64; 2] {
    let (a, b) = (host(net, 1, convert), host(net, 1, convert));
    let (mut from, mut to) = (a.rc(), b.rc());
    connect(&mut from, &mut to);
    assert_eq!(a.read(LEN - 1, 1), [0x11], "registering changes nothing");
    // The first may be on its way before the peer has said that it can fetch.
    for at in [4096, 8192, LEN - 4096 - MESSAGE] {
        let bytes = a.fill(at, MESSAGE, 0x5a);
        let write = SendOp::Write(b.mr.remote(at));
        from.post_send([SendWr::new(1, write, a.mr.data(at..at + MESSAGE))]).expect("posted");
        assert_eq!(a.wait().status, WcStatus::Success);
        assert!(b.read(at, MESSAGE) == bytes, "the bytes at {at}");
    }
    ["shm_rx_fetched", "shm_rx_mapped"].map(|name| counter(&b.context, name))
}

#[test]
fn memory_is_copied_from_where_it_is() {
    let [fetched, mapped] = written(171, true);
    assert!(fetched >= 2 && mapped == fetched, "{mapped} of {fetched}");
}

#[test]
fn only_if_somebody_wants_that() {
    let [fetched, mapped] = written(172, false);
    assert!(fetched >= 2 && mapped == 0, "{mapped} of {fetched}");
}
