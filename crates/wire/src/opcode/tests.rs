use super::*;

/// Low five bits, bytes of headers on RC, and what the predicates say:
/// `F`irst `M`iddle `L`ast `O`nly, `S`end `W`rite read response `D`, `<` starts, `>` ends,
/// re`q`uest or res`p`onse, `r`eth `i`mm ie`t`h `a`eth atomic `x` atomic ac`k` `f`eth.
const TABLE: [(u8, usize, &str); 25] = [
    (0x00, 12, "FS<q"),
    (0x01, 12, "MSq"),
    (0x02, 12, "LS>q"),
    (0x03, 16, "LS>qi"),
    (0x04, 12, "OS<>q"),
    (0x05, 16, "OS<>qi"),
    (0x06, 28, "FW<qr"),
    (0x07, 12, "MWq"),
    (0x08, 12, "LW>q"),
    (0x09, 16, "LW>qi"),
    (0x0a, 28, "OW<>qr"),
    (0x0b, 32, "OW<>qri"),
    (0x0c, 28, "<>qr"),
    (0x0d, 16, "FD<pa"),
    (0x0e, 12, "MDp"),
    (0x0f, 16, "LD>pa"),
    (0x10, 16, "OD<>pa"),
    (0x11, 16, "pa"),
    (0x12, 24, "pak"),
    (0x13, 40, "<>qx"),
    (0x14, 40, "<>qx"),
    (0x16, 16, "LS>qt"),
    (0x17, 16, "OS<>qt"),
    (0x1c, 32, "<>qrf"),
    (0x1d, 28, "<>qr"),
];

fn predicates(op: Op) -> [(char, bool); 19] {
    [
        ('F', op.is_first()),
        ('M', op.is_middle()),
        ('L', op.is_last()),
        ('O', op.is_only()),
        ('S', op.is_send()),
        ('W', op.is_write()),
        ('D', op.is_read_response()),
        ('<', op.starts()),
        ('>', op.ends()),
        ('q', op.is_request()),
        ('p', op.is_response()),
        ('r', op.has_reth()),
        ('i', op.has_imm()),
        ('t', op.has_ieth()),
        ('a', op.has_aeth()),
        ('x', op.has_atomic_eth()),
        ('k', op.has_atomic_ack_eth()),
        ('f', op.has_feth()),
        ('c', op == Op::Cnp),
    ]
}

/// What the byte means, worked out from ranges and not from the enum.
fn expected(byte: u8) -> Option<(Service, usize)> {
    let (service, code) = (byte >> 5, byte & 0x1f);
    let rc = TABLE.iter().find(|(c, ..)| *c == code);
    match service {
        0 => rc.map(|(_, len, _)| (Service::Rc, *len)),
        1 if code <= 0x0b => rc.map(|(_, len, _)| (Service::Uc, *len)),
        3 if code == 4 => Some((Service::Ud, 20)),
        3 if code == 5 => Some((Service::Ud, 24)),
        4 if code == 1 => Some((Service::Cnp, 28)),
        5 => {
            rc.map(|(_, len, flags)| (Service::Xrc, len + if flags.contains('q') { 4 } else { 0 }))
        }
        _ => None,
    }
}

#[test]
fn every_byte_decodes_as_the_tables_say() {
    let mut known = 0;
    for byte in 0..=u8::MAX {
        let opcode = Opcode(byte);
        let decoded = opcode.decode();
        assert_eq!(decoded.map(|(s, _)| s), expected(byte).map(|(s, _)| s), "{byte:#04x}");
        assert_eq!(opcode.header_len(), expected(byte).map(|(_, n)| n), "{byte:#04x}");
        if let Some((service, op)) = decoded {
            assert_eq!(Opcode::new(service, op), opcode);
            known += 1;
        }
    }
    assert_eq!(known, 25 + 12 + 2 + 1 + 25);
}

#[test]
fn predicates_are_those_of_the_table() {
    for (code, _, flags) in TABLE {
        let (_, op) = Opcode(code).decode().expect("an RC opcode");
        assert_eq!(op as u8, code);
        for (flag, value) in predicates(op) {
            assert_eq!(value, flags.contains(flag), "{op:?} {flag}");
        }
    }
    let cnp = Opcode(0x81).decode().expect("CNP").1;
    assert!(predicates(cnp).iter().all(|(flag, value)| *value == (*flag == 'c')));
}

#[test]
fn pairs_that_do_not_exist_do_not_decode() {
    assert_eq!(Opcode::CNP, Opcode(0x81));
    for (service, op) in [
        (Service::Uc, Op::SendOnlyInv),
        (Service::Uc, Op::ReadRequest),
        (Service::Ud, Op::SendFirst),
        (Service::Cnp, Op::SendMiddle),
    ] {
        assert_ne!(Opcode::new(service, op).decode(), Some((service, op)));
    }
}

#[test]
fn a_run_of_packets_is_like_one_that_starts_and_ends_as_it_does() {
    for first in Op::ALL {
        for last in Op::ALL {
            let Some(run) = first.through(last) else { continue };
            assert!(!first.ends() && !last.starts(), "{first:?} {last:?} are of one message");
            assert_eq!((run.starts(), run.ends()), (first.starts(), last.ends()), "{run:?}");
            assert_eq!((run.has_imm(), run.has_ieth()), (last.has_imm(), last.has_ieth()));
            assert_eq!((run.is_send(), run.is_write()), (first.is_send(), first.is_write()));
            let rest = run.continued().expect("something is left");
            assert_eq!((rest.starts(), rest.ends()), (false, run.ends()), "{run:?} {rest:?}");
            assert_eq!(rest.continued(), Some(rest));
        }
    }
    assert_eq!(Op::WriteFirst.through(Op::WriteLastImm), Some(Op::WriteOnlyImm));
    assert_eq!(Op::WriteFirst.through(Op::SendLast), None);
    assert_eq!(Op::ReadRequest.continued(), None);
}
