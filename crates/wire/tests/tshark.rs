//! A second opinion on what we write: tshark's dissector.
//!
//! Every opcode goes out over IPv4, IPv6 and RoCEv1 and tshark must read the same fields.

use crate::common;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use feroce_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, CnpReserved, CreditCode, Deth, Exts, Feth, FlushPlacement,
    FlushSelectivity, Frame, Gid, Ieth, Imm, ImmDt, Msn, NakCode, Op, Opcode, Packet, Psn, Qkey,
    Qpn, Reth, Rkey, RnrTimer, Service, Srqn, Syndrome, XrcEth,
};

/// Columns asked of tshark.
const FIELDS: [&str; 22] = [
    "infiniband.bth.opcode",
    "infiniband.bth.psn",
    "infiniband.bth.destqp",
    "infiniband.bth.padcnt",
    "infiniband.bth.p_key",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.a",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.deth.q_key",
    "infiniband.deth.srcqp",
    "infiniband.atomiceth.swapdt",
    "infiniband.atomiceth.cmpdt",
    "infiniband.atomicacketh.origremdt",
    "infiniband.immdt",
    "infiniband.ieth",
    "data.data",
    "infiniband.invariant.crc",
];

/// The part of [`FIELDS`] that is the base transport header.
const BTH_FIELDS: usize = 8;

#[derive(Clone, Copy, Debug)]
enum Carrier {
    V4,
    V6,
    V1,
}

struct Case {
    carrier: Carrier,
    packet: Packet<'static>,
    icrc: u32,
}

#[test]
fn tshark_reads_what_we_write() {
    let mut cases = Vec::new();
    let mut frames = Vec::new();
    for carrier in [Carrier::V4, Carrier::V6, Carrier::V1] {
        for packet in packets() {
            let (icrc, bytes) = frame(carrier, &packet);
            frames.push(bytes);
            cases.push(Case { carrier, packet, icrc });
        }
    }
    let dir = TempDir::new();
    let path = dir.0.join("all-opcodes.pcap");
    common::write(&path, &frames);
    let Some(lines) = tshark(&path) else { return };
    assert_eq!(lines.len(), cases.len());
    for (line, case) in lines.iter().zip(&cases) {
        check(case, line);
    }
}

/// One packet of every opcode, with several payload lengths and syndromes among them.
fn packets() -> Vec<Packet<'static>> {
    static PAYLOAD: [u8; 64] = [0x5a; 64];
    let mut packets = Vec::new();
    for byte in 0..=u8::MAX {
        let Some((service, op)) = Opcode(byte).decode() else {
            continue;
        };
        let n = u32::from(byte);
        let mut bth = Bth::new(Opcode(byte), Qpn::new(0x00ab_c000 | n), Psn::new(0x00fe_dc00 | n));
        bth.solicited = n.is_multiple_of(2);
        bth.mig_req = n.is_multiple_of(3);
        bth.ack_req = n.is_multiple_of(5);
        let len = match op {
            Op::ReadRequest | Op::CmpSwap | Op::FetchAdd | Op::Flush | Op::Cnp => 0,
            Op::Acknowledge | Op::AtomicAcknowledge => 0,
            Op::AtomicWrite => 8,
            _ => 32 + usize::from(byte) % 29,
        };
        packets.push(Packet::new(bth, exts(service, op, n), &PAYLOAD[..len]));
    }
    assert_eq!(packets.len(), 25 + 12 + 2 + 1 + 25, "RC, UC, UD, CNP, XRC");
    packets
}

fn exts(service: Service, op: Op, n: u32) -> Exts {
    let syndromes = [
        Syndrome::Ack { credits: CreditCode::NONE },
        Syndrome::RnrNak { timer: RnrTimer::new(14) },
        Syndrome::Nak(NakCode::RemoteAccess),
        Syndrome::Ack { credits: CreditCode::new(5) },
    ];
    let va = 0x0123_4567_89ab_0000 | u64::from(n) << 3;
    let rkey = Rkey(0x8000_1200 | n);
    let whole = |swap_add, compare| AtomicEth { va, rkey, swap_add, compare };
    let feth = Feth::new(FlushPlacement::GLOBAL, FlushSelectivity::MemoryRegion);
    let xrc = service == Service::Xrc && op.is_request();
    Exts {
        deth: (service == Service::Ud)
            .then(|| Deth { qkey: Qkey(0x1122_3300 | n), src_qp: Qpn::new(0x0033_4400 | n) }),
        xrceth: xrc.then(|| XrcEth { srqn: Srqn::new(0x00cd_ef01) }),
        cnp: (op == Op::Cnp).then(CnpReserved::default),
        feth: op.has_feth().then_some(feth),
        reth: op.has_reth().then_some(Reth { va, rkey, len: 0x0010_0000 | n }),
        atomic: op.has_atomic_eth().then(|| whole(0x1111_2222_3333_4444, 0x5555_6666_7777_8888)),
        aeth: op.has_aeth().then(|| Aeth {
            syndrome: syndromes[n as usize % syndromes.len()],
            msn: Msn::new(0x00aa_bb00 | n),
        }),
        atomic_ack: op
            .has_atomic_ack_eth()
            .then_some(AtomicAckEth { original: 0xfeed_face_cafe_beef }),
        imm: op.has_imm().then_some(ImmDt { imm: Imm(0xdead_0000 | n) }),
        ieth: op.has_ieth().then_some(Ieth { rkey }),
    }
}

fn frame(carrier: Carrier, packet: &Packet<'_>) -> (u32, Vec<u8>) {
    let mut transport = vec![0; packet.wire_len().expect("known opcode")];
    assert_eq!(packet.emit(&mut transport), Ok(transport.len()));
    let (a, b) = ([0x20; 16], [0x21; 16]);
    let frame = match carrier {
        Carrier::V4 => Frame::v4([10, 0, 0, 1], [10, 0, 0, 2], 0xc123, &transport),
        Carrier::V6 => Frame::v6(a, b, 0xc123, &transport),
        Carrier::V1 => Frame::v1(Gid(a), Gid(b), &transport),
    };
    let frame = frame.expect("short").on_ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let mut out = vec![0; 256];
    let len = frame.emit(&mut out).expect("fits");
    out.truncate(len);
    (frame.icrc, out)
}

/// Runs tshark; `None` if it is not installed and need not be.
fn tshark(path: &Path) -> Option<Vec<Vec<String>>> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(path).args(["-T", "fields", "-E", "separator=|", "-E", "occurrence=f"]);
    for field in FIELDS {
        command.args(["-e", field]);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            assert!(std::env::var_os("CI").is_none(), "tshark must be installed in CI");
            // Straight to the stream: the test harness hides what the macros print.
            let skipped = b"SKIPPED: tshark not installed (apt-get install tshark)\n";
            std::io::stderr().write_all(skipped).expect("stderr");
            return None;
        }
        Err(e) => panic!("tshark: {e}"),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    Some(text.lines().map(|l| l.split('|').map(str::to_owned).collect()).collect())
}

/// What tshark should print for a packet, as numbers; byte strings stay in hexadecimal.
fn expected(case: &Case) -> Vec<Option<String>> {
    let Packet { bth, exts, payload } = case.packet;
    let number = |n: u64| Some(n.to_string());
    let hex = |n: u32| format!("{n:08x}");
    let va = exts.reth.map(|r| r.va).or_else(|| exts.atomic.map(|a| a.va));
    let rkey = exts.reth.map(|r| r.rkey).or_else(|| exts.atomic.map(|a| a.rkey));
    // tshark takes the padding for data.
    let padded = payload.iter().chain(&[0; 3][..bth.pad.into()]);
    let data = padded.map(|b| format!("{b:02x}")).collect::<String>();
    vec![
        number(bth.opcode.0.into()),
        number(bth.psn.get().into()),
        number(bth.dest_qp.get().into()),
        number(bth.pad.into()),
        number(bth.pkey.0.into()),
        number(bth.solicited.into()),
        number(bth.mig_req.into()),
        number(bth.ack_req.into()),
        va.and_then(number),
        rkey.and_then(|k| number(k.0.into())),
        exts.reth.and_then(|r| number(r.len.into())),
        exts.aeth.and_then(|a| number(a.syndrome.to_u8().into())),
        exts.aeth.and_then(|a| number(a.msn.get().into())),
        exts.deth.and_then(|d| number(d.qkey.0.into())),
        exts.deth.and_then(|d| number(d.src_qp.get().into())),
        exts.atomic.and_then(|a| number(a.swap_add)),
        exts.atomic.and_then(|a| number(a.compare)),
        exts.atomic_ack.and_then(|a| number(a.original)),
        exts.imm.map(|i| hex(i.imm.0)),
        exts.ieth.map(|i| hex(i.rkey.0)),
        (!data.is_empty()).then_some(data),
        number(case.icrc.swap_bytes().into()),
    ]
}

fn check(case: &Case, line: &[String]) {
    let (service, op) = case.packet.bth.opcode.decode().expect("known opcode");
    // Of these tshark knows the base transport header only.
    let opaque =
        matches!(service, Service::Xrc | Service::Cnp) || matches!(op, Op::Flush | Op::AtomicWrite);
    let fields = if opaque { BTH_FIELDS } else { FIELDS.len() };
    for (i, (field, expected)) in FIELDS.into_iter().zip(expected(case)).take(fields).enumerate() {
        let got = normal(field, line.get(i).map_or("", String::as_str));
        let carrier = case.carrier;
        assert_eq!(got, expected, "{field} of {service:?} {op:?} over {carrier:?}");
    }
}

/// A number in decimal, whatever notation this version of tshark uses for it.
fn normal(field: &str, text: &str) -> Option<String> {
    if text.is_empty() {
        return None;
    }
    let bytes = ["infiniband.immdt", "infiniband.ieth", "data.data"].contains(&field);
    Some(match (text, text.strip_prefix("0x")) {
        (_, Some(hex)) => u64::from_str_radix(hex, 16).expect("hexadecimal").to_string(),
        ("True", _) => "1".to_owned(),
        ("False", _) => "0".to_owned(),
        _ if bytes => text.replace(':', ""),
        _ => text.to_owned(),
    })
}

/// A directory that goes away with the test.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("feroce-wire-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("temporary directory");
        Self(dir)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
