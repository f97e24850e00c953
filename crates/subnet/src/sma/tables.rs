//! Tables, in blocks: GUIDs, partitions, lanes, forwarding (IBTA vol1 14.2.5.5 to 14.2.5.12).

use feroce_wire::Pkey;
use feroce_wire::mad::{
    ForwardingBlock, GuidInfo, MulticastBlock, PkeyTable, SlToVl, Smp, Status, VlArbitrationBlock,
};

use super::{Effect, Request, fill};
use crate::node::Node;
use crate::port::Change;

const GUIDS_PER_BLOCK: usize = 8;
const PKEYS_PER_BLOCK: usize = 32;

pub(super) fn guids(
    node: &mut Node,
    request: &Request<'_>,
    response: &mut Smp,
    effects: &mut dyn FnMut(Effect),
) -> Status {
    let number = node.end_port(request.arrived_by);
    let Some(port) = node.port_mut(number) else {
        return Status::BAD_VALUE;
    };
    let Some(entries) = block_of(&mut port.guids, request.smp.header.modifier, GUIDS_PER_BLOCK)
    else {
        return Status::BAD_VALUE;
    };
    if let (true, Ok((wanted, _))) = (request.is_set, GuidInfo::parse(&request.smp.data)) {
        // The first GUID of all is that of the port, and stays.
        let first = usize::from(request.smp.header.modifier == 0);
        let before = entries.to_vec();
        for (entry, guid) in entries.iter_mut().zip(wanted.guids).skip(first) {
            *entry = guid;
        }
        if before != entries {
            effects(Effect::Changed(number, Change::Gid));
        }
    }
    let guids = core::array::from_fn(|i| entries.get(i).copied().unwrap_or_default());
    fill(response, &GuidInfo { guids }.to_bytes());
    Status::OK
}

pub(super) fn pkeys(
    node: &mut Node,
    request: &Request<'_>,
    response: &mut Smp,
    effects: &mut dyn FnMut(Effect),
) -> Status {
    let modifier = request.smp.header.modifier;
    let is_switch = node.switch.is_some();
    let number = match is_switch {
        true => u8::try_from(modifier >> 16).ok(),
        false => Some(request.arrived_by),
    };
    let Some(port) = number.and_then(|number| node.port_mut(number)) else {
        return Status::BAD_VALUE;
    };
    let Some(entries) = block_of(&mut port.pkeys, modifier & 0xffff, PKEYS_PER_BLOCK) else {
        return Status::BAD_VALUE;
    };
    if let (true, Ok((wanted, _))) = (request.is_set, PkeyTable::parse(&request.smp.data)) {
        let has_changed = entries != wanted.keys;
        entries.copy_from_slice(&wanted.keys);
        if let (true, false, Some(number)) = (has_changed, is_switch, number) {
            effects(Effect::Changed(number, Change::Pkey));
        }
    }
    let keys = core::array::from_fn(|i| entries.get(i).copied().unwrap_or(Pkey(0)));
    fill(response, &PkeyTable { keys }.to_bytes());
    Status::OK
}

/// The modifier of a switch names the port of arrival and the port of departure.
pub(super) fn sl_to_vl(node: &mut Node, request: &Request<'_>, response: &mut Smp) -> Status {
    let [_, _, input, output] = request.smp.header.modifier.to_be_bytes();
    let (input, output) = match node.switch {
        Some(_) => (input, output),
        None => (0, request.arrived_by),
    };
    let table = node.port_mut(output).and_then(|port| port.sl_to_vl.get_mut(usize::from(input)));
    let Some(table) = table else {
        return Status::BAD_VALUE;
    };
    if let (true, Ok((wanted, _))) = (request.is_set, SlToVl::parse(&request.smp.data)) {
        *table = wanted.lanes;
    }
    fill(response, &SlToVl { lanes: *table }.to_bytes());
    Status::OK
}

/// The modifier names the port, and one of four blocks from 1.
pub(super) fn vl_arbitration(node: &mut Node, request: &Request<'_>, response: &mut Smp) -> Status {
    let modifier = request.smp.header.modifier;
    let number = match node.switch {
        Some(_) => u8::try_from(modifier & 0xffff).ok(),
        None => Some(request.arrived_by),
    };
    let block = usize::try_from(modifier >> 16).ok().and_then(|block| block.checked_sub(1));
    let port = number.and_then(|number| node.port_mut(number));
    let table = match (port, block) {
        (Some(port), Some(block)) => port.vl_arbitration.get_mut(block),
        _ => None,
    };
    let Some(table) = table else {
        return Status::BAD_VALUE;
    };
    if let (true, Ok((wanted, _))) = (request.is_set, VlArbitrationBlock::parse(&request.smp.data))
    {
        *table = wanted;
    }
    fill(response, &table.to_bytes());
    Status::OK
}

pub(super) fn linear(node: &mut Node, request: &Request<'_>, response: &mut Smp) -> Status {
    let Some(switch) = &mut node.switch else {
        return Status::BAD_ATTRIBUTE;
    };
    let block = request.smp.header.modifier;
    if let (true, Ok((wanted, _))) = (request.is_set, ForwardingBlock::parse(&request.smp.data)) {
        // A block that does not exist is answered below.
        let _ = switch.set_linear_block(block, wanted.ports);
    }
    let Some(ports) = switch.linear_block(block) else {
        return Status::BAD_VALUE;
    };
    fill(response, &ForwardingBlock { ports }.to_bytes());
    Status::OK
}

pub(super) fn multicast(node: &mut Node, request: &Request<'_>, response: &mut Smp) -> Status {
    let Some(switch) = &mut node.switch else {
        return Status::BAD_ATTRIBUTE;
    };
    let block = request.smp.header.modifier;
    if let (true, Ok((wanted, _))) = (request.is_set, MulticastBlock::parse(&request.smp.data)) {
        // A block that does not exist is answered below.
        let _ = switch.set_multicast_block(block, wanted.masks);
    }
    let Some(masks) = switch.multicast_block(block) else {
        return Status::BAD_VALUE;
    };
    fill(response, &MulticastBlock { masks }.to_bytes());
    Status::OK
}

/// A block of a table whose length is a multiple of the block's.
fn block_of<T>(table: &mut [T], block: u32, len: usize) -> Option<&mut [T]> {
    let first = usize::try_from(block).ok()?.checked_mul(len)?;
    table.get_mut(first..first.checked_add(len)?)
}
