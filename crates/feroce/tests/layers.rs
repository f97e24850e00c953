//! Capture, fault injection and trace, as a user enables them.

use crate::common::{ALL, Host, LEN, connect};
use feroce::{Device, SendOp, SendWr, Settings, WcStatus};

/// A host with settings of its own.
fn host(net: u8, number: u8, settings: Settings) -> Host {
    let device = Device::at([std::net::Ipv4Addr::new(127, net, 0, number).into()]);
    let context = device.open_with(settings).expect("the device opens");
    let pd = context.alloc_pd().expect("a domain");
    let cq = context.create_cq(1024).expect("a queue");
    let mr = pd.alloc_mr(LEN, ALL).expect("memory");
    Host { context, pd, cq, mr }
}

fn count(host: &Host, name: &str) -> u64 {
    let counters = host.context.link_counters();
    counters.iter().find(|(n, _)| *n == name).map_or(0, |(_, v)| *v)
}

#[test]
fn data_arrives_whatever_is_lost_duplicated_reordered_or_damaged() {
    let fault = "loss=2%,dup=1%,reorder=1%:3,corrupt=1%,delay=20us~10us,seed=7";
    let settings = Settings { fault: fault.parse().ok(), ..Settings::default() };
    assert!(settings.fault.is_some());
    let (a, b) = (host(121, 1, settings.clone()), host(121, 2, settings));
    let (mut qa, mut qb) = (a.rc(), b.rc());
    connect(&mut qa, &mut qb);
    for round in 0..10_u8 {
        let bytes = a.fill(0, 300_000, round);
        let (write, read) = (SendOp::Write(b.mr.remote(0)), SendOp::Read(b.mr.remote(0)));
        qa.post_send([
            SendWr::new(1, write, a.mr.data(0..300_000)),
            SendWr::new(2, read, a.mr.data(400_000..700_000)),
        ])
        .expect("room");
        assert_eq!((a.wait().status, a.wait().status), (WcStatus::Success, WcStatus::Success));
        assert!(b.read(0, 300_000) == bytes && a.read(400_000, 300_000) == bytes, "{round}");
    }
    let damaged = count(&a, "rx_icrc_encapsulated") + count(&b, "rx_icrc_encapsulated");
    assert!(damaged > 0, "the check of the ICRC caught nothing");
    assert!(a.context.counters().completer_retry_err + a.context.counters().tail_probes > 0);
}

#[test]
fn a_capture_and_a_trace_are_written() {
    let dir = std::env::temp_dir().join(format!("feroce-layers-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let settings = Settings {
        pcap: Some(dir.join("run-%d.pcapng")),
        trace: Some(dir.join("trace-%d.txt")),
        ..Settings::default()
    };
    let (a, b) = (host(122, 1, settings.clone()), host(122, 2, settings));
    let (mut qa, mut qb) = (a.rc(), b.rc());
    connect(&mut qa, &mut qb);
    qa.post_send([SendWr::new(1, SendOp::Write(b.mr.remote(0)), a.mr.data(0..10_000))])
        .expect("room");
    assert_eq!(a.wait().status, WcStatus::Success);
    drop((qa, qb, a, b));
    let mut files: Vec<_> = std::fs::read_dir(&dir)
        .expect("it is there")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    assert_eq!(files.len(), 4, "{files:?}");
    for file in &files {
        let bytes = std::fs::read(file).expect("readable");
        if file.extension().is_some_and(|e| e == "pcapng") {
            assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a], "{file:?}");
        } else {
            let text = String::from_utf8(bytes).expect("text");
            assert!(text.contains("WRITE First") && text.contains("ACK"), "{text}");
        }
    }
    std::fs::remove_dir_all(&dir).expect("ours to remove");
}

#[test]
fn a_file_that_cannot_be_made_is_a_clear_error() {
    let settings = Settings { pcap: Some("/nonexistent/x.pcapng".into()), ..Settings::default() };
    let device = Device::at(["127.123.0.1".parse().expect("an address")]);
    let said = device.open_with(settings).expect_err("it cannot").to_string();
    assert!(said.contains("/nonexistent/x.pcapng"), "{said}");
}
