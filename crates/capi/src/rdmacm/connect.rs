//! From a request to a connection, and to its end.

use core::ffi::{c_int, c_void};

use feroce::cm::ConnParam;

use super::finish::finish;
use super::id::Id;
use super::qp::{self, show_qp_state};
use crate::abi::*;
use crate::errno::{Errno, status};
use crate::memory;
use crate::verbs::object::Object;

/// Retries without end, when a program does not say how many.
const RETRIES: u8 = 7;

/// Copies what a program gives as private data.
///
/// # Safety
/// `data` is NULL or points to `len` bytes.
unsafe fn bytes(data: *const c_void, len: u8) -> Vec<u8> {
    if data.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: by this function's contract, `data` is NULL or points to `len` bytes.
    unsafe { core::slice::from_raw_parts(data.cast::<u8>(), len.into()) }.to_vec()
}

/// The parameters that a program gives, on top of those it would get without.
///
/// # Safety
/// `given` is NULL or points to parameters.
unsafe fn param(
    id: &Id,
    given: *const rdma_conn_param,
    usual: &ConnParam,
) -> Result<ConnParam, Errno> {
    let is_connected = !id.id.is_datagrams();
    let mut private_data = std::mem::take(&mut id.private().prefix);
    if given.is_null() {
        // Without a queue pair, only the parameters can say which number it will have.
        if is_connected && id.seen().qp.is_null() {
            return Err(Errno::INVALID);
        }
        let (retry_count, rnr_retry_count) = (RETRIES, RETRIES);
        return Ok(ConnParam { private_data, retry_count, rnr_retry_count, ..usual.clone() });
    }
    // SAFETY: by this function's contract, `given` is NULL or points to parameters.
    let given = unsafe { given.read() };
    // SAFETY: rdma_connect(3), rdma_accept(3): `private_data` is NULL or points to
    // `private_data_len` bytes.
    private_data.extend(unsafe { bytes(given.private_data, given.private_data_len) });
    let most = id.id.context().map_or(0, |context| context.attr().limits.max_rd_atomic);
    let depth = |given: u8, usual: u8| match given {
        u8::MAX => Ok(usual),
        given if is_connected && given > most => Err(Errno::INVALID),
        given => Ok(given),
    };
    Ok(ConnParam {
        private_data,
        responder_resources: depth(given.responder_resources, usual.responder_resources)?,
        initiator_depth: depth(given.initiator_depth, usual.initiator_depth)?,
        ..convert::conn_param_of(&given)
    })
}

pub(crate) unsafe extern "C-unwind" fn rdma_connect(
    public: *mut rdma_cm_id,
    given: *mut rdma_conn_param,
) -> c_int {
    // SAFETY: rdma_connect(3): `public` is a live id, and `given` is NULL or points to parameters.
    let started = unsafe { connect(public, given) };
    // SAFETY: rdma_connect(3): `public` is a live id.
    unsafe { finish(public, started) }
}

/// # Safety
/// `public` is a live id, and `given` is NULL or points to parameters.
unsafe fn connect(public: *mut rdma_cm_id, given: *mut rdma_conn_param) -> Result<(), Errno> {
    // SAFETY: by this function's contract, `public` is a live id, and `given` is NULL or points to
    // parameters.
    let id = unsafe { Id::of(public) };
    memory::admit()?;
    let (responder_resources, initiator_depth) = (u8::MAX, u8::MAX);
    let usual = ConnParam { responder_resources, initiator_depth, ..ConnParam::default() };
    // SAFETY: by this function's contract, `public` is a live id, and `given` is NULL or points to
    // parameters.
    let param = unsafe { param(id, given, &usual) }?;
    qp::adopt(id)?;
    Ok(id.id.connect(&param)?)
}

pub(crate) unsafe extern "C-unwind" fn rdma_accept(
    public: *mut rdma_cm_id,
    given: *mut rdma_conn_param,
) -> c_int {
    // SAFETY: rdma_accept(3): `public` is a live id, and `given` is NULL or points to parameters.
    let started = unsafe { accept(public, given) };
    // SAFETY: rdma_accept(3): `public` is a live id.
    if unsafe { Id::of(public) }.id.is_datagrams() {
        // Nothing more will happen to it.
        return status(started);
    }
    // SAFETY: `public` is still live: this call has not destroyed it.
    unsafe { finish(public, started) }
}

/// # Safety
/// `public` is a live id, and `given` is NULL or points to parameters.
unsafe fn accept(public: *mut rdma_cm_id, given: *mut rdma_conn_param) -> Result<(), Errno> {
    // SAFETY: by this function's contract, `public` is a live id, and `given` is NULL or points to
    // parameters.
    let id = unsafe { Id::of(public) };
    memory::admit()?;
    let usual = id.id.offered().unwrap_or_default();
    // SAFETY: by this function's contract, `public` is a live id, and `given` is NULL or points to
    // parameters.
    let param = unsafe { param(id, given, &usual) }?;
    qp::adopt(id)?;
    let accepted = id.id.accept(&param);
    show_qp_state(id);
    Ok(accepted?)
}

pub(crate) unsafe extern "C" fn rdma_reject(
    public: *mut rdma_cm_id,
    private_data: *const c_void,
    len: u8,
) -> c_int {
    // SAFETY: rdma_reject(3): `public` is a live id.
    let id = unsafe { Id::of(public) };
    // SAFETY: rdma_reject(3): `private_data` is NULL or points to `len` bytes.
    let private_data = unsafe { bytes(private_data, len) };
    status(id.id.reject(&private_data).map_err(Errno::from))
}

/// Only for ids without queue pair: others say by themselves that they are ready.
pub(crate) unsafe extern "C" fn rdma_establish(public: *mut rdma_cm_id) -> c_int {
    // SAFETY: rdma_establish(3): `public` is a live id.
    let id = unsafe { Id::of(public) };
    if !id.seen().qp.is_null() {
        return status(Err(Errno::INVALID));
    }
    status(id.id.establish().map_err(Errno::from))
}

pub(crate) unsafe extern "C" fn rdma_notify(
    public: *mut rdma_cm_id,
    event: ibv_event_type,
) -> c_int {
    // SAFETY: rdma_notify(3): `public` is a live id.
    let id = unsafe { Id::of(public) };
    match event {
        IBV_EVENT_COMM_EST => status(id.id.establish().map_err(Errno::from)),
        _ => status(Err(Errno::INVALID)),
    }
}

pub(crate) unsafe extern "C-unwind" fn rdma_disconnect(public: *mut rdma_cm_id) -> c_int {
    // SAFETY: rdma_disconnect(3): `public` is a live id.
    let id = unsafe { Id::of(public) };
    let adopted = qp::adopt(id);
    let started = adopted.and_then(|()| id.id.disconnect().map_err(Errno::from));
    show_qp_state(id);
    if id.id.is_datagrams() {
        // Nothing more will happen to it.
        return status(started);
    }
    // SAFETY: `public` is still live: this call has not destroyed it.
    unsafe { finish(public, started) }
}
