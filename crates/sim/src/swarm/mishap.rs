//! Mishaps that are planned: wrong keys and missing or short receives.

use feroce_engine::{Data, SendOp, SgeList};

use crate::swarm::flow::Mishap;
use crate::swarm::plan::Planner;
use crate::swarm::step::Step;

impl Planner<'_> {
    /// Changes the program of the flow for its mishap, if the mishap is one of what is posted.
    pub(crate) fn spoil(&mut self) {
        let Some(mishap) = self.ends[self.first].mishap else { return };
        let side = self.dice.size(0..=1);
        let count = self.ends[self.first + side].steps.len();
        if count == 0 {
            return;
        }
        let victim = self.dice.size(0..=count - 1);
        // Another tag, or an index that no table reaches: a neighbour's key may be right by chance.
        let bad = self.dice.pick(&[1u32 << 31, 1, 0xff00_0000]);
        let end = &mut self.ends[self.first + side];
        match mishap {
            Mishap::BadRemote => {
                for step in &mut end.steps[victim..] {
                    if spoil_remote(&mut step.wr.op, bad) {
                        break;
                    }
                }
            }
            Mishap::BadLocal | Mishap::SendError => {
                let steps = end.steps[victim..].iter_mut();
                for Step { wr, .. } in steps {
                    let Data::Sges(sges) = &wr.data else { continue };
                    if sges.total_len() == 0 {
                        continue;
                    }
                    let mut sges = sges.as_slice().to_vec();
                    sges.iter_mut().for_each(|sge| sge.lkey.0 ^= bad);
                    wr.data = Data::Sges(SgeList::new(&sges));
                    break;
                }
            }
            Mishap::ShortReceive => {
                let peer = &mut self.ends[self.first + (side ^ 1)];
                for recv in &mut peer.recvs {
                    if recv.wr.sges.total_len() > 0 && self.dice.chance(0.3) {
                        recv.wr.sges = SgeList::EMPTY;
                    }
                }
            }
            Mishap::NoReceives => self.ends[self.first + (side ^ 1)].recv_delay_ns = u64::MAX,
            _ => {}
        }
    }
}

/// Gives the request a wrong remote key. False: it has none.
fn spoil_remote(op: &mut SendOp, bad: u32) -> bool {
    match op {
        SendOp::Write(remote)
        | SendOp::WriteImm(remote, _)
        | SendOp::Read(remote)
        | SendOp::CmpSwap { remote, .. }
        | SendOp::FetchAdd { remote, .. }
        | SendOp::AtomicWrite(remote)
        | SendOp::Flush { remote, .. } => {
            remote.rkey.0 ^= bad;
            true
        }
        _ => false,
    }
}
