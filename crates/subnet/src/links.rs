//! Links that go down and come up.

use feroce_train::Instant;
use feroce_wire::mad::{LidTrap, PhysicalState, PortState, TrapNumber};

use crate::notify::KIND_URGENT;
use crate::packet::PortRef;
use crate::port::{Change, Port};
use crate::sma::Effect;
use crate::subnet::{Output, Subnet};

impl Subnet {
    /// Takes the link behind a port down, or lets it come up.
    pub fn set_link(&mut self, now: Instant, at: PortRef, is_up: bool) {
        let Some(peer) = self.port(at).and_then(|port| port.peer) else {
            return;
        };
        // The end of another part is that part's to cut.
        for end in [at, peer] {
            if self.is_here(end)
                && let Some(port) = self.port_mut(end)
            {
                port.is_cut = !is_up;
            }
        }
        match is_up {
            true => self.train_link(now, at),
            false => self.take_down(now, at, None),
        }
        self.run(now);
    }

    /// Does what an agent was told to do.
    pub(crate) fn take_effect(&mut self, now: Instant, at: PortRef, effect: Effect) {
        match effect {
            Effect::LinkDown(port, state) => {
                self.take_down(now, PortRef { port, ..at }, Some(state));
            }
            Effect::LinkPolls(port) => {
                let at = PortRef { port, ..at };
                if let Some(port) = self.port_mut(at) {
                    port.info.physical_state = PhysicalState::POLLING;
                }
                self.train_link(now, at);
            }
            Effect::Changed(port, change) => self.changed(PortRef { port, ..at }, change),
        }
    }

    /// Takes a link down. The end that asked for it goes into a state of its choice; if it is not
    /// disabled, and no operator cut the link, the link comes up again at once.
    fn take_down(&mut self, now: Instant, at: PortRef, state: Option<PhysicalState>) {
        let Some(peer) = self.port(at).and_then(|port| port.peer) else {
            if let (Some(port), Some(state)) = (self.port_mut(at), state) {
                port.info.physical_state = state;
            }
            return;
        };
        if !self.is_here(peer)
            && let Some(port) = self.port_mut(at).filter(|port| port.is_up())
        {
            port.turn = port.turn.wrapping_add(1);
        }
        for (end, state) in [(at, state), (peer, None)] {
            self.lose_link(now, end, state);
        }
        self.train_link(now, at);
    }

    /// A port has no link any more. It goes into a state of its choice, if it has one.
    pub(crate) fn lose_link(&mut self, now: Instant, at: PortRef, state: Option<PhysicalState>) {
        let is_here = self.is_here(at);
        let Some(port) = self.port_mut(at).filter(|_| is_here) else {
            return;
        };
        let was_active = port.is_active();
        if port.is_up() {
            port.counters.link_downed += 1;
            port.info.state = PortState::DOWN;
            port.info.physical_state = port.info.down_default;
            self.note_state_change(now, at);
        }
        if let (Some(port), Some(state)) = (self.port_mut(at), state) {
            port.info.physical_state = state;
        }
        if was_active {
            self.changed(at, Change::Inactive);
        }
    }

    /// Brings a link up if both ends look for each other.
    pub(crate) fn train_link(&mut self, now: Instant, at: PortRef) {
        let Some(peer) = self.port(at).and_then(|port| port.peer) else {
            return;
        };
        let polls = |port: &Port| port.is_ready() && !port.is_up();
        if ![at, peer].into_iter().all(|end| self.port(end).is_some_and(polls)) {
            return;
        }
        for end in [at, peer] {
            if !self.is_here(end) {
                continue;
            }
            if let Some(port) = self.port_mut(end) {
                port.info.state = PortState::INIT;
                port.info.physical_state = PhysicalState::LINK_UP;
            }
            self.note_state_change(now, end);
        }
    }

    /// A switch keeps and tells that the link of one of its ports went up or down.
    fn note_state_change(&mut self, now: Instant, at: PortRef) {
        let node = &mut self.nodes[at.node];
        if let Some(switch) = &mut node.switch {
            switch.info.port_state_change = true;
            let details = LidTrap { lid: node.ports[0].info.lid };
            node.notify(now, 0, KIND_URGENT, TrapNumber::LINK_STATE, details.to_bytes());
            self.touched.push(at.node);
        }
    }

    /// Programs behind a port of an adapter want to know.
    fn changed(&mut self, at: PortRef, change: Change) {
        if self.nodes[at.node].switch.is_none() {
            self.outputs.push_back(Output::Changed(at, change));
        }
    }
}
