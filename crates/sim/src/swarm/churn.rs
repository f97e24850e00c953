//! Objects of a device with several shards come and go while traffic runs, and all go in the end.
//! Each must be in every shard, or in none.

use feroce_engine::DestroyError;
use feroce_mem::{Access, Rereg};
use feroce_wire::Lkey;

use crate::kernel::Happening;
use crate::oracle::Violation;
use crate::swarm::node::{Domain, Node};
use crate::swarm::shards::{Cq, Spare, alloc_pd, dealloc_pd, deregister, query_mr, register};
use crate::swarm::world::World;

fn bad(what: String) -> Violation {
    Violation::new("shards", what)
}

impl World {
    /// A node makes objects that no flow uses, or destroys some.
    pub(crate) fn churn(&mut self, node: usize) -> Result<(), Violation> {
        let count = self.nodes[node].spares.len();
        if count > 0 && self.for_shards.chance(0.3) {
            self.kernel.record(Happening::Did { what: "changes an object of node", whom: node });
            let spare = self.for_shards.size(0..=count - 1);
            self.change_spare(node, spare)?;
        } else if count > 0 && self.for_shards.chance(0.5) {
            self.kernel.record(Happening::Did { what: "destroys objects of node", whom: node });
            let spare = self.for_shards.size(0..=count - 1);
            let spare = self.nodes[node].spares.swap_remove(spare);
            self.destroy_spare(node, &spare)?;
        } else {
            self.kernel.record(Happening::Did { what: "makes objects of node", whom: node });
            self.make_spare(node)?;
        }
        self.pump(node);
        Ok(())
    }

    fn make_spare(&mut self, node: usize) -> Result<(), Violation> {
        let (host, dice) = (&mut self.kernel.hosts[node], &mut self.for_shards);
        let Node { memory, spares, .. } = &mut self.nodes[node];
        let pd = alloc_pd(host);
        let at = dice.size(0..=memory.region.len() - 1);
        let len = dice.size(1..=memory.region.len() - at);
        let access = dice.pick(&[Access::LOCAL_WRITE, Access::REMOTE_READ, Access::empty()]);
        let mr = register(host, memory, pd, (at, len), access, (None, dice));
        let cq = Cq::create(host, dice.range(1..=64) as u32);
        spares.push(Spare { pd, mr, cq });
        match query_mr(host, mr.lkey()) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(bad(format!("node {node}: what was registered is nowhere"))),
            Err(what) => Err(bad(format!("node {node}: {what}"))),
        }
    }

    /// Changes the rights of a registration.
    fn change_spare(&mut self, node: usize, spare: usize) -> Result<(), Violation> {
        let (host, key) = (&mut self.kernel.hosts[node], self.nodes[node].spares[spare].mr.lkey());
        let access = Some(self.for_shards.pick(&[Access::LOCAL_WRITE, Access::REMOTE_READ]));
        for shard in &mut host.shards {
            let changed = shard.engine.rereg_mr(key, Rereg { access, ..Rereg::default() });
            let old = changed.map_err(|e| bad(format!("node {node}: key {:#x}: {e}", key.0)))?;
            if !old.is_quiet() {
                return Err(bad(format!("node {node}: key {:#x} is in use", key.0)));
            }
        }
        query_mr(host, key).map(|_| ()).map_err(|what| bad(format!("node {node}: {what}")))
    }

    fn destroy_spare(&mut self, node: usize, spare: &Spare) -> Result<(), Violation> {
        let &Spare { pd, mr, ref cq } = spare;
        let host = &mut self.kernel.hosts[node];
        if dealloc_pd(host, pd) != Err(DestroyError::Busy) {
            return Err(bad(format!("node {node}: a protection domain with memory can go")));
        }
        self.end_key(node, mr.lkey())?;
        let host = &mut self.kernel.hosts[node];
        let ends = [("domain", dealloc_pd(host, pd)), ("completion queue", cq.destroy(host))];
        expect_gone(node, &ends)
    }

    /// Deregisters memory that no request uses any more.
    fn end_key(&mut self, node: usize, key: Lkey) -> Result<(), Violation> {
        let host = &mut self.kernel.hosts[node];
        let ended = deregister(host, key, None);
        let ended = ended.map_err(|e| bad(format!("node {node}: key {:#x}: {e}", key.0)))?;
        if !ended.iter().all(|dereg| dereg.is_quiet()) {
            return Err(bad(format!("node {node}: key {:#x} has ended and is in use", key.0)));
        }
        query_mr(host, key).map(|_| ()).map_err(|what| bad(format!("node {node}: {what}")))
    }

    /// The end of a node with several shards: everything can be destroyed in every shard.
    pub(crate) fn tear_down(&mut self, node: usize) -> Result<(), Violation> {
        for end in 0..self.ends.len() {
            if self.ends[end].node != node || self.state(end).is_none() {
                continue;
            }
            let (qpn, ah) = (self.ends[end].qpn, self.ends[end].ah);
            let gone = self.engine(end).destroy_qp(qpn);
            let ah = ah.map_or(Ok(()), |ah| self.engine(end).destroy_ah(ah));
            expect_gone(node, &[("queue pair", gone), ("address handle", ah)])?;
        }
        for spare in std::mem::take(&mut self.nodes[node].spares) {
            self.destroy_spare(node, &spare)?;
        }
        for mr in self.nodes[node].mrs.clone() {
            // Some keys have ended in a mishap.
            let known = query_mr(&self.kernel.hosts[node], mr.lkey());
            if known.map_err(|what| bad(format!("node {node}: {what}")))?.is_some() {
                self.end_key(node, mr.lkey())?;
            }
        }
        let (host, own) = (&mut self.kernel.hosts[node], &self.nodes[node]);
        for shared in &own.srqs {
            expect_gone(node, &[("shared queue", host.first().destroy_srq(shared.id))])?;
        }
        expect_gone(node, &[("XRC domain", host.first().dealloc_xrcd(own.xrcd))])?;
        for cq in &own.cqs {
            expect_gone(node, &[("completion queue", cq.destroy(host))])?;
        }
        for Domain { pd, .. } in &own.domains {
            expect_gone(node, &[("domain", dealloc_pd(host, *pd))])?;
        }
        Ok(())
    }
}

fn expect_gone(node: usize, ends: &[(&str, Result<(), DestroyError>)]) -> Result<(), Violation> {
    match ends.iter().find_map(|(what, end)| Some((what, end.err()?))) {
        Some((what, why)) => Err(bad(format!("node {node}: {what} stays: {why}"))),
        None => Ok(()),
    }
}
