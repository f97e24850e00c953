//! Describes a transport packet in one readable line.

use core::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use feroce_wire::{Bth, Gid, Op, Packet};

/// Describes the transport packet `bytes`, from its base transport header to its padding:
/// destination, service and operation, PSN, flags, extension headers and length of the payload.
///
/// ```text
/// -> 0x0012ab RC SEND Only PSN 0x000123, asks for ACK, 1024 bytes
/// -> 0x0012ab RC NAK PSN 0x000123, remote access error, MSN 7
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
    write!(f, "-> {} ", packet.bth.dest_qp)?;
    match packet.bth.opcode.decode() {
        Some((service, op)) if op != Op::Cnp => write!(f, "{} {}", service.name(), packet.name())?,
        _ => f.write_str(packet.name())?,
    }
    write!(f, " PSN {}", packet.bth.psn)?;
    for note in packet.notes() {
        write!(f, ", {note}")?;
    }
    match packet.payload.len() {
        0 => Ok(()),
        len => write!(f, ", {len} bytes"),
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
        Aeth, CnpReserved, CreditCode, Deth, Exts, Imm, ImmDt, Msn, Opcode, Psn, Qkey, Qpn, Reth,
        Rkey, Service, Syndrome,
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
    fn requests_and_answers() {
        let none = Exts::NONE;
        let reth = Some(Reth { va: 0x7f00_1000, rkey: Rkey(0x1234), len: 8192 });
        assert_eq!(
            line(Service::Uc, Op::WriteFirst, Exts { reth, ..none }, 4096),
            "-> 0x0012ab UC WRITE First PSN 0x000123, asks for ACK, va 0x7f001000 \
             rkey 0x00001234 len 8192, 4096 bytes"
        );
        let deth = Some(Deth { qkey: Qkey(0x8001_0000), src_qp: Qpn::QP1 });
        let imm = Some(ImmDt { imm: Imm(7) });
        assert_eq!(
            line(Service::Ud, Op::SendOnlyImm, Exts { deth, imm, ..none }, 1),
            "-> 0x0012ab UD SEND Only with Immediate PSN 0x000123, asks for ACK, from QP 0x1 \
             Q_Key 0x80010000, immediate 0x00000007, 1 bytes"
        );
        let syndrome = Syndrome::Ack { credits: CreditCode::NONE };
        let aeth = Some(Aeth { syndrome, msn: Msn::new(5) });
        let ack = line(Service::Rc, Op::Acknowledge, Exts { aeth, ..none }, 0);
        assert_eq!(ack, "-> 0x0012ab RC ACK PSN 0x000123, MSN 5");
        let cnp = Some(CnpReserved::default());
        let cnp = line(Service::Cnp, Op::Cnp, Exts { cnp, ..none }, 0);
        assert_eq!(cnp, "-> 0x0012ab Congestion Notification PSN 0x000123");
    }

    #[test]
    fn any_bytes() {
        assert_eq!(describe(b"").to_string(), "malformed: the packet ends inside its headers");
        let text = describe(&[0xff; 12]).to_string();
        assert_eq!(text, "-> 0xffffff PSN 0xffffff malformed: opcode 0xff does not exist");
    }
}
