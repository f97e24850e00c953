//! The port: its addresses, partition keys, MTU and state.

use feroce_train::GidEntry;
use feroce_wire::{Lid, Pkey, Pmtu};

use super::Engine;
use super::transport::Transport;
use crate::hca::event::AsyncEvent;

impl Engine {
    /// Sets an entry of the GID table and reports the change.
    pub fn set_gid(&mut self, index: u16, entry: GidEntry) {
        debug_assert!(
            entry.is_empty() || entry.framing.link_layer() == self.port.hca.config.link_layer,
            "the framing of a GID is one of the port's link layer"
        );
        let at = usize::from(index);
        if self.port.hca.gids.len() <= at {
            self.port.hca.gids.resize(at + 1, GidEntry::default());
        }
        if self.port.hca.gids[at] != entry {
            self.port.hca.gids[at] = entry;
            self.port.hca.revoke_answers();
            self.port.hca.event(AsyncEvent::GidChange { index, gid: entry.gid });
        }
    }

    /// Sets the LID that the subnet manager gave the port and reports the change.
    pub fn set_lid(&mut self, lid: Lid) {
        if self.port.hca.lid != lid {
            self.port.hca.lid = lid;
            self.port.hca.revoke_answers();
            self.port.hca.event(AsyncEvent::LidChange { lid });
        }
    }

    /// Sets how many LIDs the port has, as a power of two, and reports the change.
    ///
    /// # Panics
    /// If the number has more than three bits.
    pub fn set_lmc(&mut self, lmc: u8) {
        assert!(lmc < 8, "an LMC has three bits");
        if self.port.hca.lmc != lmc {
            self.port.hca.lmc = lmc;
            self.port.hca.revoke_answers();
            let lid = self.port.hca.lid;
            self.port.hca.event(AsyncEvent::LidChange { lid });
        }
    }

    /// Reports that another subnet manager manages the port, or that it is reached otherwise.
    pub fn report_sm_change(&mut self) {
        self.port.hca.event(AsyncEvent::SmChange);
    }

    /// Reports that the subnet manager asks clients to register anew.
    pub fn report_reregister(&mut self) {
        self.port.hca.event(AsyncEvent::ClientReregister);
    }

    /// Replaces the partition keys of the port and reports the change. Each queue pair takes the
    /// new key at its index; if the table has none there any more, its key matches no packet.
    pub fn set_pkeys(&mut self, pkeys: &[Pkey]) {
        self.port.hca.config.pkeys = pkeys.to_vec();
        self.port.hca.revoke_answers();
        let qps = self.qps.iter_mut().filter_map(Transport::ib);
        qps.for_each(|qp| qp.follow_pkey(&self.port));
        self.port.hca.event(AsyncEvent::PkeyChange);
    }

    /// Changes the greatest path MTU of the port. Queue pairs that already have one keep theirs,
    /// as the specification has no way to change it while they are connected.
    pub fn set_port_mtu(&mut self, mtu: Pmtu) {
        self.port.hca.config.port_mtu = mtu;
    }

    /// Reports that the port came up or went down, or that it is up with other attributes. Queue
    /// pairs notice by themselves that packets are lost.
    pub fn set_port_active(&mut self, active: bool) {
        self.port.hca.counters.link_downed += u64::from(!active);
        self.port.hca.event(if active { AsyncEvent::PortActive } else { AsyncEvent::PortError });
    }
}
