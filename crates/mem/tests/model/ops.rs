//! The operations of the model test, and strategies that generate them.

use feroce_mem::{Access, Iova, MwType, PdId};
use feroce_wire::Qpn;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::SIZE;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) iova: Iova,
    pub(crate) access: Access,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Read,
    Write,
    Atomic,
}

/// One step. `key` and `mr` choose among all keys there ever were.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Reg(Spot),
    Rereg(Option<Spot>, Option<Access>),
    Dereg,
    AllocMr,
    Map(u8, Spot),
    AllocMw(MwType),
    DeallocMw,
    Bind(BindOp),
    InvalidateLocal,
    InvalidateRemote,
    UnbindQp,
    Local(Touch),
    Remote(Touch),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct BindOp {
    pub(crate) kind: MwType,
    pub(crate) mr: Index,
    pub(crate) tag: u8,
    pub(crate) from: i64,
    pub(crate) len: u64,
    pub(crate) access: Access,
    pub(crate) zero_based: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    pub(crate) kind: Kind,
    pub(crate) from: i64,
    pub(crate) len: u32,
    pub(crate) byte: u8,
}

#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) pd: PdId,
    pub(crate) qpn: Qpn,
    pub(crate) key: Index,
    pub(crate) op: Op,
}

fn access() -> impl Strategy<Value = Access> {
    let all = Access::all() - Access::ZERO_BASED;
    prop_oneof![2 => Just(all), 1 => (0_u32..32).prop_map(Access::from_bits_truncate)]
}

fn window_access() -> impl Strategy<Value = Access> {
    let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    prop_oneof![3 => Just(remote), 1 => access()]
}

fn spot() -> impl Strategy<Value = Spot> {
    let iova = prop_oneof![
        Just(Iova::Natural),
        Just(Iova::ZeroBased),
        (0_u64..64).prop_map(Iova::At),
        (0_u64..64).prop_map(|n| Iova::At(u64::MAX - n)),
    ];
    (0..SIZE + 2, 0..64_usize, iova, access()).prop_map(|(offset, len, iova, access)| Spot {
        offset,
        len,
        iova,
        access,
    })
}

fn bind() -> impl Strategy<Value = BindOp> {
    let kind = prop_oneof![Just(MwType::One), Just(MwType::Two)];
    let len = prop_oneof![8 => 0_u64..32, 1 => Just(u64::MAX)];
    let rest = (window_access(), prop::bool::weighted(0.2));
    (kind, any::<Index>(), any::<u8>(), -2_i64..32, len, rest).prop_map(
        |(kind, mr, tag, from, len, (access, zero_based))| BindOp {
            kind,
            mr,
            tag,
            from,
            len,
            access,
            zero_based,
        },
    )
}

fn touch() -> impl Strategy<Value = Touch> {
    let kind = prop_oneof![Just(Kind::Read), Just(Kind::Write), Just(Kind::Atomic)];
    let len = prop_oneof![4 => 0_u32..32, 4 => Just(8), 1 => Just(u32::MAX)];
    (kind, -2_i64..40, len, any::<u8>()).prop_map(|(kind, from, len, byte)| Touch {
        kind,
        from,
        len,
        byte,
    })
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let op = prop_oneof![
        4 => spot().prop_map(Op::Reg),
        1 => (prop::option::of(spot()), prop::option::of(access()))
            .prop_map(|(spot, access)| Op::Rereg(spot, access)),
        2 => Just(Op::Dereg),
        1 => Just(Op::AllocMr),
        3 => (any::<u8>(), spot()).prop_map(|(tag, spot)| Op::Map(tag, spot)),
        1 => Just(Op::AllocMw(MwType::One)),
        2 => Just(Op::AllocMw(MwType::Two)),
        1 => Just(Op::DeallocMw),
        8 => bind().prop_map(Op::Bind),
        1 => Just(Op::InvalidateLocal),
        2 => Just(Op::InvalidateRemote),
        1 => Just(Op::UnbindQp),
        6 => touch().prop_map(Op::Local),
        12 => touch().prop_map(Op::Remote),
    ];
    let pd = prop_oneof![5 => Just(PdId(1)), 1 => Just(PdId(2))];
    let qpn = prop_oneof![3 => Just(Qpn::new(5)), 1 => Just(Qpn::new(6))];
    (pd, qpn, any::<Index>(), op).prop_map(|(pd, qpn, key, op)| Step { pd, qpn, key, op })
}
