//! Operations that the adapter executes without sending anything.

use feroce_mem::Iova;

use crate::hca::cqe::WcStatus;
use crate::hca::qp::QpCommon;
use crate::hca::shared::Shared;
use crate::hca::wr::SendOp;

/// Executes an operation that sends nothing. Every failure is an error of memory management
/// (IBTA vol1 11.6.2).
pub(crate) fn execute_local(
    hca: &mut Shared,
    common: &QpCommon,
    op: &SendOp,
) -> Result<(), WcStatus> {
    let (pd, mrs) = (common.init.pd, &mut hca.mrs);
    let done = match *op {
        SendOp::BindMw { mw, new_rkey, binding } => {
            mrs.bind_mw(pd, common.qpn, mw, new_rkey, binding).is_ok()
        }
        SendOp::LocalInv(rkey) => mrs.invalidate_local(pd, rkey).is_ok(),
        SendOp::Reg { key, offset, len, iova, access } => {
            let range = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
            range.is_some_and(|(offset, len)| {
                mrs.map(pd, key, offset, len, Iova::At(iova), access).is_ok()
            })
        }
        _ => return Err(WcStatus::LocalQpOperation),
    };
    // A key may have changed its meaning, or have none any more.
    hca.revoke_answers();
    hca.hold_until_quiet(common.qpn, None);
    if done { Ok(()) } else { Err(WcStatus::MwBind) }
}
