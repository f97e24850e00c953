//! Gathering and scattering the buffers of work requests.

use alloc::vec::Vec;
use core::cell::Cell;

use feroce_mem::{FetchError, Grant, Landing, Loan, LocalMr, MrTable, PdId, Read, Source, Write};
use feroce_train::Payload;
use feroce_wire::Lkey;

use super::rx_payload::RxPayload;
use crate::hca::cqe::WcStatus;
use crate::hca::pieces::{Piece, Pieces};
use crate::hca::wr::{Data, Sge};

/// The payload at `offset..offset + len` of the data of a work request.
#[inline]
pub(super) fn gather(
    mrs: &MrTable,
    pd: PdId,
    data: &Data,
    offset: u64,
    len: usize,
) -> Result<Payload, WcStatus> {
    let sges = match data {
        Data::Inline(bytes) => {
            let offset = usize::try_from(offset).map_err(|_| WcStatus::LocalLength)?;
            return Ok(Payload::Inline { data: bytes.clone(), offset });
        }
        Data::Sges(sges) => sges.as_slice(),
    };
    let grant = |addr: u64, len: u32, sge: &Sge| -> Result<Grant<Read>, WcStatus> {
        mrs.grant_local::<Read>(pd, sge.lkey, addr, len).map_err(|_| WcStatus::LocalProtection)
    };
    if let [sge] = sges {
        let addr = sge.addr.checked_add(offset).ok_or(WcStatus::LocalProtection)?;
        return Ok(Payload::One(grant(addr, len as u32, sge)?));
    }
    let mut grants = Vec::with_capacity(sges.len());
    for piece in Pieces::new(sges, offset, len) {
        grants.push(grant(piece.addr.ok_or(WcStatus::LocalProtection)?, piece.len, piece.sge)?);
    }
    Ok(Payload::Gather(grants))
}

/// Copies the data of a work request, which has as many bytes as `out`.
#[inline]
pub(super) fn gather_into(
    mrs: &MrTable,
    pd: PdId,
    data: &Data,
    out: &mut [u8],
) -> Result<(), WcStatus> {
    let sges = match data {
        Data::Inline(bytes) => {
            out.copy_from_slice(bytes.as_slice());
            return Ok(());
        }
        Data::Sges(sges) => sges.as_slice(),
    };
    let copy = |lkey, addr, out: &mut [u8]| {
        let loan = mrs.lend_local::<Read>(pd, lkey, addr, out.len() as u32);
        let copied = loan.is_ok_and(|loan| loan.copy_out(out).is_ok());
        copied.then_some(()).ok_or(WcStatus::LocalProtection)
    };
    // Most short messages are in one piece.
    if let [sge] = sges {
        return copy(sge.lkey, sge.addr, out);
    }
    let mut rest = out;
    for piece in Pieces::new(sges, 0, rest.len()) {
        let (now, later) = rest.split_at_mut(piece.len as usize);
        copy(piece.sge.lkey, piece.addr.ok_or(WcStatus::LocalProtection)?, now)?;
        rest = later;
    }
    Ok(())
}

/// Registered memory that work requests of one protection domain send from. Requests in a row
/// mostly name the same key, so the last one is looked up once.
#[derive(Debug)]
pub(super) struct Keys<'a> {
    mrs: &'a MrTable,
    pd: PdId,
    last: Cell<Option<(Lkey, LocalMr<'a>)>>,
}

impl<'a> Keys<'a> {
    #[inline]
    pub(super) fn new(mrs: &'a MrTable, pd: PdId) -> Self {
        Self { mrs, pd, last: Cell::new(None) }
    }

    /// The right to read `len` bytes at `addr`, which are not none.
    #[inline]
    fn lend(&self, lkey: Lkey, addr: u64, len: u32) -> Option<Loan<'a, Read>> {
        let mr = match self.last.get() {
            Some((last, mr)) if last == lkey => mr,
            _ => self.look_up(lkey)?,
        };
        mr.lend(addr, len).ok()
    }

    #[inline(never)]
    fn look_up(&self, lkey: Lkey) -> Option<LocalMr<'a>> {
        let mr = self.mrs.local(self.pd, lkey).ok()?;
        self.last.set(Some((lkey, mr)));
        Some(mr)
    }
}

/// Most bytes that are gathered before they are copied to where they go. A second copy of so few
/// takes less time than asking for the pieces of a source.
pub(super) const SHORT: usize = 64;

/// The data of a work request, to be copied in one go.
#[derive(Debug)]
pub(super) enum Outgoing<'a, 'k> {
    /// Inline, or short and gathered.
    Bytes(&'a [u8]),
    /// In registered memory.
    Memory { keys: &'a Keys<'k>, sges: &'a [Sge] },
}

impl<'a, 'k> Outgoing<'a, 'k> {
    /// The data of a work request, which has `len` bytes; `room` is for short data.
    #[inline]
    pub(super) fn new(
        keys: &'a Keys<'k>,
        data: &'a Data,
        len: usize,
        room: &'a mut [u8; SHORT],
    ) -> Self {
        let sges = match data {
            Data::Inline(bytes) => return Self::Bytes(bytes.as_slice()),
            Data::Sges(sges) => sges.as_slice(),
        };
        if let ([sge], Some(room)) = (sges, room.get_mut(..len))
            && let Some(loan) = keys.lend(sge.lkey, sge.addr, sge.len)
            && loan.copy_out(room).is_ok()
        {
            return Self::Bytes(room);
        }
        Self::Memory { keys, sges }
    }
}

impl Source for Outgoing<'_, '_> {
    #[inline]
    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Memory { .. } => None,
        }
    }

    fn fetch(&self, offset: usize, landing: &mut Landing<'_>) -> bool {
        let len = landing.len();
        let (keys, sges) = match *self {
            Self::Bytes(bytes) => {
                let bytes = bytes.get(offset..).unwrap_or_default();
                landing.put(bytes);
                return bytes.len() >= len;
            }
            Self::Memory { keys, sges } => (keys, sges),
        };
        let lend = |piece: &Piece<'_>| keys.lend(piece.sge.lkey, piece.addr?, piece.len);
        let pieces = || Pieces::new(sges, offset as u64, len);
        if let [_] = sges {
            let loan = pieces().next().as_ref().and_then(lend);
            return loan.is_some_and(|loan| loan.land(landing).is_ok());
        }
        // All rights are checked before the first byte is copied.
        pieces().all(|piece| lend(&piece).is_some())
            && pieces().all(|piece| lend(&piece).is_some_and(|loan| loan.land(landing).is_ok()))
    }
}

/// Why received bytes could not be placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ScatterError {
    /// The buffers are too short.
    TooLong,
    /// A key, range or right is wrong.
    Protection,
    /// The sender took its memory back before the bytes were copied.
    Gone,
}

impl From<FetchError> for ScatterError {
    fn from(e: FetchError) -> Self {
        match e {
            FetchError::Gone => Self::Gone,
            _ => Self::Protection,
        }
    }
}

/// Writes `data` to the buffers of a work request, from `offset` of the message on. All rights
/// are checked before the first byte is written.
#[inline]
pub(super) fn scatter(
    mrs: &MrTable,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    data: RxPayload<'_>,
) -> Result<(), ScatterError> {
    if data.len() == 0 {
        return Ok(());
    }
    // Most short messages go to one piece.
    if offset == 0
        && let Some(loan) = lend_whole(mrs, pd, sges, data.len())
    {
        return Ok(data.place(&loan)?);
    }
    scatter_pieces(mrs, pd, sges, offset, data)
}

/// The right to write a whole message to the buffers of a work request, if they are one piece and
/// it may be had.
#[inline]
pub(super) fn lend_whole<'a>(
    mrs: &'a MrTable,
    pd: PdId,
    sges: &[Sge],
    len: usize,
) -> Option<Loan<'a, Write>> {
    match sges {
        [sge] if len <= sge.len as usize => mrs.lend_local(pd, sge.lkey, sge.addr, len as u32).ok(),
        _ => None,
    }
}

/// As [`scatter`], for a message or buffers in several pieces. Out of line, to keep the common
/// case small.
#[inline(never)]
fn scatter_pieces(
    mrs: &MrTable,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    data: RxPayload<'_>,
) -> Result<(), ScatterError> {
    let lend = |piece: &Piece<'_>| {
        let addr = piece.addr.ok_or(ScatterError::Protection)?;
        let loan = mrs.lend_local::<Write>(pd, piece.sge.lkey, addr, piece.len);
        loan.map_err(|_| ScatterError::Protection)
    };
    let pieces = || Pieces::new(sges, offset, data.len());
    let first = pieces().next().ok_or(ScatterError::TooLong)?;
    if first.len as usize == data.len() {
        return Ok(data.place(&lend(&first)?)?);
    }
    let mut room = 0;
    for piece in pieces() {
        lend(&piece)?;
        room += piece.len as usize;
    }
    if room < data.len() {
        return Err(ScatterError::TooLong);
    }
    let mut done = 0;
    for piece in pieces() {
        data.copy(done, piece.len as usize, &lend(&piece)?)?;
        done += piece.len as usize;
    }
    Ok(())
}
