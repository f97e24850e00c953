//! What the RDMA connection manager of Linux adds to the protocol (annex A11): services are ports,
//! peers are IP addresses, and a queue pair gets its attributes from what was agreed on.

mod event;
mod mcast;
mod option;
mod param;
mod port;

pub use event::EventKind;
pub use feroce_wire::cm::PortSpace;
pub use mcast::{MULTICAST_QPN, mgid};
pub use option::IdOption;
pub use param::{
    CONNECT_DATA, ConnParam, SIDR_DATA, TooLong, UDP_QKEY, accept, connect_data, fill, flow_label,
    sidr_data,
};
pub use port::{BindError, Binding, PortTable};

use feroce_wire::Gid;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The port space with this number, as in `rdma_port_space`. InfiniBand's own (`RDMA_PS_IB`) and
/// that of IPoIB have no meaning on Ethernet, and are not supported.
#[doc(alias = "rdma_port_space")]
pub const fn port_space(number: u16) -> Option<PortSpace> {
    match number {
        0x0106 => Some(PortSpace::Tcp),
        0x0111 => Some(PortSpace::Udp),
        _ => None,
    }
}

/// The GID of an IP address.
pub fn gid_of(ip: IpAddr) -> Gid {
    match ip {
        IpAddr::V4(ip) => Gid::from_ipv4(ip.octets()),
        IpAddr::V6(ip) => Gid(ip.octets()),
    }
}

/// The IP address of a GID.
pub fn ip_of(gid: Gid) -> IpAddr {
    match gid.as_ipv4() {
        Some(ip) => Ipv4Addr::from(ip).into(),
        None => Ipv6Addr::from(gid.0).into(),
    }
}
