//! Payload of iWARP that goes from TCP straight to registered memory: FPDUs that are long enough
//! come from a peer that is one TCP socket, so that the device is in the middle of one.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};

use feroce::{Access, WcStatus};
use feroce_wire::iwarp::ddp::Header;
use feroce_wire::iwarp::rdmap::RdmaOp;
use feroce_wire::iwarp::terminate::{Cause, Terminate};

use super::iwarp_peer::{PLAIN, Served, all_is_well, send, served_with, tagged};

/// Payload of one FPDU.
const LEN: usize = 60_000;

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 13 + i / 251) as u8).collect()
}

fn address(net: u8) -> IpAddr {
    Ipv4Addr::new(127, net, 0, 1).into()
}

/// A device with memory for two payloads, the second of them in receives.
fn device(net: u8, crc: bool) -> Served {
    served_with(address(net), crc, PLAIN, 1 << 18, LEN).0
}

/// Bytes that went straight to memory so far.
fn direct(served: &Served) -> u64 {
    let counters = served.far.pd().context().link_counters();
    counters.iter().find(|(name, _)| *name == "tcp_direct_bytes").unwrap().1
}

/// Sends the first bytes of a segment, waits until the device has taken them, and returns the rest.
fn begin(served: &mut Served, header: &Header, payload: &[u8]) -> Vec<u8> {
    let received = |served: &Served| served.far.pd().context().counters().rcvd_bytes;
    let before = received(served);
    let mut segment = served.peer.segment(header, payload);
    let rest = segment.split_off(1000);
    served.peer.socket.write_all(&segment).unwrap();
    while received(served) < before + 1000 {
        std::thread::yield_now();
    }
    rest
}

#[test]
fn payload_without_a_crc_goes_straight_to_memory() {
    for crc in [false, true] {
        let mut served = device(195, crc);
        let data = bytes(LEN);
        let (rkey, addr) = (served.open.rkey(), served.open.addr());
        let write = Header::Tagged(tagged(RdmaOp::WRITE, rkey, addr + 3));
        let mut rest = begin(&mut served, &write, &data);
        // The next message stands right behind it.
        rest.extend(served.peer.segment(&Header::Untagged(send(RdmaOp::SEND, 1)), &data[7..]));
        served.peer.socket.write_all(&rest).unwrap();
        let cqe = served.far.recv_cq().wait().unwrap();
        assert_eq!((cqe.status, cqe.byte_len as usize), (WcStatus::Success, LEN - 7));
        let mut found = vec![0; LEN + 6];
        served.open.read_at(0, &mut found).unwrap();
        assert!(found == [&[0; 3][..], &data, &[0; 3]].concat(), "CRC {crc}: the WRITE");
        let mut found = vec![0; LEN];
        served.open.read_at(1 << 17, &mut found).unwrap();
        assert!(found == [&data[7..], &[0; 7]].concat(), "CRC {crc}: the SEND");
        assert_eq!(direct(&served) > 0, !crc);
        all_is_well(&mut served, "after long segments", (2, 1));
    }
}

#[test]
fn a_message_goes_straight_to_several_buffers() {
    let mut served = device(196, false);
    // The four receives that are posted already.
    for msn in 1..=4 {
        served.peer.say(&Header::Untagged(send(RdmaOp::SEND, msn)), b"");
        served.far.recv_cq().wait().unwrap();
    }
    let data = bytes(LEN);
    let parts = [5..6000, 70_000..100_000, 30_000..60_000].map(|part| served.open.sge(part));
    let receive = feroce::RecvWr { wr_id: 9, sges: feroce::SgeList::new(&parts) };
    served.far.post_recv([receive]).unwrap();
    let header = Header::Untagged(send(RdmaOp::SEND, 5));
    let rest = begin(&mut served, &header, &data);
    served.peer.socket.write_all(&rest).unwrap();
    let cqe = served.far.recv_cq().wait().unwrap();
    assert_eq!((cqe.wr_id, cqe.byte_len as usize), (9, LEN));
    let mut found = Vec::new();
    for (at, len) in [(5, 5995), (70_000, 30_000), (30_000, LEN - 35_995)] {
        let mut part = vec![0; len];
        served.open.read_at(at, &mut part).unwrap();
        found.extend(part);
    }
    assert!(found == data && direct(&served) > 0);
}

#[test]
fn a_key_that_ends_in_the_middle_of_a_segment_ends_the_stream() {
    let mut served = device(197, false);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let short = served.far.pd().alloc_mr(LEN, access).unwrap();
    let header = Header::Tagged(tagged(RdmaOp::WRITE, short.rkey(), short.addr()));
    let rest = begin(&mut served, &header, &bytes(LEN));
    short.dereg().unwrap();
    // The device may have closed already.
    let _ = served.peer.socket.write_all(&rest);
    let (_, payload) = served.peer.hear().unwrap();
    assert_eq!(Terminate::parse(&payload).unwrap().0.cause, Cause::TAGGED_INVALID_STAG);
    served.far.wait_disconnected().unwrap();
    assert_eq!(direct(&served), 0);
}
