//! Posting work requests.
//!
//! A chain of requests is converted one at a time as the queue takes them, and handed to the
//! adapter together.

use core::ffi::c_int;
use core::slice;

use feroce::{
    Access, Bind, Data, Dest, InlineBytes, Lkey, PostError, Qkey, Qpn, Receiver, RecvWr,
    RequestError, Rkey, SendOp, SendWr, SgeList, Srqn,
};
use feroce_lint::{self as lint, Name, Request};

use super::ah::Ah;
use super::mr;
use super::object::Object;
use super::qp::{Qp, SendSide};
use super::srq::Srq;
use crate::abi::*;
use crate::errno::{Errno, code};

/// One more scatter/gather element than any queue accepts; the elements beyond are not read.
const TOO_MANY_SGES: usize = 33;

/// Memory that elements of a request name.
///
/// # Safety
/// `list` points to `count` elements.
#[inline]
pub(crate) unsafe fn sges(list: *const ibv_sge, count: usize) -> SgeList {
    if count == 0 {
        return SgeList::EMPTY;
    }
    // SAFETY: by this function's contract, `list` points to `count` elements.
    let list = unsafe { slice::from_raw_parts(list, count.min(TOO_MANY_SGES)) };
    list.iter().map(convert::sge_of).collect()
}

/// Copies the bytes that elements of a request name, wherever they are.
///
/// # Safety
/// `list` points to `count` elements, and each of them describes readable memory.
#[inline]
unsafe fn inline(list: *const ibv_sge, count: usize, most: usize) -> Result<InlineBytes, Errno> {
    if count == 0 {
        return Ok(InlineBytes::new(&[]));
    }
    // SAFETY: by this function's contract, `list` points to `count` elements, and each of them
    // describes readable memory.
    let list = unsafe { slice::from_raw_parts(list, count) };
    let pieces = list.iter().map(|sge| (sge.addr as usize, sge.length as usize));
    // SAFETY: by this function's contract, `list` points to `count` elements, and each of them
    // describes readable memory.
    unsafe { gather(pieces, most) }
}

/// Copies pieces of memory, `most` bytes at most.
///
/// # Safety
/// Each piece, an address and a length, is readable memory of the program.
#[inline]
pub(crate) unsafe fn gather(
    pieces: impl Iterator<Item = (usize, usize)> + Clone,
    most: usize,
) -> Result<InlineBytes, Errno> {
    let lengths = pieces.clone().try_fold(0usize, |sum, (_, len)| sum.checked_add(len));
    let len = lengths.filter(|len| *len <= most).ok_or(Errno::INVALID)?;
    let piece = |(addr, len): (usize, usize)| -> &[u8] {
        if len == 0 {
            return &[];
        }
        let start: *const u8 = core::ptr::with_exposed_provenance(addr);
        // SAFETY: by this function's contract, each piece, an address and a length, is readable
        // memory of the program.
        unsafe { slice::from_raw_parts(start, len) }
    };
    let mut long = pieces.clone().filter(|(_, len)| *len > 0);
    match (long.next(), long.next()) {
        (None, _) => Ok(InlineBytes::new(&[])),
        (Some(only), None) => Ok(InlineBytes::new(piece(only))),
        _ => {
            // As much as any queue pair takes.
            let mut bytes = [0; 1024];
            let room = bytes.get_mut(..len).ok_or(Errno::INVALID)?;
            let mut rest = &mut room[..];
            for from in pieces.map(piece) {
                let (to, after) = rest.split_at_mut(from.len());
                to.copy_from_slice(from);
                rest = after;
            }
            Ok(InlineBytes::new(room))
        }
    }
}

/// A send, as the adapter takes it.
///
/// # Safety
/// `wr` is a request that ibv_post_send(3) accepts for `qp`: its lists and objects are those that
/// its operation needs.
#[inline]
unsafe fn request(wr: &ibv_send_wr, qp: &Qp) -> Result<SendWr, Errno> {
    let count = usize::try_from(wr.num_sge).map_err(|_| Errno::INVALID)?;
    let op = operation(wr)?;
    let data = if op.is_local() {
        Data::EMPTY
    } else if wr.send_flags & IBV_SEND_INLINE != 0 {
        // SAFETY: by this function's contract, `wr` is a request that ibv_post_send(3) accepts for
        // `qp`: its lists and objects are those that its operation needs.
        Data::Inline(unsafe { inline(wr.sg_list, count, qp.max_inline) }?)
    } else {
        // SAFETY: by this function's contract, `wr` is a request that ibv_post_send(3) accepts for
        // `qp`: its lists and objects are those that its operation needs.
        Data::Sges(unsafe { sges(wr.sg_list, count) })
    };
    let dest = match qp.qp_type {
        IBV_QPT_UD => {
            // SAFETY: ibv_post_send(3): a request on a datagram queue pair sets this member of the
            // union.
            let ud = unsafe { wr.wr.ud };
            // SAFETY: ibv_post_send(3): `ud.ah` is a live address handle; `datagram` refuses NULL.
            unsafe { datagram(ud.ah, ud.remote_qpn, ud.remote_qkey) }?
        }
        IBV_QPT_XRC_SEND => {
            // SAFETY: every bit pattern is a number.
            Dest::Xrc(Srqn::new(unsafe { wr.qp_type.xrc.remote_srqn }))
        }
        _ => Dest::Connected,
    };
    Ok(SendWr { wr_id: wr.wr_id, op, data, flags: convert::send_flags_of(wr.send_flags), dest })
}

/// The destination of a datagram.
///
/// # Safety
/// `ah` is a live address handle, or NULL.
#[inline]
pub(crate) unsafe fn datagram(ah: *mut ibv_ah, qpn: u32, qkey: u32) -> Result<Dest, Errno> {
    if ah.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: by this function's contract, `ah` is a live address handle, or NULL.
    let ah = unsafe { Ah::of(ah) };
    Ok(ah.ah.dest(Qpn::new(qpn), Qkey(qkey)))
}

/// The operation of a send.
#[inline]
fn operation(wr: &ibv_send_wr) -> Result<SendOp, Errno> {
    if wr.opcode == IBV_WR_BIND_MW {
        // SAFETY: ibv_post_send(3): with IBV_WR_BIND_MW the program sets this member of the
        // union.
        let bind = unsafe { wr.op.bind_mw };
        // SAFETY: ibv_post_send(3): `bind.mw` is a live memory window.
        let mw = unsafe { (*bind.mw).rkey };
        return bind_mw(mw, bind.rkey, &bind.bind_info);
    }
    let words = convert::Words {
        // SAFETY: every bit pattern is a number, whichever member of the union the program has set.
        rdma: unsafe { wr.wr.rdma },
        // SAFETY: every bit pattern is a number, whichever member of the union the program has set.
        atomic: unsafe { wr.wr.atomic },
        // SAFETY: both members of the union are numbers of the same size.
        imm: unsafe { wr.imm.invalidate_rkey },
    };
    convert::send_op(wr.opcode, &words).ok_or(Errno::INVALID)
}

/// Binding of a window.
pub(crate) fn bind_mw(mw: u32, new: u32, info: &ibv_mw_bind_info) -> Result<SendOp, Errno> {
    // Without a memory region there is nothing to bind to, and a length of zero unbinds.
    let mr = if info.mr.is_null() {
        Lkey(0)
    } else {
        // SAFETY: ibv_bind_mw(3): `info.mr`, which is not NULL here, is a live memory region.
        Lkey(unsafe { (*info.mr).lkey })
    };
    // The right of the owner to write is that of the memory region; programs give it all the same.
    let access = mr::access(info.mw_access_flags)? - Access::LOCAL_WRITE;
    let (addr, len) = (info.addr, info.length);
    let binding = Bind { mr, addr, len, access, zero_based: false };
    Ok(SendOp::BindMw { mw: Rkey(mw), new_rkey: Rkey(new), binding })
}

/// What lint says about a request that cannot even be converted.
const UNKNOWN_REQUEST: &str =
    "opcode, send_flags, num_sge or wr.ud.ah of the request are not valid";

pub(crate) unsafe extern "C" fn post_send(
    public: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: ibv_post_send(3): `public` is a live queue pair.
    let qp = unsafe { Qp::behind(public) };
    let mut at = first;
    let posted = qp.send.with(|side: &mut SendSide| {
        let mut posted = Ok(());
        // SAFETY: ibv_post_send(3): `first` points to a chain of requests that ends with NULL and
        // stays unchanged during the call.
        while let Some(wr) = unsafe { at.as_ref() } {
            // SAFETY: ibv_post_send(3): the lists and objects of a request are those that its
            // operation on this queue pair needs.
            let made = unsafe { request(wr, qp) };
            if made.is_err() && lint::is_on() {
                lint::call_refused(side.name, "ibv_post_send", UNKNOWN_REQUEST);
            }
            posted = made.and_then(|wr| side.begin(wr));
            if posted.is_err() {
                break;
            }
            at = wr.next;
        }
        if let Some(sender) = &mut side.sender {
            sender.submit();
        }
        posted
    });
    if posted.is_err() {
        // SAFETY: ibv_post_send(3): `bad_wr` points to room for a pointer to the refused request.
        unsafe { *bad_wr = at };
    }
    code(posted)
}

/// A chain of receives, converted one at a time.
struct Receives {
    /// The request that was looked at last.
    at: *mut ibv_recv_wr,
    next: *mut ibv_recv_wr,
    /// Why the chain ended early.
    errno: Option<Errno>,
}

impl Receives {
    /// # Safety
    /// `first` is NULL or points to a chain of requests that ends with NULL and stays unchanged
    /// while this value is used.
    unsafe fn new(first: *mut ibv_recv_wr) -> Self {
        Self { at: first, next: first, errno: None }
    }

    /// Posts the receives, and records them for lint before the adapter can complete any.
    fn post_noted(&mut self, receiver: &mut Receiver, qp: &Qp) -> Result<(), PostError> {
        // SAFETY: `qp.as_ptr()` points to a live object, whose `context` does not change after it
        // was made.
        let context = unsafe { (*qp.as_ptr()).context }.addr();
        let name = Name { context, qpn: qp.handle.qpn().get() };
        lint::receives_posted(name, self.requests());
        let posted = receiver.post(&mut *self);
        if let Err(e) = posted {
            lint::receives_taken_back(name, self.refused());
            if e != PostError::Request(RequestError::QueueFull) {
                lint::call_refused(name, "ibv_post_recv", &e.to_string());
            }
        }
        posted
    }

    /// The same for a shared queue, which is at `addr`.
    fn post_shared(&mut self, srq: &feroce::Srq, addr: usize) -> Result<(), PostError> {
        lint::shared_posted(addr, self.requests());
        let posted = srq.post_recv(&mut *self);
        if posted.is_err() {
            lint::shared_taken_back(addr, self.refused());
        }
        posted
    }

    /// The records of the remaining receives for lint.
    fn requests(&self) -> Vec<Request> {
        let mut all = Self { at: self.next, next: self.next, errno: None };
        (&mut all).map(|wr| Request::receive(&wr)).collect()
    }

    /// How many there are from the one on that was looked at last.
    fn refused(&self) -> usize {
        let mut refused = Self { at: self.at, next: self.at, errno: None };
        (&mut refused).count()
    }

    /// What posting them answers.
    ///
    /// # Safety
    /// `bad_wr` points to room for a pointer to the refused request.
    unsafe fn report(self, posted: Result<(), PostError>, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
        let posted = posted.map_err(Errno::from).and_then(|()| self.errno.map_or(Ok(()), Err));
        if posted.is_err() {
            // SAFETY: by this function's contract, `bad_wr` points to room for a pointer to the
            // refused request.
            unsafe { *bad_wr = self.at };
        }
        code(posted)
    }
}

impl Iterator for &mut Receives {
    type Item = RecvWr;

    #[inline]
    fn next(&mut self) -> Option<RecvWr> {
        self.at = self.next;
        // SAFETY: by the contract of `new` the chain ends with NULL and does not change.
        let wr = unsafe { self.next.as_ref() }?;
        self.next = wr.next;
        let Ok(count) = usize::try_from(wr.num_sge) else {
            self.errno = Some(Errno::INVALID);
            return None;
        };
        // SAFETY: ibv_post_recv(3), ibv_post_srq_recv(3): `sg_list` points to `num_sge` elements.
        Some(RecvWr { wr_id: wr.wr_id, sges: unsafe { sges(wr.sg_list, count) } })
    }
}

pub(crate) unsafe extern "C" fn post_recv(
    public: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: ibv_post_recv(3): `public` is a live queue pair.
    let qp = unsafe { Qp::behind(public) };
    // SAFETY: ibv_post_recv(3): `first` points to a chain of requests that ends with NULL.
    let mut chain = unsafe { Receives::new(first) };
    let posted = match &qp.recv {
        Some(recv) if lint::is_on() => recv.with(|receiver| chain.post_noted(receiver, qp)),
        Some(recv) => recv.with(|receiver| receiver.post(&mut chain)),
        None => Err(RequestError::OpNotSupported.into()),
    };
    // SAFETY: ibv_post_recv(3): `bad_wr` points to room for a pointer to the refused request.
    unsafe { chain.report(posted, bad_wr) }
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    public: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: ibv_post_srq_recv(3): `public` is a live shared receive queue.
    let srq = unsafe { Srq::of(public) };
    // SAFETY: ibv_post_srq_recv(3): `wr` points to a chain of requests that ends with NULL.
    let mut chain = unsafe { Receives::new(wr) };
    let posted = if lint::is_on() {
        chain.post_shared(&srq.srq, public.addr())
    } else {
        srq.srq.post_recv(&mut chain)
    };
    // SAFETY: ibv_post_srq_recv(3): `bad_wr` points to room for a pointer to the refused request.
    unsafe { chain.report(posted, bad_wr) }
}
