//! The unreliable services: connections without acknowledgements, and datagrams.

use feroce::{Access, AddrVec, Gid, QpType, Qpn, SendOp, SendWr, WcFlags};

use super::Scene;
use crate::demo::code::Code;
use crate::demo::stage::{Play, QKEY, bytes, pattern};
use crate::ladder::Side::{Left, Right};
use crate::words;

/// This file, for `feroce demo --code`.
const SOURCE: &str = include_str!("datagrams.rs");

/// Bytes in front of every received datagram: the GRH, which contains the addresses.
const GRH: usize = 40;

/// A multicast group of site-local scope, different for each process, so that two demos do not
/// receive each other's datagrams.
fn group() -> [u8; 4] {
    let [.., high, low] = std::process::id().to_be_bytes();
    [239, 255, high, low]
}

pub(super) const UC: Scene = Scene {
    name: "uc",
    title: "Unreliable connection: SEND and WRITE without an answer",
    story: "The same operations, but B does not acknowledge and A does not retransmit. If a packet \
            is lost, its whole message is lost, and the next one arrives as usual.",
    terms: &[("UC", "unreliable connection: SEND and WRITE only; no READ, for want of answers")],
    notice: "No ACK. A's completion only means that the packet has been sent.",
    play: uc,
    code: Code { source: SOURCE, rust: &["uc"], c: &["connect_uc", "unreliable_connection"] },
};

fn uc(play: &mut Play<'_>) -> anyhow::Result<()> {
    let (mut qa, mut qb) = play.connected(QpType::Uc)?;
    let source = play.a().pd.alloc_mr(512, Access::LOCAL_WRITE)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let target = play.b().pd.alloc_mr(1024, access)?;
    source.write_at(0, &pattern(10, 512))?;
    play.post_recv(Right, &mut qb, target.recv(1, 0..512))?;
    let write = SendWr::new(1, SendOp::Write(target.remote(512)), source.data(0..512));
    play.post(Left, &mut qa, "WRITE", write)?;
    play.done(Left)?;
    let send = SendWr::new(2, SendOp::Send, source.data(0..512));
    play.post(Left, &mut qa, "SEND", send)?;
    play.done(Left)?;
    // The SEND follows the WRITE, so when the SEND has arrived, both have.
    let received = play.done(Right)?;
    play.check("the SEND arrived whole", received.byte_len == 512);
    play.check("its data is right", bytes(&target, 0, 512)? == pattern(10, 512));
    play.check("the WRITE is in place", bytes(&target, 512, 512)? == pattern(10, 512));
    Ok(())
}

pub(super) const UD: Scene = Scene {
    name: "ud",
    title: "Datagrams: one queue pair, any number of peers",
    story: "There is no connection. Each SEND says where it goes, and one QP reaches any number \
            of others; a message is one packet at most. Connection setup works over such \
            messages, too.",
    terms: &[
        ("UD", "unreliable datagram: SEND only; at most one packet, which may get lost"),
        ("AH", "address handle: the way to a port, prepared once and used for many datagrams"),
        ("Q_Key", "queue key: the receiver drops datagrams that do not have the right one"),
    ],
    notice: "The datagram says which QP sent it, for the answer. In B's buffer 40 bytes (GRH) come \
             first: the addresses.",
    play: ud,
    code: Code { source: SOURCE, rust: &["ud"], c: &["activate_ud", "way_to", "datagram"] },
};

fn ud(play: &mut Play<'_>) -> anyhow::Result<()> {
    let (mut qa, mut qb) = (play.datagrams(Left)?, play.datagrams(Right)?);
    play.name(&qa, &qb);
    let source = play.a().pd.alloc_mr(200, Access::LOCAL_WRITE)?;
    let target = play.b().pd.alloc_mr(512, Access::LOCAL_WRITE)?;
    source.write_at(0, &pattern(11, 200))?;
    play.post_recv(Right, &mut qb, target.recv(1, 0..512))?;
    let ah = play.a().pd.create_ah(AddrVec { dgid: play.b().gid(), ..AddrVec::default() })?;
    let mut wr = SendWr::new(1, SendOp::Send, source.data(0..200));
    wr.dest = ah.dest(qb.qpn(), QKEY);
    play.post(Left, &mut qa, "SEND", wr)?;
    play.done(Left)?;
    let received = play.done(Right)?;
    play.check("B received 40 + 200 bytes", received.byte_len as usize == GRH + 200);
    let has_grh = received.flags.contains(WcFlags::GRH) && received.src_qp == qa.qpn();
    play.check("B knows the sender", has_grh);
    play.check("the data is right", bytes(&target, GRH, 200)? == pattern(11, 200));
    Ok(())
}

pub(super) const MULTICAST: Scene = Scene {
    name: "multicast",
    title: "Multicast: one datagram, many receivers",
    story: "Queue pairs join a group, which has an address. A datagram to that address reaches \
            them all. Here two QPs of B have joined.",
    terms: &[],
    notice: "One packet on the wire, to QP 0xffffff, which stands for everybody in the group. B's \
             adapter copies it to both.",
    play: multicast,
    code: Code { source: SOURCE, rust: &["multicast"], c: &["multicast"] },
};

fn multicast(play: &mut Play<'_>) -> anyhow::Result<()> {
    play.many_qps = true;
    let address = group();
    let group = Gid::from_ipv4(address);
    let mut qa = play.datagrams(Left)?;
    let mut members = [play.datagrams(Right)?, play.datagrams(Right)?];
    play.names = [format!("QP {}", words::qpn(qa.qpn().get())), "2 QPs".to_owned()];
    let source = play.a().pd.alloc_mr(100, Access::LOCAL_WRITE)?;
    let target = play.b().pd.alloc_mr(1024, Access::LOCAL_WRITE)?;
    source.write_at(0, &pattern(12, 100))?;
    let joins = format!("2 QPs join {}", std::net::Ipv4Addr::from(address));
    play.stage.recorder.note(Right, joins);
    for (i, qp) in members.iter_mut().enumerate() {
        qp.attach_mcast(group)?;
        play.post_recv(Right, qp, target.recv(i as u64, i * 512..(i + 1) * 512))?;
    }
    let ah = play.a().pd.create_ah(AddrVec { dgid: group, ..AddrVec::default() })?;
    let mut wr = SendWr::new(1, SendOp::Send, source.data(0..100));
    wr.dest = ah.dest(Qpn::MULTICAST, QKEY);
    play.post(Left, &mut qa, "SEND", wr)?;
    play.done(Left)?;
    let mut got = [false; 2];
    for _ in 0..2 {
        let received = play.done(Right)?;
        let at = received.wr_id as usize;
        let data = bytes(&target, at * 512 + GRH, 100)?;
        got[at] = received.byte_len as usize == GRH + 100 && data == pattern(12, 100);
    }
    for qp in &mut members {
        qp.detach_mcast(group)?;
    }
    play.check("both QPs received it, and it is right", got == [true; 2]);
    Ok(())
}
