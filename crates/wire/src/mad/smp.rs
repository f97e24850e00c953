//! Subnet management packets (IBTA vol1 14.2.1): routed by LIDs, or hop by hop.

use crate::Lid;
use crate::layout::layout;
use crate::mad::{Class, MadHeader, Status};

/// Bytes of the attribute.
pub const SMP_DATA_LEN: usize = 64;
/// Bytes of a path: so many hops, and the entry for none.
pub const SMP_PATH_LEN: usize = 64;

layout! {
    /// A whole subnet management packet. In one that is routed by LIDs alone the fields of the
    /// directed route are reserved, and zero.
    Smp, SmpView, 256 {
        /// Header; see [`Smp::directed_route`] for what a directed route keeps in it.
        header: MadHeader = 0, 192;
        /// Key that allows to manage the port.
        m_key: u64 = 192, 64;
        /// LID of the node at which the directed part begins, or 0xffff.
        dr_slid: Lid = 256, 16;
        /// LID of the node at which the directed part ends, or 0xffff.
        dr_dlid: Lid = 272, 16;
        /// The attribute.
        data: [u8; 64] = 512, 512;
        /// Port out of which each hop sends, from entry 1 on.
        initial_path: [u8; 64] = 1024, 512;
        /// Port at which each hop received: the way back.
        return_path: [u8; 64] = 1536, 512;
    }
}

/// What a packet with a directed route keeps in its header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectedRoute {
    /// Whether the packet goes back to the requester.
    pub is_returning: bool,
    /// Entry of the path that is used next.
    pub hop_pointer: u8,
    /// Hops of the directed part.
    pub hop_count: u8,
}

impl Smp {
    /// A packet that is routed by LIDs.
    pub fn by_lid(header: MadHeader) -> Self {
        let header = MadHeader { class: Class::SUBNET_LID.0, ..header };
        Self { header, ..Self::default() }
    }

    /// A packet that leaves through the ports of `path`, in turn. Both ends are where the directed
    /// part begins and ends. `None`: too many hops.
    pub fn by_path(header: MadHeader, path: &[u8]) -> Option<Self> {
        let mut initial_path = [0; SMP_PATH_LEN];
        initial_path.get_mut(1..=path.len())?.copy_from_slice(path);
        let header = MadHeader { class: Class::SUBNET_DIRECTED.0, ..header };
        let mut smp = Self {
            header,
            dr_slid: Lid::PERMISSIVE,
            dr_dlid: Lid::PERMISSIVE,
            initial_path,
            ..Self::default()
        };
        smp.set_directed_route(DirectedRoute {
            is_returning: false,
            hop_pointer: 0,
            hop_count: u8::try_from(path.len()).ok()?,
        });
        Some(smp)
    }

    /// The directed route; `None` if the packet is of another class.
    pub const fn directed_route(&self) -> Option<DirectedRoute> {
        if self.header.class != Class::SUBNET_DIRECTED.0 {
            return None;
        }
        let [hop_pointer, hop_count] = self.header.class_specific.to_be_bytes();
        let is_returning = self.header.status & Status::DIRECTION != 0;
        Some(DirectedRoute { is_returning, hop_pointer, hop_count })
    }

    /// Overwrites the direction and the hops; the status stays.
    pub fn set_directed_route(&mut self, route: DirectedRoute) {
        let DirectedRoute { is_returning, hop_pointer, hop_count } = route;
        let direction = if is_returning { Status::DIRECTION } else { 0 };
        self.header.status = (self.header.status & !Status::DIRECTION) | direction;
        self.header.class_specific = u16::from_be_bytes([hop_pointer, hop_count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::{Attribute, Method};

    #[test]
    fn a_path_becomes_the_route_of_the_header() {
        let header = MadHeader::request(Class::SUBNET_DIRECTED, Method::GET, Attribute::NODE_INFO);
        let mut smp = Smp::by_path(header, &[1, 7, 2]).expect("three hops");
        assert_eq!(smp.initial_path[..5], [0, 1, 7, 2, 0]);
        let route = DirectedRoute { is_returning: false, hop_pointer: 0, hop_count: 3 };
        assert_eq!(smp.directed_route(), Some(route));
        smp.header.status = Status::BAD_ATTRIBUTE.0;
        let back = DirectedRoute { is_returning: true, hop_pointer: 4, hop_count: 3 };
        smp.set_directed_route(back);
        assert_eq!((smp.directed_route(), smp.header.status), (Some(back), 0x800c));
        smp.set_directed_route(route);
        assert_eq!((smp.directed_route(), smp.header.status), (Some(route), 0x000c));
        assert_eq!(Smp::by_lid(header).directed_route(), None);
        assert!(
            Smp::by_path(header, &[0; 63]).is_some() && Smp::by_path(header, &[0; 64]).is_none()
        );
    }
}
