//! An unknown sender floods the connection manager with invalid messages, while other programs
//! connect.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use feroce_wire::mad::{MAD_LEN, MadHeader};
use feroce_wire::{
    Bth, Deth, Exts, IcrcPrefix, Ipv4, Op, Opcode, Packet, Psn, Qkey, Qpn, ROCE_UDP_PORT, Service,
    Udp,
};

use super::{Running, run, text};

const STRANGER: [u8; 4] = [127, 19, 70, 9];
const VICTIM: [u8; 4] = [127, 19, 70, 1];

/// Messages of connection management, from REQ to APR.
const ATTRIBUTES: core::ops::Range<u16> = 0x10..0x1b;

/// The queue key of queue pair 1.
const QKEY: Qkey = Qkey(0x8001_0000);

/// The next number of a pseudo-random sequence.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state ^ *state >> 33
}

/// A management datagram to queue pair 1: a valid header, followed by random bytes.
fn nonsense(state: &mut u64) -> Vec<u8> {
    let mut mad = [0; MAD_LEN];
    for chunk in mad.chunks_exact_mut(8) {
        chunk.copy_from_slice(&next(state).to_ne_bytes());
    }
    let span = u64::from(ATTRIBUTES.end - ATTRIBUTES.start);
    let attribute = ATTRIBUTES.start + u16::try_from(next(state) % span).expect("a small number");
    let mut header = [0; MadHeader::LEN];
    MadHeader::cm(attribute, next(state)).emit(&mut header);
    mad[..MadHeader::LEN].copy_from_slice(&header);
    let opcode = Opcode::new(Service::Ud, Op::SendOnly);
    let deth = Some(Deth { qkey: QKEY, src_qp: Qpn::QP1 });
    let psn = Psn::new(next(state) as u32);
    let packet = Packet::new(Bth::new(opcode, Qpn::QP1, psn), Exts { deth, ..Exts::NONE }, &mad);
    let mut bytes = vec![0; 2 * MAD_LEN];
    let len = packet.emit(&mut bytes).expect("room");
    bytes.truncate(len);
    let udp_len = u16::try_from(Udp::LEN + len + 4).expect("a small packet");
    let (ip, udp) = (Ipv4::udp(STRANGER, VICTIM, udp_len), Udp::roce(ROCE_UDP_PORT, udp_len));
    bytes.extend(IcrcPrefix::for_ipv4(&ip, &udp).seal(&bytes));
    bytes
}

/// Resident memory of a process, in KiB.
fn resident(server: &Running) -> u64 {
    let path = format!("/proc/{}/status", server.child.id());
    let status = std::fs::read_to_string(path).expect("our child lives");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("it has memory");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

/// Ends the flood when the test ends, also if it fails.
struct EndOfFlood<'a>(&'a AtomicBool);

impl Drop for EndOfFlood<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_flood_of_nonsense_changes_nothing() {
    let server = Running::server("rping -s -P -a 127.19.70.1");
    let socket = UdpSocket::bind(("127.19.70.9", ROCE_UDP_PORT)).expect("an address of our own");
    socket.set_read_timeout(Some(Duration::from_millis(1))).expect("a time");
    let (stop, sent, answers) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let flood = || {
        let (mut state, mut answer) = (7, [0; 512]);
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..32 {
                // The receive buffer of the server's socket may be full.
                let _ = socket.send_to(&nonsense(&mut state), ("127.19.70.1", ROCE_UDP_PORT));
            }
            sent.fetch_add(32, Ordering::Relaxed);
            if socket.recv(&mut answer).is_ok() {
                answers.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    let flooded = |count| {
        while sent.load(Ordering::Relaxed) < count {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        let _end = EndOfFlood(&stop);
        scope.spawn(flood);
        flooded(5_000);
        let before = resident(&server);
        // Connections are established, carry all data unchanged and end.
        for _ in 0..3 {
            let output = run("rping -c -V -C 300 -S 5000 -a 127.19.70.1 -I 127.19.70.2");
            assert!(output.status.success(), "{}", text(&output.stderr));
        }
        flooded(30_000);
        let after = resident(&server);
        assert!(after < before + 32 * 1024, "{before} KiB became {after} KiB");
    });
    // The flood reached the server: the server answered some of it.
    assert_ne!(answers.into_inner(), 0);
}
