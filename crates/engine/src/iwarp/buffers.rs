//! Gathering and scattering parts of the buffers of work requests.

use alloc::vec::Vec;

use feroce_mem::{AccessError, Bytewise, Grant, Loan, MrTable, OutOfBounds, PdId, Read, Write};
use feroce_wire::iwarp::Crc32c;

use crate::hca::pieces::Pieces;
use crate::hca::wr::{Data, Sge};

/// A key, range or right is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Protected;

/// Whether `len` bytes from `offset` of the data of a request may be read.
pub(super) fn check_gather(
    mrs: &MrTable,
    pd: PdId,
    data: &Data,
    offset: u64,
    len: usize,
) -> Result<(), Protected> {
    let Data::Sges(sges) = data else { return Ok(()) };
    for piece in Pieces::new(sges.as_slice(), offset, len) {
        let addr = piece.addr.ok_or(Protected)?;
        mrs.lend_local::<Read>(pd, piece.sge.lkey, addr, piece.len).map_err(|_| Protected)?;
    }
    Ok(())
}

/// Fills `out` from `offset` of the data of a request, and extends `crc` by it. The caller has
/// [checked](check_gather) that.
pub(super) fn gather(
    mrs: &MrTable,
    pd: PdId,
    data: &Data,
    offset: u64,
    out: &mut [u8],
    mut crc: Option<&mut Crc32c>,
) {
    let sges = match data {
        Data::Inline(bytes) => {
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            let bytes = bytes.as_slice().get(from..).unwrap_or_default();
            out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = *byte);
            crc.into_iter().for_each(|crc| crc.update(out));
            return;
        }
        Data::Sges(sges) => sges.as_slice(),
    };
    let mut rest = &mut *out;
    for piece in Pieces::new(sges, offset, rest.len()) {
        let (now, later) = rest.split_at_mut(piece.len as usize);
        rest = later;
        let copied = piece.addr.is_some_and(|addr| {
            let loan = mrs.lend_local::<Read>(pd, piece.sge.lkey, addr, piece.len);
            loan.is_ok_and(|loan| copy_out(&loan, now, crc.as_deref_mut()).is_ok())
        });
        filled(copied, now);
    }
}

/// What could not be copied, although it was checked, is zeros: not what was there before, which
/// may have been for another peer.
pub(super) fn filled(is_copied: bool, out: &mut [u8]) {
    debug_assert!(is_copied, "the range was checked");
    if !is_copied {
        out.fill(0);
    }
}

/// Rights to the memory of a segment, in order.
pub(super) type Parts<R> = Vec<Grant<R>>;

/// Rights to `len` bytes from `offset` of the buffers of a request, to send them from where they
/// are, or to receive them there; `None`: a key, range or right is wrong, or they are not in memory
/// of this process.
pub(super) fn keep_parts<R: Bytewise>(
    mrs: &MrTable,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    len: usize,
) -> Option<Parts<R>> {
    let parts = Pieces::new(sges, offset, len);
    parts
        .map(|piece| {
            keep_with_place(mrs.lend_local::<R>(pd, piece.sge.lkey, piece.addr?, piece.len))
        })
        .collect()
}

/// The same right, to keep, if there is one and its memory is in this process.
pub(super) fn keep_with_place<R: Bytewise>(
    loan: Result<Loan<'_, R>, AccessError>,
) -> Option<Grant<R>> {
    let loan = loan.ok()?;
    let grant = loan.keep();
    grant.place().is_some().then_some(grant)
}

/// Fills `out` with what is lent, and extends `crc` by it.
pub(super) fn copy_out(
    loan: &Loan<'_, Read>,
    out: &mut [u8],
    crc: Option<&mut Crc32c>,
) -> Result<(), OutOfBounds> {
    match crc {
        Some(crc) => loan.copy_out_covered(out, crc),
        None => loan.copy_out(out),
    }
}

/// Copies `bytes` to what is lent, and extends `crc` by them.
pub(super) fn copy_in(
    loan: &Loan<'_, Write>,
    bytes: &[u8],
    crc: Option<&mut Crc32c>,
) -> Result<(), OutOfBounds> {
    match crc {
        Some(crc) => loan.copy_in_covered(bytes, crc),
        None => loan.copy_in(bytes),
    }
}

/// Writes `bytes` to the buffers of a request, from `offset` on, and extends `crc` by them. The
/// buffers have room for them.
pub(super) fn scatter(
    mrs: &MrTable,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    bytes: &[u8],
    mut crc: Option<&mut Crc32c>,
) -> Result<(), Protected> {
    let mut rest = bytes;
    for piece in Pieces::new(sges, offset, bytes.len()) {
        let (now, later) = rest.split_at(piece.len as usize);
        rest = later;
        let addr = piece.addr.ok_or(Protected)?;
        let loan = mrs.lend_local::<Write>(pd, piece.sge.lkey, addr, piece.len);
        let loan = loan.map_err(|_| Protected)?;
        copy_in(&loan, now, crc.as_deref_mut()).map_err(|_| Protected)?;
    }
    Ok(())
}
