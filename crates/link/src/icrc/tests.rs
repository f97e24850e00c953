use feroce_mem::{Access, Iova, MrLimits, MrTable, PdId, Read, Region, RevocationEpoch};
use feroce_train::{Ext, TrainOps};
use feroce_wire::{Bth, Gid, Op, Opcode, Psn, Qpn, Reth, Rkey, Service};

use super::*;

const PD: PdId = PdId(1);

/// A WRITE of `len` bytes that start `at` bytes into a page, in packets of `stride` bytes.
fn write_from_memory(at: usize, len: usize, stride: usize) -> Train {
    let region = Region::alloc(at + len).expect("memory");
    let bytes: Vec<u8> = (0..at + len).map(|i| (i * 7 + i / 251) as u8).collect();
    region.write_at(0, &bytes).expect("in bounds");
    let mut mrs = MrTable::new(1, MrLimits::default());
    let (all, first) = (region.len() as u64, region.addr() + at as u64);
    let access = Access::LOCAL_WRITE;
    let key = mrs.reg(PD, region, 0, all as usize, Iova::Natural, access).expect("a key");
    let grant = mrs.grant_local::<Read>(PD, key, first, len as u32).expect("a grant");
    let op = |op| Opcode::new(Service::Rc, op);
    let reth = Reth { va: 0x1000, rkey: Rkey(7), len: len as u32 };
    Train {
        path: Path {
            src: Gid::from_ipv4([10, 0, 0, 1]).into(),
            dst: Gid::from_ipv4([10, 0, 0, 2]).into(),
            ..Path::default()
        },
        bth: Bth::new(op(Op::WriteFirst), Qpn::new(0x12ab), Psn::new(77)),
        ops: TrainOps {
            first: op(Op::WriteFirst),
            middle: op(Op::WriteMiddle),
            last: op(Op::WriteLast),
        },
        count: len.div_ceil(stride) as u32,
        stride,
        payload_len: len,
        head: Ext::NONE.with(|out| reth.emit(out)),
        body: Ext::NONE,
        tail: Ext::NONE,
        payload: Payload::One(grant),
        revocation_epoch: None::<RevocationEpoch>,
    }
}

/// A packet of a train is the same as the packet alone, whether it is hashed during the copy or
/// afterwards.
#[test]
fn every_packet_of_a_train_has_its_icrc() {
    for (at, len, stride) in
        [(0, 15 * 4096, 4096), (8, 8 * 1024, 1024), (3, 2 * 4096, 4096), (0, 2 * 2048 + 77, 2048)]
    {
        let train = write_from_memory(at, len, stride);
        for shift in 0..20 {
            let mut out = vec![0; 66_000];
            let end = Sealer::default().emit_all(&train, 4000, &mut out[shift..]);
            let mut rest = &out[shift..shift + end];
            for i in 0..train.count {
                let mut packet = vec![0; train.packet_len(i)];
                train.emit(i, &mut packet);
                let prefix = Covered::of_path(&train.path, 4000).prefix(packet.len());
                packet.extend(prefix.with_ipv4_id(i as u16).seal(&packet));
                let (sealed, others) = rest.split_at(packet.len());
                assert!(sealed == packet, "packet {i} of {len} bytes at {at}, written at {shift}");
                rest = others;
            }
            assert!(rest.is_empty());
        }
    }
}
