//! Peers on real sockets whose startup frames and segments are almost right: the device serves the
//! next one, and counts each under the name of its reason.
//!
//! `FEROCE_TEST_PEERS` sets how many (300 by default), `FEROCE_SEED` which; `cargo xtask soak
//! --streams N` runs one for every hundred streams.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::disallowed_methods, reason = "two ends that block need two threads")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};

use feroce::cm::{Listener, Manager};
use feroce::{Access, QpCap};
use feroce_wire::Rkey;
use feroce_wire::iwarp::ddp::{Header, Untagged};
use feroce_wire::iwarp::rdmap::RdmaOp;

use super::iwarp_peer::{Peer, manager, read, send, tagged};

/// The request that ends the test.
const STOP: &[u8] = b"MPA ID Req Frame\0\x01\0\x04stop";

struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % below
    }

    /// Changes some bytes, or does not.
    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.roll(3) {
            let at = self.roll(bytes.len().max(1));
            match self.roll(5) {
                0 => bytes.truncate(at),
                1 => bytes.extend([7; 9]),
                2 => drop(bytes.drain(at..bytes.len().min(at + 3))),
                _ => bytes[at..].iter_mut().take(1).for_each(|byte| *byte ^= 1 << (self.0 % 8)),
            }
            if bytes.is_empty() {
                return;
            }
        }
    }
}

/// What the device counts of handshakes and streams that came to nothing.
fn counted(server: &Manager) -> BTreeMap<&'static str, u64> {
    let all = server.contexts()[0].link_counters();
    let of_streams = |name: &str| name.starts_with("mpa_") || name.starts_with("iwarp_");
    all.into_iter().filter(|(name, count)| of_streams(name) && *count > 0).collect()
}

/// One peer, from its request to the end of the stream.
fn call(dice: &mut Dice, to: SocketAddr, key: Rkey, addr: u64) {
    let mut socket = TcpStream::connect(to).unwrap();
    let requests: [&[u8]; 3] = [
        b"MPA ID Req Frame\0\x01\0\x03abc",
        b"MPA ID Req Frame\x50\x02\0\x04\0\x04\0\x04",
        b"MPA ID Req Frame\x10\x02\0\x06\x80\x04\x80\x04xy",
    ];
    let mut request = requests[dice.roll(3)].to_vec();
    dice.mutate(&mut request);
    let _ = socket.write_all(&request);
    // An incomplete request is answered by nothing: its end is what the device waits for.
    let is_whole = request
        .get(18..20)
        .is_some_and(|len| usize::from(u16::from_be_bytes([len[0], len[1]])) + 20 <= request.len());
    if !is_whole {
        let _ = socket.shutdown(Shutdown::Write);
    }
    let mut reply = [0; 20];
    if socket.read_exact(&mut reply).is_err() {
        return;
    }
    let private_data = usize::from(u16::from_be_bytes([reply[18], reply[19]]));
    let _ = socket.read_exact(&mut vec![0; private_data]);
    let mut peer = Peer::new(socket, reply[16] & 0x40 != 0);
    let mut bytes = Vec::new();
    for msn in 1..3 {
        let (header, payload) = read(msn, key, addr, 50);
        bytes.extend(peer.segment(&Header::Untagged(send(RdmaOp::SEND, msn)), &[7; 40]));
        bytes.extend(peer.segment(&Header::Tagged(tagged(RdmaOp::WRITE, key, addr)), &[9; 70]));
        bytes.extend(peer.segment(&header, &payload));
    }
    if dice.roll(4) == 0 {
        let wrong = Untagged { mo: 3, ..send(RdmaOp::SEND, 3) };
        bytes.extend(peer.segment(&Header::Untagged(wrong), &[1; 5]));
    }
    dice.mutate(&mut bytes);
    let _ = peer.socket.write_all(&bytes);
    let _ = peer.socket.shutdown(Shutdown::Write);
    // It ends, orderly or not.
    let _ = peer.socket.read_to_end(&mut Vec::new());
}

#[test]
fn every_peer_that_is_refused_is_counted_and_the_next_is_served() {
    let variable = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let count = variable("FEROCE_TEST_PEERS").unwrap_or(300);
    let mut dice = Dice(variable("FEROCE_SEED").unwrap_or(0x5eed) | 1);
    let ip = Ipv4Addr::new(127, 162, 0, 1).into();
    let server = manager(ip, false);
    let listener = Listener::bind(&server, (ip, 0).into()).unwrap();
    let to = listener.local_addr();
    let pd = server.contexts()[0].alloc_pd().unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let open = pd.alloc_mr(4096, access).unwrap();
    let (key, addr) = (open.rkey(), open.addr());
    let requests = std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            for number in 0.. {
                let request = listener.accept().unwrap();
                if request.private_data() == b"stop" {
                    return number;
                }
                let request = request.pd(&pd).cap(QpCap::new(8, 8));
                // A peer may be gone already.
                let Ok(mut far) = request.accept() else { continue };
                let receives = (0..3).map(|i| open.recv(i, 2048..2148));
                let _ = far.post_recv(receives);
                let _ = far.wait_disconnected();
            }
            unreachable!("the test stops the server")
        });
        (0..count).for_each(|_| call(&mut dice, to, key, addr));
        let mut last = TcpStream::connect(to).unwrap();
        last.write_all(STOP).unwrap();
        serving.join().unwrap()
    });
    let refused = |counted: &BTreeMap<&str, u64>| {
        let of_handshakes = counted.iter().filter(|(name, _)| name.starts_with("mpa_"));
        of_handshakes.map(|(_, count)| count).sum::<u64>()
    };
    let counted = counted(&server);
    println!("{count} peers, {requests} of them asked for a connection: {counted:#?}");
    assert_eq!(refused(&counted) + requests, count, "each is counted once, or served");
    let streams: u64 = counted.iter().filter(|(n, _)| n.starts_with("iwarp")).map(|(_, c)| c).sum();
    assert!(streams <= requests && !counted.contains_key("iwarp_refused_otherwise"));
    for name in ["mpa_refused_not_mpa", "mpa_refused_cut", "iwarp_refused_crc", "iwarp_cut"] {
        assert!(counted.contains_key(name), "{name}");
    }
}
