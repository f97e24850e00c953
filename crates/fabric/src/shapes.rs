//! Topologies that are made by a rule.

use crate::Rate;
use crate::topology::{Node, NodeId, Topology};

impl Topology {
    /// Hosts `h0`, `h1`, ... around one switch `s0`, which is the last node.
    pub fn star(hosts: usize, rate: Rate, delay_ps: u64) -> Self {
        Self::chain(1, hosts, rate, delay_ps)
    }

    /// Leaves with hosts, each connected to every spine. Hosts come first, then `leaf0`, ..., then
    /// `spine0`, ...
    pub fn leaf_spine(
        leaves: usize,
        spines: usize,
        hosts: usize,
        rate: Rate,
        delay_ps: u64,
    ) -> Self {
        let mut topology = Self::default();
        topology.add_many(Node::Host, "h", leaves * hosts);
        topology.add_many(Node::Switch, "leaf", leaves);
        topology.add_many(Node::Switch, "spine", spines);
        topology.connect_hosts(leaves, hosts, rate, delay_ps);
        for leaf in 0..leaves {
            for spine in 0..spines {
                let (a, b) = (leaves * hosts + leaf, leaves * (hosts + 1) + spine);
                topology.connect(a, b, rate, delay_ps);
            }
        }
        topology
    }

    /// A ring of switches with a host at each. Hosts come first.
    pub fn ring(switches: usize, rate: Rate, delay_ps: u64) -> Self {
        let mut topology = Self::chain(switches, 1, rate, delay_ps);
        topology.connect(2 * switches - 1, switches, rate, delay_ps);
        topology
    }

    /// Switches in a row with `hosts` hosts at each: those that send towards the end of the row
    /// share more and more of its links. Hosts come first.
    pub fn parking_lot(switches: usize, hosts: usize, rate: Rate, delay_ps: u64) -> Self {
        Self::chain(switches, hosts, rate, delay_ps)
    }

    /// A grid of switches whose rows are closed to rings, in as many dimensions as `dims` has
    /// entries, with `hosts` hosts at each switch. Hosts come first; the first coordinate of
    /// switches counts fastest.
    pub fn torus(dims: &[usize], hosts: usize, rate: Rate, delay_ps: u64) -> Self {
        let switches: usize = dims.iter().product();
        let mut topology = Self::default();
        topology.add_many(Node::Host, "h", switches * hosts);
        topology.add_many(Node::Switch, "s", switches);
        topology.connect_hosts(switches, hosts, rate, delay_ps);
        for switch in 0..switches {
            let mut stride = 1;
            for &len in dims {
                let at = switch / stride % len;
                let next = switch - at * stride + (at + 1) % len * stride;
                // Two switches in a row have one link, not one in each direction round.
                if len > 2 || (len == 2 && at == 0) {
                    let first = switches * hosts;
                    topology.connect(first + switch, first + next, rate, delay_ps);
                }
                stride *= len;
            }
        }
        topology
    }

    /// A fat tree of switches with `k` ports (`k` even): `k` pods of `k/2` edge and `k/2`
    /// aggregation switches, `k*k/4` core switches, `k*k*k/4` hosts. Hosts come first, then
    /// `edge0`, ..., `agg0`, ... and `core0`, ...
    pub fn fat_tree(k: usize, rate: Rate, delay_ps: u64) -> Self {
        let half = k / 2;
        let (hosts, pods) = (k * half * half, k * half);
        let mut topology = Self::default();
        topology.add_many(Node::Host, "h", hosts);
        topology.add_many(Node::Switch, "edge", pods);
        topology.add_many(Node::Switch, "agg", pods);
        topology.add_many(Node::Switch, "core", half * half);
        let (edge, aggregation, core) = (hosts, hosts + pods, hosts + 2 * pods);
        topology.connect_hosts(pods, half, rate, delay_ps);
        for pod in 0..k {
            for i in 0..half {
                for j in 0..half {
                    let (e, a) = (edge + pod * half + i, aggregation + pod * half + j);
                    topology.connect(e, a, rate, delay_ps);
                    topology.connect(a, core + j * half + i, rate, delay_ps);
                }
            }
        }
        topology
    }

    /// Switches in a row, with hosts at each. Hosts come first.
    fn chain(switches: usize, hosts: usize, rate: Rate, delay_ps: u64) -> Self {
        let mut topology = Self::default();
        topology.add_many(Node::Host, "h", switches * hosts);
        topology.add_many(Node::Switch, "s", switches);
        topology.connect_hosts(switches, hosts, rate, delay_ps);
        let first = switches * hosts;
        for i in 1..switches {
            topology.connect(first + i - 1, first + i, rate, delay_ps);
        }
        topology
    }

    /// Connects `hosts` hosts with each of the switches that follow all hosts.
    fn connect_hosts(&mut self, switches: usize, hosts: usize, rate: Rate, delay_ps: u64) {
        for host in 0..switches * hosts {
            let switch: NodeId = switches * hosts + host / hosts;
            self.connect(host, switch, rate, delay_ps);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const RATE: Rate = Rate::from_gbps(100);

    #[test]
    fn the_made_topologies_have_the_nodes_and_links_they_should() {
        let count = |t: &Topology| {
            t.check().expect("a sound topology");
            (t.hosts().count(), t.nodes().len() - t.hosts().count(), t.links().len())
        };
        assert_eq!(count(&Topology::star(3, RATE, 0)), (3, 1, 3));
        assert_eq!(count(&Topology::leaf_spine(4, 4, 8, RATE, 0)), (32, 8, 48));
        assert_eq!(count(&Topology::ring(5, RATE, 0)), (5, 5, 10));
        assert_eq!(count(&Topology::parking_lot(3, 2, RATE, 0)), (6, 3, 8));
        assert_eq!(count(&Topology::torus(&[4, 3], 1, RATE, 0)), (12, 12, 36));
        assert_eq!(count(&Topology::torus(&[3, 3, 3], 2, RATE, 0)), (54, 27, 135));
        assert_eq!(count(&Topology::torus(&[2, 2], 1, RATE, 0)), (4, 4, 8));
        assert_eq!(count(&Topology::fat_tree(4, RATE, 0)), (16, 20, 48));
        assert_eq!(count(&Topology::fat_tree(16, RATE, 0)), (1024, 320, 3072));
    }

    #[test]
    fn switches_of_a_torus_have_their_neighbours_in_every_dimension() {
        let torus = Topology::torus(&[3, 4], 1, RATE, 0);
        let at = torus.find("s0").expect("a switch");
        let neighbours: Vec<_> = torus
            .links()
            .iter()
            .filter(|link| link.ends.contains(&at))
            .map(|link| torus.name(link.ends[0] + link.ends[1] - at))
            .collect();
        assert_eq!(neighbours, ["h0", "s1", "s3", "s2", "s9"]);
    }

    #[test]
    fn nodes_are_named_by_what_they_are() {
        let names = |t: &Topology| -> Vec<_> {
            (0..t.nodes().len()).filter(|&i| i != 1).map(|i| t.name(i)).collect()
        };
        assert_eq!(
            names(&Topology::leaf_spine(2, 1, 1, RATE, 0)),
            ["h0", "leaf0", "leaf1", "spine0"]
        );
        assert_eq!(names(&Topology::star(2, RATE, 0)), ["h0", "s0"]);
        let tree = Topology::fat_tree(2, RATE, 0);
        assert_eq!(names(&tree), ["h0", "edge0", "edge1", "agg0", "agg1", "core0"]);
    }
}
