//! What the driver thread tells other processes that look into the device.

use feroce_link::{FaultConfig, LinkCounters};
use feroce_train::Instant;
use feroce_wire::Qpn;

use super::{Driver, clock};
use crate::stack::Faults;
use crate::watch::{self, Request};

/// Adds counters to those of the same name.
pub(crate) fn add_counters(all: &mut LinkCounters, more: LinkCounters) {
    for (name, count) in more {
        match all.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += count,
            None => all.push((name, count)),
        }
    }
}

impl Driver {
    /// Tells processes that look into the device what it does, if there are any.
    pub(super) fn answer_watchers(&self, device: &str) {
        let Some(watch) = &self.watch else { return };
        watch.answer(|| {
            let (link, faults) = self.at_link(|link| (self.counters_of(link), link.faults.get()));
            let mut state = self.read(|state| watch::State {
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
            for shard in self.siblings() {
                add_counters(&mut state.link, shard.link_counters());
                shard.read(|other| {
                    state.counters.add(&other.engine.counters());
                    state.drops.add(other.engine.drops());
                    state.report.add(other.engine.report());
                });
            }
            watch::write(&state)
        });
        watch.answer_requests(|request| match request {
            Request::Packets(qpn) => self.packets_of(qpn),
            Request::Fault(text) => {
                let parsed = text.parse::<FaultConfig>().map_err(|e| e.to_string());
                // A thread that receives takes the change from the switch.
                let set = |shard: &Self, fault: FaultConfig| {
                    let faults = shard.at_link(|link| link.faults.clone());
                    faults.set(fault).map_err(str::to_owned)
                };
                watch::outcome(parsed.and_then(|fault| {
                    set(self, fault.clone())?;
                    self.siblings().try_for_each(|shard| set(&shard, fault.clone()))
                }))
            }
        });
    }

    /// Says which faults the link injects.
    pub(crate) fn set_faults(&self, faults: Faults) {
        self.at_link(|link| link.faults = faults);
    }

    /// The last packets of a queue pair. They are recorded from the first call on.
    fn packets_of(&self, qpn: Qpn) -> String {
        if let Some(shard) = self.siblings().find(|shard| shard.is_home_of(qpn)) {
            return shard.packets_of(qpn);
        }
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
