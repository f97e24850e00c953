//! Address handles.

use core::cell::UnsafeCell;
use core::ffi::c_int;

use feroce::{AddrVec, Framing, Gid, GidEntry, Lid, LinkLayer};
use feroce_lint::Kind;

use super::context::Context;
use super::object::Object;
use super::pd::Pd;
use crate::abi::*;
use crate::errno::{Errno, pointer, status};
use crate::memory;
use crate::zeroed::Zeroed;

/// An address handle.
#[repr(C)]
pub(crate) struct Ah {
    public: UnsafeCell<ibv_ah>,
    pub(crate) ah: feroce::Ah,
}

// SAFETY: the type is `repr(C)`, and its first field is the `UnsafeCell` of the public part.
unsafe impl Object for Ah {
    type C = ibv_ah;

    const KIND: Option<Kind> = Some(Kind::Ah);
}

/// The address vector that attributes describe. Without a global route it has no GID, which the
/// adapter refuses on Ethernet. A device has one port.
pub(crate) fn addr_vec(attr: &ibv_ah_attr) -> Result<AddrVec, Errno> {
    if attr.port_num == 1 { Ok(path(attr)) } else { Err(Errno::INVALID) }
}

/// The address vector, whatever the port.
pub(crate) fn path(attr: &ibv_ah_attr) -> AddrVec {
    // SAFETY: both members of the union are sixteen bytes, for which every bit pattern is valid.
    convert::addr_vec(attr, unsafe { attr.grh.dgid.raw })
}

pub(crate) unsafe extern "C" fn ibv_create_ah(
    pd: *mut ibv_pd,
    attr: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    // SAFETY: ibv_create_ah(3): `attr` points to attributes.
    let attr = unsafe { attr.read() };
    // SAFETY: ibv_create_ah(3): `pd` is a live protection domain.
    let behind = unsafe { Pd::of(pd) };
    // SAFETY: `pd` points to a live object, whose `context` does not change after it was made.
    let context = unsafe { (*pd).context };
    pointer(addr_vec(&attr).and_then(|av| {
        memory::admit()?;
        let public = UnsafeCell::new(ibv_ah { context, pd, handle: 0 });
        Ok(Ah { public, ah: behind.pd.create_ah(av)? }.give())
    }))
}

pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: ibv_destroy_ah(3): `ah` is live, and the program does not use it after this call.
    drop(unsafe { Ah::take(ah) });
    0
}

/// The two addresses and the rest of what the header of a datagram says.
struct Seen {
    from: Gid,
    to: Gid,
    traffic_class: u8,
    flow_label: u32,
    /// RoCEv1 has a GRH, which says that a BTH follows; an IP header says UDP.
    framing: Framing,
}

/// Next header of a GRH in front of a BTH.
const BTH_FOLLOWS: u8 = 0x1b;

/// Reads the forty bytes before a datagram: a GRH, or an IPv4 header in the second half of them.
fn seen(area: &[u8; 40], link_layer: LinkLayer) -> Seen {
    let gid = |at: usize| {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&area[at..at + 16]);
        Gid(bytes)
    };
    let ipv4 = |at: usize| Gid::from_ipv4([area[at], area[at + 1], area[at + 2], area[at + 3]]);
    let is_ipv4 = area[0] >> 4 != 6 && area[20] == 0x45;
    if is_ipv4 {
        let framing = Framing::RoceV2;
        let (from, to) = (ipv4(32), ipv4(36));
        return Seen { from, to, traffic_class: area[21], flow_label: 0, framing };
    }
    let framing = match (link_layer, area[6]) {
        (LinkLayer::InfiniBand, _) => Framing::InfiniBand,
        (LinkLayer::Ethernet, BTH_FOLLOWS) => Framing::RoceV1,
        (LinkLayer::Ethernet, _) => Framing::RoceV2,
    };
    let first = u32::from_be_bytes([area[0], area[1], area[2], area[3]]);
    Seen {
        from: gid(8),
        to: gid(24),
        traffic_class: (first >> 20) as u8,
        flow_label: first & 0xf_ffff,
        framing,
    }
}

/// Where a datagram came from, as the attributes of the way back.
pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: ibv_init_ah_from_wc(3): `context` is a live context.
    let context = unsafe { Context::behind(context) };
    let ibv_wc { wc_flags: flags, slid, sl, dlid_path_bits: src_path_bits, .. } =
        // SAFETY: ibv_init_ah_from_wc(3): `wc` points to a completion.
        unsafe { wc.read() };
    let facts = context.adapter().port();
    // On InfiniBand the way back leads to the LID of the sender, at its service level.
    let local = match facts.link_layer {
        LinkLayer::InfiniBand => {
            AddrVec { dlid: Lid(slid), sl, src_path_bits, ..AddrVec::default() }
        }
        LinkLayer::Ethernet => AddrVec::default(),
    };
    if flags & IBV_WC_GRH == 0 {
        let is_possible = port == 1 && facts.link_layer == LinkLayer::InfiniBand;
        return status(is_possible.then_some(()).ok_or(Errno::INVALID).map(|()| {
            // SAFETY: ibv_init_ah_from_wc(3): `attr` points to room for the attributes.
            unsafe { attr.write(convert::ah_attr(&local)) };
        }));
    }
    // SAFETY: ibv_init_ah_from_wc(3): with IBV_WC_GRH, `grh` points to the forty bytes before the
    // datagram.
    let seen = seen(unsafe { &*grh.cast::<[u8; 40]>() }, facts.link_layer);
    // A datagram to a group is answered from the first address of its family.
    let is_ipv4 = |gid: Gid| gid.as_ipv4().is_some();
    let same_family = || {
        let is_alike =
            |own: &GidEntry| is_ipv4(own.gid) == is_ipv4(seen.from) && own.framing == seen.framing;
        facts.gids.iter().position(is_alike)
    };
    let at = |own: &GidEntry| own.gid == seen.to && own.framing == seen.framing;
    let found = facts.gids.iter().position(at).or_else(same_family);
    let found = found.filter(|_| port == 1);
    let Some(index) = found else { return status(Err(Errno::INVALID)) };
    let av = AddrVec {
        dgid: seen.from,
        sgid_index: u16::try_from(index).unwrap_or(0),
        flow_label: seen.flow_label,
        hop_limit: u8::MAX,
        traffic_class: seen.traffic_class,
        // On RoCEv1 the service level is the VLAN priority.
        sl: if seen.framing == Framing::RoceV2 { 0 } else { sl },
        ..local
    };
    // SAFETY: ibv_init_ah_from_wc(3): `attr` points to room for the attributes.
    unsafe { attr.write(convert::ah_attr(&av)) };
    0
}

pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    // SAFETY: ibv_create_ah_from_wc(3): `pd` is a live protection domain.
    let context = unsafe { (*pd).context };
    let mut attr = ibv_ah_attr::zeroed();
    // SAFETY: ibv_create_ah_from_wc(3): `wc` and `grh` are as for ibv_init_ah_from_wc(3); `attr` is
    // a local variable.
    if unsafe { ibv_init_ah_from_wc(context, port, wc, grh, &raw mut attr) } != 0 {
        return core::ptr::null_mut();
    }
    // SAFETY: `pd` is live (see the call above), and `attr` is a local variable that the call has
    // filled in.
    unsafe { ibv_create_ah(pd, &raw mut attr) }
}
