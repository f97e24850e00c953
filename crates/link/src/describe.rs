//! A transport packet in one line, for people.

use core::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use feroce_wire::{
    Aeth, AtomicEth, Bth, Exts, FlushPlacement, Gid, NakCode, Op, Packet, Service, Syndrome,
};

/// Describes the transport packet `bytes`, from its base transport header to its padding:
/// destination, service and operation, PSN, flags, extension headers and length of the payload.
///
/// ```text
/// -> 0x0012ab RC SEND Only PSN 0x000123 ack_req 1024 bytes
/// -> 0x0012ab RC Acknowledge PSN 0x000123 NAK remote access error MSN 7
/// ```
pub fn describe(bytes: &[u8]) -> impl fmt::Display {
    Description(bytes)
}

struct Description<'a>(&'a [u8]);

impl fmt::Display for Description<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Packet::parse(self.0) {
            Ok(packet) => write_packet(f, &packet),
            Err(e) => match Bth::parse(self.0) {
                Ok((bth, _)) => {
                    write!(f, "-> {} PSN {} malformed: {e}", bth.dest_qp, bth.psn)
                }
                Err(_) => write!(f, "malformed: {e}"),
            },
        }
    }
}

fn write_packet(f: &mut fmt::Formatter<'_>, packet: &Packet<'_>) -> fmt::Result {
    let Packet { bth, exts, payload } = packet;
    if let Some(deth) = exts.deth {
        write!(f, "{} ", deth.src_qp)?;
    }
    write!(f, "-> {} ", bth.dest_qp)?;
    if let Some((service, op)) = bth.opcode.decode() {
        match op {
            Op::Cnp => f.write_str("CNP")?,
            _ => write!(f, "{} {}", service_name(service), op_name(op))?,
        }
    }
    write!(f, " PSN {}", bth.psn)?;
    for (set, name) in [
        (bth.solicited, "solicited"),
        (bth.ack_req, "ack_req"),
        (bth.fecn, "FECN"),
        (bth.becn, "BECN"),
    ] {
        if set {
            write!(f, " {name}")?;
        }
    }
    write_exts(f, exts)?;
    if !payload.is_empty() {
        write!(f, " {} bytes", payload.len())?;
    }
    Ok(())
}

fn write_exts(f: &mut fmt::Formatter<'_>, exts: &Exts) -> fmt::Result {
    if let Some(xrc) = exts.xrceth {
        write!(f, " SRQ {:#08x}", xrc.srqn.get())?;
    }
    if let Some(feth) = exts.feth {
        let is = |placement, name| if feth.placement.contains(placement) { name } else { "" };
        let visible = is(FlushPlacement::GLOBAL, " global");
        let persistent = is(FlushPlacement::PERSISTENT, " persistent");
        write!(f, "{visible}{persistent} {:?}", feth.selectivity)?;
    }
    if let Some(reth) = exts.reth {
        write!(f, " va {:#018x} rkey {} len {}", reth.va, reth.rkey, reth.len)?;
    }
    if let Some(AtomicEth { va, rkey, swap_add, compare }) = exts.atomic {
        write!(f, " va {va:#018x} rkey {rkey} swap/add {swap_add:#x} compare {compare:#x}")?;
    }
    if let Some(Aeth { syndrome, msn }) = exts.aeth {
        f.write_str(" ")?;
        write_syndrome(f, syndrome)?;
        write!(f, " MSN {}", msn.get())?;
    }
    if let Some(ack) = exts.atomic_ack {
        write!(f, " original {:#x}", ack.original)?;
    }
    if let Some(imm) = exts.imm {
        write!(f, " imm {}", imm.imm)?;
    }
    if let Some(ieth) = exts.ieth {
        write!(f, " invalidates {}", ieth.rkey)?;
    }
    if let Some(deth) = exts.deth {
        write!(f, " qkey {}", deth.qkey)?;
    }
    Ok(())
}

/// An acknowledgement in words.
fn write_syndrome(f: &mut fmt::Formatter<'_>, syndrome: Syndrome) -> fmt::Result {
    match syndrome {
        Syndrome::Ack { credits } => match credits.credits() {
            Some(n) => write!(f, "ACK credits {n}"),
            None => f.write_str("ACK"),
        },
        Syndrome::RnrNak { timer } => {
            let micros = timer.nanos() / 1000;
            write!(f, "RNR NAK wait {}.{:02} ms", micros / 1000, micros % 1000 / 10)
        }
        Syndrome::Nak(code) => f.write_str(match code {
            NakCode::PsnSequence => "NAK PSN sequence error",
            NakCode::InvalidRequest => "NAK invalid request",
            NakCode::RemoteAccess => "NAK remote access error",
            NakCode::RemoteOperational => "NAK remote operational error",
            NakCode::InvalidRdRequest => "NAK invalid RD request",
        }),
        Syndrome::Reserved(byte) => write!(f, "reserved syndrome {byte:#04x}"),
    }
}

fn service_name(service: Service) -> &'static str {
    match service {
        Service::Rc => "RC",
        Service::Uc => "UC",
        Service::Ud => "UD",
        Service::Cnp => "CNP",
        Service::Xrc => "XRC",
    }
}

fn op_name(op: Op) -> &'static str {
    match op {
        Op::SendFirst => "SEND First",
        Op::SendMiddle => "SEND Middle",
        Op::SendLast => "SEND Last",
        Op::SendLastImm => "SEND Last Immediate",
        Op::SendOnly => "SEND Only",
        Op::SendOnlyImm => "SEND Only Immediate",
        Op::WriteFirst => "WRITE First",
        Op::WriteMiddle => "WRITE Middle",
        Op::WriteLast => "WRITE Last",
        Op::WriteLastImm => "WRITE Last Immediate",
        Op::WriteOnly => "WRITE Only",
        Op::WriteOnlyImm => "WRITE Only Immediate",
        Op::ReadRequest => "READ Request",
        Op::ReadResponseFirst => "READ Response First",
        Op::ReadResponseMiddle => "READ Response Middle",
        Op::ReadResponseLast => "READ Response Last",
        Op::ReadResponseOnly => "READ Response Only",
        Op::Acknowledge => "Acknowledge",
        Op::AtomicAcknowledge => "ATOMIC Acknowledge",
        Op::CmpSwap => "CmpSwap",
        Op::FetchAdd => "FetchAdd",
        Op::SendLastInv => "SEND Last Invalidate",
        Op::SendOnlyInv => "SEND Only Invalidate",
        Op::Flush => "FLUSH",
        Op::AtomicWrite => "ATOMIC WRITE",
        Op::Cnp => "CNP",
    }
}

/// An address as people write it: IPv4 without its mapping.
pub(crate) struct Address(pub(crate) Gid);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_ipv4() {
            Some(v4) => Ipv4Addr::from(v4).fmt(f),
            None => Ipv6Addr::from(self.0.0).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use feroce_wire::{
        AtomicAckEth, CnpReserved, CreditCode, Deth, Ieth, Imm, ImmDt, Msn, Opcode, Psn, Qkey, Qpn,
        Reth, Rkey, RnrTimer,
    };

    use super::*;

    fn line(service: Service, op: Op, exts: Exts, len: usize) -> String {
        let bth = Bth::new(Opcode::new(service, op), Qpn::new(0x12ab), Psn::new(0x123));
        let payload = vec![0; len];
        let packet = Packet::new(Bth { ack_req: op.is_request(), ..bth }, exts, &payload);
        let mut bytes = vec![0; packet.wire_len().expect("an opcode")];
        packet.emit(&mut bytes).expect("well formed");
        describe(&bytes).to_string()
    }

    #[test]
    fn requests() {
        let none = Exts::NONE;
        assert_eq!(
            line(Service::Rc, Op::SendOnly, none, 1024),
            "-> 0x0012ab RC SEND Only PSN 0x000123 ack_req 1024 bytes"
        );
        let reth = Some(Reth { va: 0x7f00_1000, rkey: Rkey(0x1234), len: 8192 });
        assert_eq!(
            line(Service::Uc, Op::WriteFirst, Exts { reth, ..none }, 4096),
            "-> 0x0012ab UC WRITE First PSN 0x000123 ack_req va 0x000000007f001000 \
             rkey 0x00001234 len 8192 4096 bytes"
        );
        let deth = Some(Deth { qkey: Qkey(0x8001_0000), src_qp: Qpn::QP1 });
        let imm = Some(ImmDt { imm: Imm(7) });
        assert_eq!(
            line(Service::Ud, Op::SendOnlyImm, Exts { deth, imm, ..none }, 1),
            "0x000001 -> 0x0012ab UD SEND Only Immediate PSN 0x000123 ack_req imm 0x00000007 \
             qkey 0x80010000 1 bytes"
        );
        let ieth = Some(Ieth { rkey: Rkey(9) });
        assert_eq!(
            line(Service::Rc, Op::SendLastInv, Exts { ieth, ..none }, 0),
            "-> 0x0012ab RC SEND Last Invalidate PSN 0x000123 ack_req invalidates 0x00000009"
        );
        let cnp = Some(CnpReserved::default());
        let line = line(Service::Cnp, Op::Cnp, Exts { cnp, ..none }, 0);
        assert_eq!(line, "-> 0x0012ab CNP PSN 0x000123");
    }

    #[test]
    fn answers() {
        let answer = |syndrome| {
            let aeth = Some(Aeth { syndrome, msn: Msn::new(5) });
            let line = line(Service::Rc, Op::Acknowledge, Exts { aeth, ..Exts::NONE }, 0);
            line.strip_prefix("-> 0x0012ab RC Acknowledge PSN 0x000123 ").expect("as is").to_owned()
        };
        assert_eq!(answer(Syndrome::Ack { credits: CreditCode::NONE }), "ACK MSN 5");
        let credits = CreditCode::at_most(3);
        assert_eq!(answer(Syndrome::Ack { credits }), "ACK credits 3 MSN 5");
        let timer = RnrTimer::new(14);
        assert_eq!(answer(Syndrome::RnrNak { timer }), "RNR NAK wait 1.28 ms MSN 5");
        assert_eq!(answer(Syndrome::Nak(NakCode::RemoteAccess)), "NAK remote access error MSN 5");
        assert_eq!(answer(Syndrome::Reserved(0xff)), "reserved syndrome 0xff MSN 5");
        let aeth = Some(Aeth { syndrome: Syndrome::from_u8(31), msn: Msn::new(1) });
        let atomic_ack = Some(AtomicAckEth { original: 0xab });
        let exts = Exts { aeth, atomic_ack, ..Exts::NONE };
        assert_eq!(
            line(Service::Xrc, Op::AtomicAcknowledge, exts, 0),
            "-> 0x0012ab XRC ATOMIC Acknowledge PSN 0x000123 ACK MSN 1 original 0xab"
        );
    }

    #[test]
    fn any_bytes() {
        assert_eq!(describe(b"").to_string(), "malformed: the packet ends inside its headers");
        let text = describe(&[0xff; 12]).to_string();
        assert_eq!(text, "-> 0xffffff PSN 0xffffff malformed: opcode 0xff does not exist");
    }
}
