//! Gathering and scattering parts of the buffers of work requests.

use feroce_mem::{MrTable, PdId, Read, Write};

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

/// Fills `out` from `offset` of the data of a request. The caller has [checked](check_gather) that.
pub(super) fn gather(mrs: &MrTable, pd: PdId, data: &Data, offset: u64, out: &mut [u8]) {
    let sges = match data {
        Data::Inline(bytes) => {
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            let bytes = bytes.as_slice().get(from..).unwrap_or_default();
            out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = *byte);
            return;
        }
        Data::Sges(sges) => sges.as_slice(),
    };
    let mut rest = &mut *out;
    for piece in Pieces::new(sges, offset, rest.len()) {
        let (now, later) = rest.split_at_mut(piece.len as usize);
        rest = later;
        let Some(addr) = piece.addr else { continue };
        let loan = mrs.lend_local::<Read>(pd, piece.sge.lkey, addr, piece.len);
        let copied = loan.is_ok_and(|loan| loan.copy_out(now).is_ok());
        debug_assert!(copied, "the range was checked");
    }
}

/// Writes `bytes` to the buffers of a request, from `offset` on. They have room for them.
pub(super) fn scatter(
    mrs: &MrTable,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    bytes: &[u8],
) -> Result<(), Protected> {
    let mut rest = bytes;
    for piece in Pieces::new(sges, offset, bytes.len()) {
        let (now, later) = rest.split_at(piece.len as usize);
        rest = later;
        let addr = piece.addr.ok_or(Protected)?;
        let loan = mrs.lend_local::<Write>(pd, piece.sge.lkey, addr, piece.len);
        loan.map_err(|_| Protected)?.copy_in(now).map_err(|_| Protected)?;
    }
    Ok(())
}
