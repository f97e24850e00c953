//! Hops of a directed route (IBTA vol1 14.2.2): what the subnet management interface of a node
//! does with a packet that it gets.
//!
//! A requester sends with hop pointer 0. Each hop moves the pointer up, and writes down the port of
//! arrival for the way back; a response moves it down again:
//!
//! ```text
//! requester      switch       switch       responder     hop count 3
//!     0 ----------> 1 ----------> 2 ----------> 3, then 4: its agent
//!     0 <---------- 1 <---------- 2 <---------- 3 <-------- 4
//! ```
//!
//! Packets may be routed by LIDs before the directed part (DrSLID is not permissive) and behind it
//! (DrDLID is not permissive).

use feroce_wire::Lid;
use feroce_wire::mad::{DirectedRoute, SMP_PATH_LEN, Smp};

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hop {
    /// It leaves by a port.
    Out(u8),
    /// The directed part is over; it goes on by LID.
    ByLid(Lid),
    /// It is for this node.
    Here,
    /// It must not be.
    Drop,
}

/// Takes one hop of a packet with a directed route, at a node that forwards (a switch) or not.
/// `arrived_by` is the port at which it came in; 0 if the node sends it.
pub(crate) fn take_hop(smp: &mut Smp, arrived_by: u8, forwards: bool) -> Hop {
    let Some(route) = smp.directed_route() else {
        return Hop::Drop;
    };
    if usize::from(route.hop_count) >= SMP_PATH_LEN || route.hop_pointer > route.hop_count + 1 {
        return Hop::Drop;
    }
    let hop = if route.is_returning {
        returning(smp, route, forwards)
    } else {
        outgoing(smp, route, arrived_by, forwards)
    };
    hop.unwrap_or(Hop::Drop)
}

fn outgoing(smp: &mut Smp, route: DirectedRoute, arrived_by: u8, forwards: bool) -> Option<Hop> {
    let DirectedRoute { hop_pointer, hop_count, .. } = route;
    let next = DirectedRoute { hop_pointer: hop_pointer.wrapping_add(1), ..route };
    if hop_pointer > hop_count {
        // Behind the directed part: it came by LID.
        return Some(Hop::Here);
    }
    if hop_pointer > 0 {
        *smp.return_path.get_mut(usize::from(hop_pointer))? = arrived_by;
    }
    smp.set_directed_route(next);
    if hop_pointer == hop_count {
        return Some(match smp.dr_dlid {
            Lid::PERMISSIVE => Hop::Here,
            _ if !forwards => Hop::Drop,
            lid => Hop::ByLid(lid),
        });
    }
    if hop_pointer > 0 && !forwards {
        return None;
    }
    smp.initial_path.get(usize::from(next.hop_pointer)).copied().map(Hop::Out)
}

fn returning(smp: &mut Smp, route: DirectedRoute, forwards: bool) -> Option<Hop> {
    let DirectedRoute { hop_pointer, hop_count, .. } = route;
    if hop_pointer == 0 {
        // Behind the directed part: it came by LID.
        return Some(Hop::Here);
    }
    let next = DirectedRoute { hop_pointer: hop_pointer - 1, ..route };
    smp.set_directed_route(next);
    if next.hop_pointer == 0 {
        return Some(match smp.dr_slid {
            Lid::PERMISSIVE => Hop::Here,
            lid => Hop::ByLid(lid),
        });
    }
    if hop_pointer <= hop_count && !forwards {
        return None;
    }
    smp.return_path.get(usize::from(next.hop_pointer)).copied().map(Hop::Out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use feroce_wire::mad::{Attribute, Class, MadHeader, Method};

    fn packet(path: &[u8]) -> Smp {
        let header = MadHeader::request(Class::SUBNET_DIRECTED, Method::GET, Attribute::NODE_INFO);
        Smp::by_path(header, path).expect("few hops")
    }

    fn turn_round(smp: &mut Smp) {
        let route = smp.directed_route().expect("a directed route");
        smp.set_directed_route(DirectedRoute { is_returning: true, ..route });
    }

    #[test]
    fn a_packet_goes_out_and_comes_back() {
        let mut smp = packet(&[1, 7, 2]);
        assert_eq!(take_hop(&mut smp, 0, false), Hop::Out(1));
        assert_eq!(take_hop(&mut smp, 4, true), Hop::Out(7));
        assert_eq!(take_hop(&mut smp, 5, true), Hop::Out(2));
        assert_eq!(take_hop(&mut smp, 1, false), Hop::Here);
        assert_eq!(smp.return_path[1..4], [4, 5, 1]);
        turn_round(&mut smp);
        assert_eq!(take_hop(&mut smp, 0, false), Hop::Out(1));
        assert_eq!(take_hop(&mut smp, 2, true), Hop::Out(5));
        assert_eq!(take_hop(&mut smp, 7, true), Hop::Out(4));
        assert_eq!(take_hop(&mut smp, 1, false), Hop::Here);
        assert_eq!(smp.directed_route().map(|route| route.hop_pointer), Some(0));
    }

    #[test]
    fn no_hops_are_this_node() {
        let mut smp = packet(&[]);
        assert_eq!(take_hop(&mut smp, 0, false), Hop::Here);
        turn_round(&mut smp);
        assert_eq!(take_hop(&mut smp, 0, false), Hop::Here);
    }

    #[test]
    fn lids_lead_to_and_from_the_directed_part() {
        let mut smp = Smp { dr_slid: Lid(1), dr_dlid: Lid(9), ..packet(&[3]) };
        assert_eq!(take_hop(&mut smp, 0, true), Hop::Out(3));
        assert_eq!(take_hop(&mut smp, 2, true), Hop::ByLid(Lid(9)));
        assert_eq!(take_hop(&mut smp, 1, false), Hop::Here);
        turn_round(&mut smp);
        assert_eq!(take_hop(&mut smp, 6, true), Hop::Out(2));
        assert_eq!(take_hop(&mut smp, 3, true), Hop::ByLid(Lid(1)));
        assert_eq!(take_hop(&mut smp, 1, false), Hop::Here);
    }

    #[test]
    fn adapters_do_not_forward_and_pointers_stay_in_the_path() {
        let mut smp = packet(&[1, 1]);
        assert_eq!(take_hop(&mut smp, 0, false), Hop::Out(1));
        assert_eq!(take_hop(&mut smp, 1, false), Hop::Drop);
        for (hop_pointer, hop_count) in [(5_u8, 3_u8), (0, 64), (255, 255), (64, 63)] {
            for is_returning in [false, true] {
                let mut smp = packet(&[1]);
                let route = DirectedRoute { is_returning, hop_pointer, hop_count };
                smp.set_directed_route(route);
                let hop = take_hop(&mut smp, 1, true);
                // One beyond the last hop is where the agent is.
                let is_end = u16::from(hop_pointer) == u16::from(hop_count) + 1;
                assert_eq!(hop == Hop::Drop, !is_end, "{route:?}: {hop:?}");
            }
        }
    }
}
