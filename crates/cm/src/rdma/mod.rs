//! What the RDMA connection manager of Linux adds to the protocol (annex A11): services are ports,
//! peers are IP addresses, and a queue pair gets its attributes from what was agreed on.

mod event;
mod ib_addr;
mod mcast;
mod option;
mod param;
mod port;

pub use event::EventKind;
pub use feroce_wire::cm::PortSpace;
pub use ib_addr::IbAddr;
pub use mcast::{MULTICAST_QPN, mgid};
pub use option::IdOption;
pub use param::{
    CONNECT_DATA, ConnParam, SIDR_DATA, TooLong, UDP_QKEY, accept, connect_data, fill, flow_label,
    sidr_data,
};
pub use port::{BindError, Binding, PortTable};

use feroce_wire::Gid;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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
