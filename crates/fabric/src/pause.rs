//! Pause frames: who is told to stop, who obeys, and the watchdog.

use alloc::vec::Vec;

use crate::Time;
use crate::fabric::{Event, Fabric, Output};
use crate::pfc::PauseEvent;
use crate::port::{Paused, Port, PortId};
use crate::stats::{DropReason, PortStats};
use crate::topology::{NodeId, PortName};

impl<B> Fabric<B> {
    /// Takes the record of pauses ([`Config::log_pauses`](crate::Config::log_pauses)).
    pub fn take_pauses(&mut self) -> Vec<PauseEvent> {
        core::mem::take(&mut self.pauses)
    }

    /// What happened at every port up to `now`, with pauses that have not ended.
    pub fn final_stats(&self, now: Time) -> Vec<(PortName, PortStats)> {
        let of = |port: &Port| {
            let mut stats = port.stats.clone();
            let open = port.paused.iter().filter(|paused| paused.until.is_some());
            stats.paused_ps += open.map(|paused| now.ps_since(paused.since)).sum::<u64>();
            (PortName { node: port.node, port: port.local }, stats)
        };
        self.ports.iter().map(of).collect()
    }

    /// A host tells its switch to stop sending in a priority, or to go on: a receiver that is too
    /// slow, or broken.
    ///
    /// # Panics
    /// If there is no such host, or no such priority.
    pub fn pause_from_host(&mut self, now: Time, host: u32, priority: u8, is_on: bool) {
        self.now = now.max(self.now);
        self.send_pause(self.port_of_host(host), priority, is_on);
    }

    /// The same, but the host repeats the frame until it lets the switch go on: a storm.
    ///
    /// # Panics
    /// If there is no such host, or no such priority.
    pub fn storm_from_host(&mut self, now: Time, host: u32, priority: u8) {
        let id = self.port_of_host(host);
        let (is_first, rate) = (self.ports[id as usize].pausing == 0, self.ports[id as usize].rate);
        self.pause_from_host(now, host, priority, true);
        let ps = self.config.pfc.and_then(|pfc| pfc.pause_ps(rate));
        if let Some(ps) = ps.filter(|_| is_first) {
            self.agenda.push(self.now.plus_ps(ps / 2), Event::Refresh(id));
        }
    }

    /// Tells the sender behind a port of a switch to stop, if it should and does not know.
    pub(crate) fn pause_if_needed(&mut self, node: NodeId, ingress: usize, priority: u8) {
        let Some(buffer) = &self.buffers[node] else { return };
        if !buffer.should_pause(ingress, usize::from(priority)) {
            return;
        }
        let Some(pfc) = self.config.pfc.filter(|pfc| pfc.covers(priority)) else { return };
        let id = self.ports_of[node][ingress];
        if self.ports[id as usize].pausing & (1 << priority) != 0 {
            return;
        }
        self.send_pause(id, priority, true);
        if let Some(ps) = pfc.pause_ps(self.ports[id as usize].rate) {
            self.agenda.push(self.now.plus_ps(ps / 2), Event::Refresh(id));
        }
    }

    /// Lets the sender behind a port of a switch go on, if it may.
    pub(crate) fn resume_if_possible(&mut self, node: NodeId, ingress: usize, priority: u8) {
        let id = self.ports_of[node][ingress];
        if self.ports[id as usize].pausing & (1 << priority) == 0 {
            return;
        }
        let Some(buffer) = &self.buffers[node] else { return };
        if buffer.should_resume(ingress, usize::from(priority)) {
            self.send_pause(id, priority, false);
        }
    }

    /// Queues a pause frame at a port. It goes before all packets, behind the one that is being
    /// sent.
    fn send_pause(&mut self, id: PortId, priority: u8, is_on: bool) {
        let (port, bit) = (&mut self.ports[id as usize], 1 << priority);
        port.notices |= bit;
        (port.notices_on, port.pausing) = match is_on {
            true => (port.notices_on | bit, port.pausing | bit),
            false => (port.notices_on & !bit, port.pausing & !bit),
        };
        self.wake(id);
    }

    /// Half of the time that the last pause frames of a port said is over.
    pub(crate) fn refresh(&mut self, id: PortId) {
        if self.config.infiniband.is_some() {
            return self.tell_all(id);
        }
        let port = &self.ports[id as usize];
        let ps = self.config.pfc.and_then(|pfc| pfc.pause_ps(port.rate));
        let (Some(ps), pausing) = (ps, port.pausing) else { return };
        if pausing == 0 || !port.is_up {
            return;
        }
        for priority in (0..8u8).filter(|p| pausing & (1 << p) != 0) {
            self.send_pause(id, priority, true);
        }
        self.agenda.push(self.now.plus_ps(ps / 2), Event::Refresh(id));
    }

    /// A pause frame arrives at a port.
    pub(crate) fn on_pause(&mut self, id: PortId, priority: u8, is_on: bool) -> Option<Output<B>> {
        let pfc = self.config.pfc?;
        let is_host = self.is_host(self.ports[id as usize].node);
        let port = &mut self.ports[id as usize];
        if self.config.log_pauses {
            let (at, node, local) = (self.now, port.node, port.local);
            let event = PauseEvent { at, node, is_host, port: local, priority, is_on };
            self.pauses.push(event);
        }
        if !is_on {
            return self.unpause(id, priority);
        }
        let until = match pfc.pause_ps(port.rate) {
            Some(ps) => self.now.plus_ps(ps),
            None => Time::from_ps(u64::MAX),
        };
        let paused = &mut port.paused[usize::from(priority)];
        let is_new = paused.until.is_none();
        paused.until = Some(until);
        if is_new {
            paused.since = self.now;
            port.stopped |= 1 << priority;
            port.stats.pauses += 1;
            if let Some(ps) = pfc.watchdog_ps {
                self.agenda.push(self.now.plus_ps(ps), Event::PauseEnd(id));
            }
        }
        if pfc.quanta.is_some() {
            self.agenda.push(until, Event::PauseEnd(id));
        }
        None
    }

    /// A priority of a port may send again.
    fn unpause(&mut self, id: PortId, priority: u8) -> Option<Output<B>> {
        let port = &mut self.ports[id as usize];
        let paused = core::mem::take(&mut port.paused[usize::from(priority)]);
        paused.until?;
        port.stats.paused_ps += self.now.ps_since(paused.since);
        port.stopped &= !(1 << priority);
        port.discarding &= !(1 << priority);
        let is_idle = !port.is_free_due && port.busy_until <= self.now && port.has_work();
        if is_idle {
            return self.send_next(id);
        }
        self.wake(id);
        None
    }

    /// The time of a pause is over, or the watchdog looks.
    pub(crate) fn on_pause_end(&mut self, id: PortId) -> Option<Output<B>> {
        if self.config.infiniband.is_some() {
            return self.on_lifetime(id);
        }
        let watchdog_ps = self.config.pfc.and_then(|pfc| pfc.watchdog_ps);
        let mut output = None;
        for priority in 0..8u8 {
            let (port, bit) = (&mut self.ports[id as usize], 1 << priority);
            let Paused { until, since } = port.paused[usize::from(priority)];
            let Some(until) = until else { continue };
            if until <= self.now {
                output = self.unpause(id, priority).or(output);
            } else if port.discarding & bit == 0
                && watchdog_ps.is_some_and(|ps| self.now.ps_since(since) >= ps)
            {
                port.discarding |= bit;
                self.discard(id, bit, DropReason::Watchdog);
                output = self.send_next(id).or(output);
            }
        }
        output
    }

    /// A link has come up: neither end remembers a pause.
    pub(crate) fn forget_pauses(&mut self, id: PortId) {
        for priority in 0..8u8 {
            let _ = self.unpause(id, priority);
        }
        let port = &mut self.ports[id as usize];
        (port.pausing, port.notices) = (0, 0);
    }
}
