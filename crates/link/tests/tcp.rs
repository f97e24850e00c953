//! Streams over TCP, on loopback.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::disallowed_methods, reason = "the peer of a stream needs a thread of its own")]

use std::collections::BTreeMap;
use std::io::{Read, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::common::netns::{ip, with_cable};
use feroce_link::tcp::{ReservedPort, StreamId, TcpConnect, TcpEvent, TcpLink};
use feroce_mem::{Access, Grant, Iova, MrLimits, MrTable, PdId, Read as Rights, Region, Write};
use feroce_train::{Burst, Instant, Scatter};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

const LOCAL: &str = "127.0.0.1:0";
const NOW: Instant = Instant::ZERO;

/// What a link has reported.
#[derive(Debug, Default)]
struct Seen {
    accepted: Vec<StreamId>,
    connected: Vec<StreamId>,
    failed: Vec<StreamId>,
    data: BTreeMap<StreamId, Vec<u8>>,
    sent: BTreeMap<StreamId, usize>,
    /// Whether the stream broke.
    ended: BTreeMap<StreamId, bool>,
    /// Memory that the next bytes go to, as long as this many have not landed; and the bytes that
    /// are read behind it.
    places: Vec<Grant<Write>>,
    behind: usize,
    /// How many bytes have landed, each time.
    landed: Vec<usize>,
}

impl Seen {
    /// Says where the bytes go that have not landed yet.
    fn lend(&self, scatter: &mut Scatter) {
        let mut passed: usize = self.landed.iter().sum();
        for place in &self.places {
            let mut rest = place.clone();
            let skipped = rest.split_to(passed);
            passed -= skipped.len();
            scatter.append(rest);
        }
        scatter.behind = self.behind;
    }
}

/// Drives a link until `is_done`.
fn drive(link: &mut TcpLink, seen: &mut Seen, is_done: impl Fn(&Seen) -> bool) {
    drive_at(NOW, link, seen, |_, seen| is_done(seen));
}

/// The same, at another time.
fn drive_at(
    now: Instant,
    link: &mut TcpLink,
    seen: &mut Seen,
    is_done: impl Fn(&TcpLink, &Seen) -> bool,
) {
    for _ in 0..1000 {
        let mut note = |event: TcpEvent<'_>| match event {
            TcpEvent::Accepted { stream, mss, .. } => {
                assert!(mss >= 536);
                seen.accepted.push(stream);
            }
            TcpEvent::Connected { stream, local, .. } => {
                assert_ne!(local.port(), 0);
                seen.connected.push(stream);
            }
            TcpEvent::Failed { stream, .. } => seen.failed.push(stream),
            TcpEvent::Data { stream, bytes } => seen.data.entry(stream).or_default().extend(bytes),
            TcpEvent::Where { scatter, .. } => seen.lend(scatter),
            TcpEvent::Landed { len, .. } => seen.landed.push(len),
            TcpEvent::Sent { stream, bytes } => *seen.sent.entry(stream).or_default() += bytes,
            TcpEvent::Ended { stream, error } => {
                assert!(seen.ended.insert(stream, error.is_some()).is_none(), "told once");
            }
        };
        link.receive(now, &mut note).unwrap();
        if is_done(link, seen) {
            return;
        }
        let mut fds = [PollFd::new(link.wait_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(20u8)).unwrap();
    }
    panic!("it never came to that: {seen:?}");
}

/// A link with a stream to a socket of the test, which the link accepted.
fn accepted() -> (TcpLink, Seen, StreamId, TcpStream) {
    let mut link = TcpLink::new().unwrap();
    let (_, local) = link.listen(LOCAL.parse().unwrap(), 1).unwrap();
    let peer = TcpStream::connect(local).unwrap();
    let mut seen = Seen::default();
    drive(&mut link, &mut seen, |seen| !seen.accepted.is_empty());
    let stream = seen.accepted[0];
    (link, seen, stream, peer)
}

fn opened(link: &mut TcpLink, peer: SocketAddr) -> StreamId {
    let local = match peer {
        SocketAddr::V4(_) => LOCAL.parse().unwrap(),
        SocketAddr::V6(_) => "[::1]:0".parse().unwrap(),
    };
    link.connect(NOW, &TcpConnect { local, peer, tos: 0x20, patience_ns: 0 }).unwrap()
}

#[test]
fn streams_connect_over_both_families_and_carry_bytes_both_ways() {
    for address in [LOCAL, "[::1]:0"] {
        let listener = TcpListener::bind(address).unwrap();
        let mut link = TcpLink::new().unwrap();
        let stream = opened(&mut link, listener.local_addr().unwrap());
        let (mut peer, _) = listener.accept().unwrap();
        let mut seen = Seen::default();
        drive(&mut link, &mut seen, |seen| seen.connected == [stream]);
        assert_eq!(link.send(stream, b"there"), 5);
        let mut bytes = [0; 5];
        peer.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"there");
        peer.write_all(b"and back").unwrap();
        drive(&mut link, &mut seen, |seen| seen.data.get(&stream).is_some_and(|d| d.len() == 8));
        assert_eq!(seen.data[&stream], b"and back");
    }
}

#[test]
fn a_stream_that_is_refused_says_so_and_is_gone() {
    let nobody = TcpListener::bind(LOCAL).unwrap().local_addr().unwrap();
    let mut link = TcpLink::new().unwrap();
    let stream = opened(&mut link, nobody);
    let mut seen = Seen::default();
    drive(&mut link, &mut seen, |seen| seen.failed == [stream]);
    assert_eq!(link.send(stream, b"x"), 0);
}

fn count(link: &TcpLink, name: &str) -> u64 {
    link.counters().into_iter().find(|(counter, _)| *counter == name).unwrap().1
}

#[test]
fn a_stream_that_is_refused_asks_again_while_it_has_patience() {
    let [local, nobody] = [LOCAL.parse().unwrap(), LOCAL.parse().unwrap()];
    let (_reserved, port) = ReservedPort::at(nobody).unwrap();
    let peer = SocketAddr::new(nobody.ip(), port);
    let mut link = TcpLink::new().unwrap();
    let how = TcpConnect { local, peer, tos: 0, patience_ns: 100_000_000 };
    let [early, never] = [(); 2].map(|()| link.connect(NOW, &how).unwrap());
    let mut seen = Seen::default();
    let refused = |link: &TcpLink| count(link, "tcp_refused_asked_again");
    drive_at(NOW, &mut link, &mut seen, |link, _| refused(link) == 2);

    // One is finished while it waits; the other finds a listener.
    link.finish(NOW, never);
    let again = link.poll_timeout().unwrap();
    let _listener = link.listen(peer, 1).unwrap();
    drive_at(again, &mut link, &mut seen, |_, seen| seen.connected == [early]);
    assert_eq!(refused(&link), 2);

    // A refusal at the end of the patience is final.
    let nobody = TcpListener::bind(LOCAL).unwrap().local_addr().unwrap();
    let late = link.connect(again, &TcpConnect { peer: nobody, ..how }).unwrap();
    drive_at(again, &mut link, &mut seen, |link, _| refused(link) == 3);
    let end = again.plus_nanos(how.patience_ns);
    drive_at(end, &mut link, &mut seen, |_, seen| seen.failed == [late]);
    assert_eq!(link.poll_timeout(), None);
}

#[test]
fn bytes_that_tcp_has_no_room_for_wait_and_hold_up_no_other_stream() {
    let (mut link, mut seen, slow, mut slow_peer) = accepted();
    let listener = TcpListener::bind(LOCAL).unwrap();
    let quick = opened(&mut link, listener.local_addr().unwrap());
    let (mut quick_peer, _) = listener.accept().unwrap();
    drive(&mut link, &mut seen, |seen| seen.connected == [quick]);
    let much: Vec<u8> = (0..32 << 20).map(|i: u32| (i >> 7) as u8).collect();
    let taken = link.send(slow, &much);
    assert!(taken < much.len() && link.is_waiting(slow));
    assert_eq!(link.send(quick, b"quick"), 5);
    let mut bytes = [0; 5];
    quick_peer.read_exact(&mut bytes).unwrap();
    // The peer reads: everything leaves, in order, and the link tells how much.
    let len = much.len();
    let reader = std::thread::spawn(move || {
        let mut all = vec![0; len];
        slow_peer.read_exact(&mut all).unwrap();
        all
    });
    drive(&mut link, &mut seen, |seen| taken + seen.sent.get(&slow).copied().unwrap_or(0) == len);
    assert!(!link.is_waiting(slow));
    assert!(reader.join().unwrap() == much);
}

#[test]
fn a_stream_is_finished_behind_the_bytes_that_wait() {
    let (mut link, mut seen, stream, mut peer) = accepted();
    let much = vec![7; 16 << 20];
    link.send(stream, &much);
    link.finish(NOW, stream);
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        peer.read_to_end(&mut all).unwrap();
        all.len()
    });
    while !reader.is_finished() {
        link.receive(NOW, &mut |event| panic!("{event:?}")).unwrap();
    }
    assert_eq!(reader.join().unwrap(), much.len());
    // The peer has closed its end, too: the stream is gone.
    for _ in 0..100 {
        link.receive(NOW, &mut |event| panic!("{event:?}")).unwrap();
        if link.poll_timeout().is_none() {
            assert!(seen.ended.is_empty());
            return drive(&mut link, &mut seen, |_| true);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("the stream stays");
}

#[test]
fn a_peer_that_never_closes_is_given_up() {
    let (mut link, _, stream, mut peer) = accepted();
    link.finish(NOW, stream);
    peer.write_all(b"discarded").unwrap();
    let at = link.poll_timeout().expect("it waits for the peer");
    link.receive(NOW, &mut |event| panic!("{event:?}")).unwrap();
    link.receive(at, &mut |event| panic!("{event:?}")).unwrap();
    assert!(link.poll_timeout().is_none());
    assert_eq!(count(&link, "tcp_not_closed_by_peer"), 1);
}

/// Each has a descriptor, and peers may come faster than they are given up.
#[test]
fn peers_that_never_close_are_bounded_in_number() {
    const MOST: usize = 1024;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(3000), hard).unwrap();
    let mut link = TcpLink::new().unwrap();
    let (_, local) = link.listen(LOCAL.parse().unwrap(), 1).unwrap();
    let mut seen = Seen::default();
    let mut peers: Vec<TcpStream> = Vec::new();
    for i in 1..=MOST as u64 + 2 {
        peers.push(TcpStream::connect(local).unwrap());
        drive(&mut link, &mut seen, |seen| !seen.accepted.is_empty());
        let now = NOW.plus_nanos(i);
        seen.accepted.drain(..).for_each(|stream| link.finish(now, stream));
    }
    assert_eq!(count(&link, "tcp_not_closed_by_peer"), 2);
    let third = link.poll_timeout().unwrap();
    link.receive(third, &mut |event| panic!("{event:?}")).unwrap();
    assert_eq!(count(&link, "tcp_not_closed_by_peer"), 3);
}

#[test]
fn ends_are_told_once_and_resets_as_such() {
    let (mut link, mut seen, stream, peer) = accepted();
    peer.shutdown(Shutdown::Write).unwrap();
    drive(&mut link, &mut seen, |seen| seen.ended.get(&stream) == Some(&false));
    for _ in 0..3 {
        link.receive(NOW, &mut |event| panic!("{event:?}")).unwrap();
    }
    let (mut link, mut seen, stream, peer) = accepted();
    socket2::SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
    drop(peer);
    drive(&mut link, &mut seen, |seen| seen.ended.get(&stream) == Some(&true));
}

#[test]
fn a_stream_that_does_not_read_leaves_bytes_to_tcp_and_learns_of_the_end() {
    let (mut link, mut seen, stream, mut peer) = accepted();
    link.set_reading(stream, false);
    peer.write_all(b"early").unwrap();
    for _ in 0..3 {
        link.receive(NOW, &mut |event| panic!("{event:?}")).unwrap();
    }
    link.set_reading(stream, true);
    drive(&mut link, &mut seen, |seen| seen.data.get(&stream).is_some_and(|d| d == b"early"));
    link.set_reading(stream, false);
    drop(peer);
    drive(&mut link, &mut seen, |seen| seen.ended.contains_key(&stream));
}

#[test]
fn a_listener_that_does_not_accept_leaves_connections_to_the_kernel() {
    let mut link = TcpLink::new().unwrap();
    let (listener, local) = link.listen(LOCAL.parse().unwrap(), 8).unwrap();
    link.set_accepting(listener, false);
    let _peers = [TcpStream::connect(local).unwrap(), TcpStream::connect(local).unwrap()];
    assert_eq!(link.receive(NOW, &mut |event| panic!("{event:?}")).unwrap(), 0);
    link.set_accepting(listener, true);
    let mut seen = Seen::default();
    drive(&mut link, &mut seen, |seen| seen.accepted.len() == 2);
    link.unlisten(listener);
    assert!(TcpStream::connect(local).is_err());
}

/// The kernel reports a connection as long as it waits: a driver without descriptors would never
/// sleep.
#[test]
fn a_listener_without_descriptors_tries_again_later() {
    let mut link = TcpLink::new().unwrap();
    let (listener, local) = link.listen(LOCAL.parse().unwrap(), 8).unwrap();
    let _peer = TcpStream::connect(local).unwrap();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 3, hard).unwrap();
    let received = link.receive(NOW, &mut |event| panic!("{event:?}"));
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    assert_eq!((received.unwrap(), count(&link, "tcp_no_descriptor_to_accept")), (0, 1));
    let is_ready = |link: &TcpLink| {
        let mut fds = [PollFd::new(link.wait_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
    };
    assert!(!is_ready(&link) && !link.has_more(), "the driver sleeps");
    // Although the caller takes connections again meanwhile.
    link.set_accepting(listener, false);
    link.set_accepting(listener, true);
    assert!(!is_ready(&link));
    let mut seen = Seen::default();
    let later = link.poll_timeout().expect("it tries again");
    drive_at(later, &mut link, &mut seen, |_, seen| seen.accepted.len() == 1);
    assert_eq!(link.poll_timeout(), None);
}

#[test]
fn a_reserved_port_is_for_the_listener() {
    let mut link = TcpLink::new().unwrap();
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let address: SocketAddr = address.parse().unwrap();
        let (reserved, port) = ReservedPort::at(address).unwrap();
        let at = SocketAddr::new(address.ip(), port);
        let other = Socket::new(Domain::for_address(at), Type::STREAM, None).unwrap();
        let taken = other.bind(&at.into()).unwrap_err();
        assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
        let (_, local) = link.listen(at, 1).unwrap();
        assert_eq!(local, at);
        drop(reserved);
        TcpStream::connect(at).unwrap();
    }
}

/// Looks as a polling thread does, so often, and says which streams bytes came from.
fn glance(link: &mut TcpLink, times: usize) -> Vec<StreamId> {
    let mut from = Vec::new();
    for _ in 0..times {
        link.glance(NOW, &mut |event| match event {
            TcpEvent::Data { stream, .. } => from.push(stream),
            other => panic!("{other:?}"),
        })
        .unwrap();
    }
    from
}

#[test]
fn glances_at_a_busy_stream_see_the_others_too() {
    let (mut link, mut seen, busy, mut busy_peer) = accepted();
    let (_, local) = link.listen(LOCAL.parse().unwrap(), 1).unwrap();
    let mut other_peer = TcpStream::connect(local).unwrap();
    drive(&mut link, &mut seen, |seen| seen.accepted.len() == 2);
    let other = seen.accepted[1];
    busy_peer.write_all(b"first").unwrap();
    drive(&mut link, &mut seen, |seen| seen.data.contains_key(&busy));
    other_peer.write_all(b"second").unwrap();
    for _ in 0..20 {
        busy_peer.write_all(b"more").unwrap();
        if glance(&mut link, 1).contains(&other) {
            return;
        }
    }
    panic!("one stream keeps the other waiting");
}

#[test]
fn glances_leave_alone_what_does_not_read() {
    let (mut link, mut seen, stream, mut peer) = accepted();
    peer.write_all(b"first").unwrap();
    drive(&mut link, &mut seen, |seen| seen.data.contains_key(&stream));
    for pause in [TcpLink::set_paused, |link: &mut TcpLink, stream, pauses: bool| {
        link.set_reading(stream, !pauses);
    }] {
        pause(&mut link, stream, true);
        peer.write_all(b"later").unwrap();
        assert_eq!(glance(&mut link, 20), [], "neither bytes nor an end");
        pause(&mut link, stream, false);
        drive(&mut link, &mut seen, |seen| seen.data[&stream].ends_with(b"later"));
    }
    peer.write_all(b"last").unwrap();
    drive(&mut link, &mut seen, |seen| seen.data[&stream].ends_with(b"last"));
    assert_eq!(seen.data[&stream], b"firstlaterlaterlast");
}

/// A right to a region with these bytes.
fn memory(bytes: &[u8]) -> Grant<Rights> {
    let region = Region::alloc(bytes.len()).unwrap();
    region.write_at(0, bytes).unwrap();
    let mut table = MrTable::new(1, MrLimits::default());
    let (pd, len) = (PdId(1), bytes.len());
    let key = table.reg(pd, region, 0, len, Iova::ZeroBased, Access::empty()).unwrap();
    table.grant_local(pd, key, 0, len as u32).unwrap()
}

#[test]
fn a_burst_of_memory_and_bytes_arrives_in_order() {
    let (mut link, mut seen, stream, mut peer) = accepted();
    let pattern = |from: usize, len: usize| -> Vec<u8> {
        (from..from + len).map(|i| (i * 7 + i / 251) as u8).collect()
    };
    let (mut burst, mut expected, mut taken) = (Burst::default(), Vec::new(), 0);
    // More pieces than one call takes, and together more than TCP takes: some of them wait.
    for round in 0..100 {
        burst.clear();
        for piece in 0..400 {
            let header = pattern(piece, piece % 20);
            let payload = pattern(piece + round, 100 + piece * 5);
            burst.append(header.len()).copy_from_slice(&header);
            burst.append_memory(memory(&payload));
            expected.extend(header.into_iter().chain(payload));
        }
        taken += link.send_burst(stream, &burst);
    }
    assert!(link.is_waiting(stream) && taken < expected.len(), "TCP takes {taken} bytes");
    let len = expected.len();
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0; len];
        peer.read_exact(&mut bytes).unwrap();
        bytes
    });
    drive(&mut link, &mut seen, |seen| seen.sent.get(&stream) == Some(&(len - taken)));
    assert!(reader.join().unwrap() == expected, "the bytes, in order");
}

/// A region of this length, and rights to these parts of it, each from and to.
fn places(len: usize, parts: &[(usize, usize)]) -> (Arc<Region>, Vec<Grant<Write>>) {
    let region = Region::alloc(len).unwrap();
    let mut table = MrTable::new(1, MrLimits::default());
    let access = Access::LOCAL_WRITE;
    let key = table.reg(PdId(1), region.clone(), 0, len, Iova::ZeroBased, access).unwrap();
    let grant = |&(from, to): &(usize, usize)| {
        table.grant_local(PdId(1), key, from as u64, (to - from) as u32).unwrap()
    };
    (region, parts.iter().map(grant).collect())
}

#[test]
fn bytes_go_to_memory_and_what_follows_is_handed_over() {
    const LEN: usize = 1 << 20;
    let sent: Vec<u8> = (0..LEN + 100).map(|i| (i * 7 + i / 251) as u8).collect();
    // In order of the stream, not of the memory, and more places than one call takes.
    let mut parts: Vec<(usize, usize)> = (0..64).map(|i| (i << 14, (i + 1) << 14)).collect();
    parts.reverse();
    let (mut link, mut seen, stream, mut peer) = accepted();
    let (region, places) = places(LEN, &parts);
    (seen.places, seen.behind) = (places, 50);
    link.ask_where(stream);
    let bytes = sent.clone();
    let writer = std::thread::spawn(move || {
        peer.write_all(&bytes).unwrap();
        peer
    });
    drive(&mut link, &mut seen, |seen| seen.data.get(&stream).is_some_and(|got| got.len() == 100));
    assert_eq!(seen.data[&stream], sent[LEN..], "what follows");
    assert_eq!(seen.landed.iter().sum::<usize>(), LEN);
    assert!(link.counters().contains(&("tcp_direct_bytes", LEN as u64)));
    let mut found = vec![0; LEN];
    region.read_at(0, &mut found).unwrap();
    let expected: Vec<u8> = sent[..LEN].chunks(1 << 14).rev().flatten().copied().collect();
    assert!(found == expected, "every byte is where it belongs");
    // Nothing was asked since other bytes arrived, nor is the end of the stream taken for bytes.
    let asked = seen.landed.len();
    drop(writer.join().unwrap());
    drive(&mut link, &mut seen, |seen| seen.ended.contains_key(&stream));
    assert_eq!(seen.landed.len(), asked);
}

#[test]
fn the_end_of_a_stream_that_asks_for_memory() {
    let (mut link, mut seen, stream, peer) = accepted();
    let (_region, places) = places(4096, &[(0, 4096)]);
    seen.places = places;
    link.ask_where(stream);
    drop(peer);
    drive(&mut link, &mut seen, |seen| seen.ended.contains_key(&stream));
    assert_eq!((&seen.landed[..], seen.ended[&stream]), (&[0][..], false));
    assert!(seen.data.is_empty());
}

/// A program may unmap memory that it has registered: the bytes are handed over instead.
#[test]
fn memory_that_is_not_mapped_is_found_out() {
    let (mut link, mut seen, stream, mut peer) = accepted();
    let len = 4096;
    // SAFETY: the address is in no mapping, and only the kernel is asked to write there, which
    // finds that out.
    let region = unsafe { Region::from_raw(std::ptr::without_provenance_mut(4096), len, None) };
    let mut table = MrTable::new(1, MrLimits::default());
    let access = Access::LOCAL_WRITE;
    let key = table.reg(PdId(1), region, 0, len, Iova::ZeroBased, access).unwrap();
    seen.places = vec![table.grant_local(PdId(1), key, 0, len as u32).unwrap()];
    link.ask_where(stream);
    peer.write_all(b"hello").unwrap();
    drive(&mut link, &mut seen, |seen| seen.data.contains_key(&stream));
    assert_eq!((&seen.data[&stream][..], &seen.landed[..]), (&b"hello"[..], &[0][..]));
}

#[test]
fn streams_end_when_the_host_of_their_peer_is_silent() {
    with_cable(1500, |cable| {
        let listener = cable.in_b(|| TcpListener::bind("10.9.0.2:0").unwrap());
        let peer = listener.local_addr().unwrap();
        let mut link = TcpLink::new().unwrap().with_patience(Duration::from_secs(2));
        let how = TcpConnect { local: "10.9.0.1:0".parse().unwrap(), peer, tos: 0, patience_ns: 0 };
        let [idle, busy] = [0; 2].map(|_| cable.in_a(|| link.connect(NOW, &how).unwrap()));
        let _accepted = [0; 2].map(|_| listener.accept().unwrap());
        let mut seen = Seen::default();
        drive(&mut link, &mut seen, |seen| seen.connected.len() == 2);
        cable.in_b(|| ip("link set wire down"));
        assert_eq!(link.send(busy, b"into the void"), 13);
        for count in 1..=2 {
            drive(&mut link, &mut seen, |seen| seen.ended.len() == count);
            seen.ended.keys().for_each(|stream| link.finish(NOW, *stream));
        }
        assert_eq!(seen.ended, BTreeMap::from([(idle, true), (busy, true)]));
    });
}
