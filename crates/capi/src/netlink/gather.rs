//! Collects what there is to tell about the devices, and about the objects of this process.

use std::process;

use feroce::{QpHandle, QpState};

use super::facts::{CmId, Cq, Device, Mr, Pd, Peer, Qp, Srq};
use crate::abi::*;
use crate::verbs::context::{self, Context};
use crate::verbs::object::Object;
use crate::verbs::{adapter, device};
use crate::{rdmacm, verbs};

/// Every device that can be seen now, with what this process has made on it.
pub(super) fn devices() -> Vec<Device> {
    // Where devices cannot be listed, a program sees none; the log has the reason.
    let listed = device::Device::list().unwrap_or_default();
    let mut devices: Vec<Device> = listed.into_iter().filter_map(device_facts).collect();
    for (name, counters) in adapter::counters() {
        if let Some(device) = devices.iter_mut().find(|device| device.name == name) {
            device.counters = counters.iter().collect();
        }
    }
    // The lock keeps all contexts of the list open.
    let open = context::open();
    for listed in open.iter() {
        // SAFETY: the context is in the list, which this thread has locked; ibv_close_device(3)
        // removes it from there before it frees it.
        let context: &Context = unsafe { listed.get() };
        let name = context.device_name();
        if let Some(device) = devices.iter_mut().find(|device| device.name == name) {
            objects(context, device);
        }
    }
    drop(open);
    connections(&mut devices);
    devices
}

/// The device itself.
fn device_facts(device: &device::Device) -> Option<Device> {
    let facts = device.facts();
    let (attr, port) = (facts.attr().ok()?, facts.port().ok()?);
    let interface = facts.interface_index().zip(facts.interface_name().map(str::to_owned));
    Some(Device {
        index: u32::try_from(device.index()).ok()?,
        name: facts.name().to_owned(),
        caps: attr.caps.bits().into(),
        fw_ver: attr.fw_ver,
        guid: attr.guid,
        sys_image_guid: attr.sys_image_guid,
        state: port.state as u8,
        phys_state: port.phys_state as u8,
        interface,
        counters: feroce::Counters::default().iter().collect(),
        pid: process::id(),
        ..Device::default()
    })
}

/// What one context has.
fn objects(context: &Context, device: &mut Device) {
    device.contexts.push(context.number);
    let qps = queue_pairs(context);
    device.qps.extend(qps.iter().filter_map(qp));
    let tables = context.registry.lock();
    for (id, listed) in &tables.cqs {
        // SAFETY: the object is in the tables, which this thread has locked; its destructor removes
        // it from there before it frees it.
        let cq: &verbs::cq::Cq = unsafe { listed.get() };
        let place = cq.as_ptr();
        // SAFETY: `place` points to a live object; only the field `cqe` is read, without a
        // reference.
        let depth = unsafe { (*place).cqe };
        let users = qps.iter().flat_map(|qp| qp.cqs).filter(|cq| *cq == place.addr()).count();
        let depth = u32::try_from(depth).unwrap_or(0);
        let users = users as u64;
        device.cqs.push(Cq { number: id.0, context: context.number, depth, users });
    }
    for listed in tables.srqs.values() {
        // SAFETY: the object is in the tables, which this thread has locked; its destructor removes
        // it from there before it frees it.
        let srq: &verbs::srq::Srq = unsafe { listed.get() };
        // SAFETY: the public part of a live object, whose `pd` does not change after it was made.
        let pd = unsafe { (*srq.public()).pd };
        // SAFETY: a protection domain is live as long as the objects in it.
        let pd = unsafe { handle_of(pd) };
        let users = qps.iter().filter(|qp| qp.srq == srq.public().addr());
        device.srqs.push(Srq {
            number: srq.srq.number().get(),
            pd,
            kind: srq.srq_type as u8,
            qps: users.map(|qp| qp.handle.qpn().get()).collect(),
        });
    }
    drop(tables);
    let tables = context.exports.lock();
    device.mrs.extend(tables.mrs.iter().map(|(key, mr)| Mr {
        number: key >> 8,
        lkey: *key,
        rkey: *key,
        len: mr.length as u64,
        pd: mr.pd,
    }));
    for number in tables.pds.keys().copied() {
        let users = device.qps.iter().filter(|qp| qp.pd == number).count()
            + device.mrs.iter().filter(|mr| mr.pd == number).count()
            + device.srqs.iter().filter(|srq| srq.pd == number).count();
        device.pds.push(Pd { number, context: context.number, users: users as u64 });
    }
}

/// A queue pair as the program made it, and the addresses of what it uses.
struct Made {
    handle: QpHandle,
    pd: u32,
    kind: ibv_qp_type,
    cqs: [usize; 2],
    srq: usize,
}

/// The queue pairs of a context. They are queried later, without the lock of the tables.
fn queue_pairs(context: &Context) -> Vec<Made> {
    let mut found = Vec::new();
    for listed in context.registry.lock().qps.values() {
        // SAFETY: the object is in the tables, which this thread has locked; its destructor removes
        // it from there before it frees it.
        let qp: &verbs::qp::Qp = unsafe { listed.get() };
        // SAFETY: the public part of a live object, whose `pd` does not change after it was made.
        let pd = unsafe { (*qp.as_ptr()).pd };
        found.push(Made {
            handle: qp.handle.clone(),
            // SAFETY: a protection domain is live as long as the objects in it.
            pd: unsafe { handle_of(pd) },
            kind: qp.qp_type,
            cqs: [qp.made.send_cq, qp.made.recv_cq].map(|cq| cq.addr()),
            srq: qp.made.srq.addr(),
        });
    }
    found
}

/// The number of a protection domain; zero where there is none, as on an XRC target.
///
/// # Safety
/// `pd` is NULL or a live protection domain.
unsafe fn handle_of(pd: *mut ibv_pd) -> u32 {
    // SAFETY: by this function's contract `pd` is NULL or live; its `handle` does not change after
    // it was made.
    unsafe { pd.as_ref() }.map_or(0, |pd| pd.handle)
}

/// A queue pair; none if it has ended meanwhile.
fn qp(made: &Made) -> Option<Qp> {
    let attr = made.handle.query()?;
    let peer = matches!(made.kind, IBV_QPT_RC | IBV_QPT_UC).then(|| Peer {
        qpn: attr.dest_qpn.map_or(0, |qpn| qpn.get()),
        rq_psn: attr.rq_psn.map_or(0, |psn| psn.get()),
    });
    Some(Qp {
        number: made.handle.qpn().get(),
        pd: made.pd,
        kind: u8::try_from(made.kind).unwrap_or(u8::MAX),
        state: attr.state.unwrap_or(QpState::Reset) as u8,
        sq_psn: attr.sq_psn.map_or(0, |psn| psn.get()),
        peer,
    })
}

/// The ids of the connection manager, each with its device.
fn connections(devices: &mut [Device]) {
    for (number, listed) in rdmacm::table::lock().iter() {
        // SAFETY: the id is in the table, which this thread has locked; rdma_destroy_id(3) removes
        // it from there first.
        let id: &rdmacm::id::Id = unsafe { listed.get() };
        let (seen, state) = (id.seen(), id.id.state());
        let Some(context) = id.id.context() else { continue };
        let name = context.device().name();
        let Some(device) = devices.iter_mut().find(|device| device.name == name) else { continue };
        let kind = u8::try_from(seen.qp_type).unwrap_or(u8::MAX);
        device.cm_ids.push(CmId {
            // The kernel's are as short; a process does not make so many.
            number: *number as u32,
            qp: id.id.qpn().map(|qpn| (qpn.get(), kind)),
            state: state.map_or(0, |state| state as u8),
            ps: seen.ps,
            local: id.id.local_addr(),
            peer: id.id.peer_addr(),
        });
    }
}
