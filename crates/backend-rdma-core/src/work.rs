//! Completions and addresses of the library as those of the engine, where a union must be read.
//! Everything else is in [`feroce_abi::convert`].

use feroce_abi::*;
use feroce_engine::{AddrVec, AttrMask, Cqe, QpAttr};
use feroce_train::Instant;

/// Hop limit where none is given.
const HOP_LIMIT: u8 = 64;

/// A completion.
#[inline]
pub(crate) fn cqe(wc: &ibv_wc, now: Instant) -> Cqe {
    // SAFETY: both members of the union are integers, for which every bit pattern is valid.
    convert::cqe(wc, unsafe { wc.imm.imm_data }, now)
}

/// The attributes of an address handle.
pub(crate) fn ah_attr(av: &AddrVec) -> ibv_ah_attr {
    convert::ah_attr(&with_hop_limit(av))
}

pub(crate) fn addr_vec(attr: &ibv_ah_attr) -> AddrVec {
    // SAFETY: every bit pattern is an address.
    convert::addr_vec(attr, unsafe { attr.grh.dgid.raw })
}

/// Attributes to set, and their mask.
pub(crate) fn qp_attr(attr: &QpAttr) -> (ibv_qp_attr, u32) {
    let (av, alt_path) = (attr.av.as_ref(), attr.alt_path.as_ref());
    let (av, alt_path) = (av.map(with_hop_limit), alt_path.map(with_hop_limit));
    convert::qp_attr(&QpAttr { av, alt_path, ..*attr })
}

/// The attributes that the mask selects.
pub(crate) fn qp_attr_of(attr: &ibv_qp_attr, mask: u32) -> QpAttr {
    convert::qp_attr_of(attr, mask, addr_vec)
}

/// Attributes that a query returned. Drivers report no alternate path.
pub(crate) fn queried(attr: &ibv_qp_attr) -> QpAttr {
    let all = qp_attr_of(attr, AttrMask::all().bits());
    QpAttr { sqd_notify: Some(attr.sq_draining != 0), alt_path: None, ..all }
}

/// In the engine a hop limit of zero asks for the default. Drivers would send packets with it,
/// which the first router drops.
fn with_hop_limit(av: &AddrVec) -> AddrVec {
    AddrVec { hop_limit: if av.hop_limit == 0 { HOP_LIMIT } else { av.hop_limit }, ..*av }
}
