//! Peers whose process has ended without a message.

use feroce_train::{Instant, PortAddr};
use feroce_wire::cm::CommId;

use super::Manager;
use crate::conn::{Conn, DreqSent, Established, RepRcvd, RepSent, TimeWait};
use crate::event::{Cause, Event};

impl Manager {
    /// Ends the connections with peers that have gone. `is_gone` says so of a peer's port and of
    /// its communication id: processes that share a port differ in those. The kernel would send a
    /// DREQ in the name of a process that is killed, so the consumer gets the same event as after
    /// one.
    pub fn handle_departure(&mut self, now: Instant, is_gone: impl Fn(PortAddr, CommId) -> bool) {
        for id in self.table.with_remote(is_gone) {
            self.change(id, |conn, _, out| {
                let ends = match conn {
                    Conn::Established(Established { ends, .. })
                    | Conn::RepRcvd(RepRcvd { ends, .. })
                    | Conn::DreqSent(DreqSent { ends, .. }) => ends,
                    // No RTU will arrive.
                    Conn::RepSent(RepSent { ends, .. }) => {
                        out.tell(ends.is_silent, Event::Unreachable { conn: ends.conn() });
                        return None;
                    }
                    other => return Some(other),
                };
                Some(Conn::TimeWait(TimeWait::enter(ends, now, Cause::Gone, out)))
            });
        }
    }
}
