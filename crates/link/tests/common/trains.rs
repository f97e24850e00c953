//! Trains to send, and what arrives: for the tests of every link.

use feroce_link::Carrier;
use feroce_train::{Ext, InlineBytes, Instant, Path, Payload, RxMeta, Single, Train, TrainOps};
use feroce_wire::{Bth, Gid, Op, Opcode, Packet, Psn, Qpn, Service};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// An address of this machine that no other test process uses: all of 127/8 is local.
pub(crate) fn loopback(n: u8) -> Gid {
    let pid = std::process::id();
    Gid::from_ipv4([127, 64 + (pid >> 8 & 0x3f) as u8, pid as u8, n])
}

pub(crate) fn path(src: Gid, dst: Gid) -> Path {
    Path { src: src.into(), dst: dst.into(), hop_limit: 64, ..Path::default() }
}

/// An RC SEND of `count` packets of `stride` bytes, the last of `last` bytes.
pub(crate) fn send_of(path: Path, count: u32, stride: usize, last: usize) -> Train {
    let op = |op| Opcode::new(Service::Rc, op);
    let len = (count as usize - 1) * stride + last;
    let first = if count == 1 { Op::SendOnly } else { Op::SendFirst };
    let data: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
    let mut bth = Bth::new(op(first), Qpn::new(0x12ab), Psn::new(0x0010_0000));
    bth.ack_req = true;
    Train {
        path,
        bth,
        ops: TrainOps { first: op(first), middle: op(Op::SendMiddle), last: op(Op::SendLast) },
        count,
        stride,
        payload_len: len,
        head: Ext::NONE,
        body: Ext::NONE,
        tail: Ext::NONE,
        payload: Payload::Inline { data: InlineBytes::new(&data), offset: 0 },
        revocation_epoch: None,
    }
}

/// The packets of a train as they should arrive.
pub(crate) fn packets_of(train: &Train) -> Vec<Vec<u8>> {
    (0..train.count)
        .map(|i| {
            let mut out = vec![0; train.packet_len(i)];
            let len = train.emit(i, &mut out);
            assert_eq!(len, out.len());
            out
        })
        .collect()
}

/// Sends the one packet of a train without the train.
pub(crate) fn send_alone(link: &mut impl Carrier, train: &Train) -> bool {
    let packet = packets_of(train).remove(0);
    link.send_single(Single { path: &train.path, dest: train.bth.dest_qp, bytes: &packet })
}

/// What became of one train.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    Done,
    Full,
}

/// Sends trains one by one.
pub(crate) trait SendOne: Carrier {
    fn send_one(&mut self, now: Instant, train: &Train) -> std::io::Result<Sent> {
        let taken = self.send(now, std::slice::from_ref(train))?;
        Ok(if taken == 1 { Sent::Done } else { Sent::Full })
    }
}

impl<C: Carrier + ?Sized> SendOne for C {}

/// A train that arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Got {
    pub(crate) meta: RxMeta,
    pub(crate) packets: Vec<Vec<u8>>,
}

/// Receives once.
pub(crate) fn receive(link: &mut impl Carrier, now: Instant) -> Vec<Got> {
    let mut got = Vec::new();
    let result = link.receive(now, 64, &mut |train| {
        let packets = train.packets().map(<[u8]>::to_vec).collect();
        got.push(Got { meta: train.meta, packets });
    });
    result.expect("receive");
    got
}

/// Receives until `n` packets have come. Fails if nothing more comes for a long time.
pub(crate) fn receive_packets(link: &mut impl Carrier, n: usize) -> Vec<Got> {
    let mut got: Vec<Got> = Vec::new();
    loop {
        got.extend(receive(link, Instant::ZERO));
        let have: usize = got.iter().map(|g| g.packets.len()).sum();
        if have >= n {
            assert_eq!(have, n, "more came than was sent");
            return got;
        }
        let has_come = !link.arm(Instant::ZERO) || is_readable(link, 10_000);
        assert!(has_come, "{have} of {n} packets came: {:?}", link.counters());
    }
}

/// Whether the link has something, now or within `ms` milliseconds.
pub(crate) fn is_readable(link: &impl Carrier, ms: u16) -> bool {
    let mut fds = [PollFd::new(link.wait_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::from(ms)).expect("poll") > 0
}

pub(crate) fn counter(link: &impl Carrier, name: &str) -> u64 {
    let counters = link.counters();
    let found = counters.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no counter {name} in {counters:?}")).1
}

/// All packets of what arrived, one after the other.
pub(crate) fn flat(got: &[Got]) -> Vec<Vec<u8>> {
    got.iter().flat_map(|g| g.packets.clone()).collect()
}

/// The PSN of each packet.
pub(crate) fn psns(packets: &[Vec<u8>]) -> Vec<u32> {
    packets.iter().map(|p| Packet::parse(p).expect("a packet").bth.psn.get()).collect()
}
