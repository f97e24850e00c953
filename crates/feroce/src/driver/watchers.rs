//! What the driver thread tells other processes that look into the device.

use feroce_link::FaultConfig;
use feroce_train::Instant;
use feroce_wire::Qpn;

use super::{Driver, clock};
use crate::stack::Faults;
use crate::watch::{self, Request};

impl Driver {
    /// Tells processes that look into the device what it does, if there are any.
    pub(super) fn answer_watchers(&self, device: &str) {
        let Some(watch) = &self.watch else { return };
        watch.answer(|| {
            let (link, faults) = self.at_link(|link| (self.counters_of(link), link.faults.get()));
            let state = self.read(|state| watch::State {
                device,
                addresses: state.addresses(),
                age_ns: self.now().as_nanos().saturating_sub(clock::AT_START_NS),
                counters: state.engine.counters(),
                drops: *state.engine.drops(),
                link,
                fault: faults.map(|fault| fault.to_string()),
                report: state.engine.report(),
                connections: state.agent.as_ref().map_or_else(Vec::new, |a| a.connections()),
            });
            watch::write(&state)
        });
        watch.answer_requests(|request| match request {
            Request::Packets(qpn) => self.packets_of(qpn),
            Request::Fault(text) => {
                let parsed = text.parse::<FaultConfig>().map_err(|e| e.to_string());
                // A thread that receives takes the change from the switch.
                let faults = self.at_link(|link| link.faults.clone());
                let set = parsed.and_then(|fault| faults.set(fault).map_err(str::to_owned));
                watch::outcome(set)
            }
        });
    }

    /// Says which faults the link injects.
    pub(crate) fn set_faults(&self, faults: Faults) {
        self.at_link(|link| link.faults = faults);
    }

    /// The last packets of a queue pair. They are recorded from the first call on.
    fn packets_of(&self, qpn: Qpn) -> String {
        let qps = self.read(|state| state.engine.report().qps);
        let Some(qp) = qps.iter().find(|qp| qp.qpn == qpn) else {
            return watch::refuse(format_args!("there is no queue pair {:#08x}", qpn.get()));
        };
        self.at_link(|link| match &link.streams {
            None => {
                let now = self.now();
                let start = Instant::from_nanos(clock::AT_START_NS);
                link.record(now, |log| log.answer(now, start, qpn, qp.peer))
            }
            Some(_) => watch::refuse(format_args!(
                "iWARP has TCP connections and no packets: the setting `trace` shows its segments"
            )),
        })
    }
}
