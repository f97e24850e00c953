//! The server: it accepts connections.

use std::collections::HashMap;

use feroce::cm::{CmId, EventKind};
use feroce::{Cq, Pd, Qp, QpCap};

use super::super::end::next_event;

/// Accepts connections and their disconnections, until `most` have ended or the user interrupts the
/// program. Returns how many have ended.
pub(super) fn serve(listener: &CmId, most: Option<u32>) -> (u32, anyhow::Result<()>) {
    let mut server = Server::default();
    while most.is_none_or(|most| server.gone < most) {
        if let Err(e) = server.step(listener) {
            return (server.gone, Err(e));
        }
    }
    (server.gone, Ok(()))
}

#[derive(Default)]
struct Server {
    /// Connections by number. The id drops before its queue pair, so that it can disconnect first.
    connections: HashMap<u64, (CmId, Qp)>,
    /// PD and CQ by device, shared by its queue pairs, which never carry data.
    shared: HashMap<String, (Pd, Cq)>,
    gone: u32,
}

impl Server {
    fn step(&mut self, listener: &CmId) -> anyhow::Result<()> {
        let event = next_event(&listener.channel())?;
        match event.kind {
            EventKind::ConnectRequest => self.accept(event.id),
            EventKind::Disconnected => {
                event.id.disconnect()?;
                self.forget(&event.id);
                Ok(())
            }
            EventKind::Unreachable | EventKind::Rejected | EventKind::ConnectError => {
                self.forget(&event.id);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn forget(&mut self, id: &CmId) {
        if self.connections.remove(&id.number()).is_some() {
            self.gone += 1;
        }
    }

    fn accept(&mut self, id: CmId) -> anyhow::Result<()> {
        let Some(context) = id.context() else { return Ok(()) };
        let name = context.device().name().to_owned();
        if !self.shared.contains_key(&name) {
            self.shared.insert(name.clone(), (context.alloc_pd()?, context.create_cq(1)?));
        }
        let (pd, cq) = &self.shared[&name];
        let qp = pd.rc_qp(cq, cq, QpCap::new(1, 1)).create()?;
        id.use_qp(&qp)?;
        id.accept(&id.offered().unwrap_or_default())?;
        self.connections.insert(id.number(), (id, qp));
        Ok(())
    }
}
