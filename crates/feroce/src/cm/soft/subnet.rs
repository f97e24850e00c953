//! Ids on hosts of an InfiniBand fabric: their addresses are LIDs, which the subnet administration
//! tells.
//!
//! IP addresses only name ports. On a machine with IPoIB the kernel finds the GID of one by ARP;
//! here the fabric knows it. An IPv6 address that no port has is taken for a GID.

use std::net::IpAddr;
use std::sync::Arc;

use feroce_cm::rdma::{EventKind, MULTICAST_QPN, PortSpace, UDP_QKEY, gid_of, ip_of};
use feroce_cm::{PathParams, Peer};
use feroce_engine::{AddrVec, Engine};
use feroce_wire::cm::{Req, ServiceId};
use feroce_wire::mad::{McMemberRecord, PathRecord};
use feroce_wire::{Gid, Lid, Pmtu};

use super::id::SoftId;
use super::queued::Queued;
use super::service::tell;
use super::shared::{Membership, Owner, Shared, Stage};
use super::{mcast, resolver};
use crate::Error;
use crate::cm::{CmError, UdParam};
use crate::context::Context;
use crate::subnet_admin::{Asker, Question, Request};
use crate::subnet_port::{PORT, SubnetPlace};

/// Time limit of a question for which the caller gives none, in milliseconds.
const DEFAULT_MS: u32 = 2000;

/// How long the subnet administration may take to let a port into a group, in milliseconds.
const JOIN_MS: u32 = 3000;

/// How members take part in a group: they receive and send, or they only send.
const FULL_MEMBER: u8 = 1;
const SEND_ONLY_MEMBER: u8 = 8;

/// How the values of a path record compare with those of the path.
const EXACTLY: u8 = 2;

/// Hop limit of a path that does not leave the subnet.
const MAX_LOCAL_HOPS: u8 = 1;

/// The place of a device in an InfiniBand fabric, if it is in one.
pub(super) fn place(context: &Context) -> Option<&SubnetPlace> {
    context.soft().ok()?.fabric.as_ref()?.subnet()
}

/// Whether an address names the port of a device.
pub(super) fn has_address(context: &Context, ip: IpAddr) -> bool {
    place(context).is_some_and(|place| place.address == Some(ip))
}

/// The address of a device from which a peer is reached, if the device is in an InfiniBand fabric.
pub(super) fn source(context: &Context, dst: IpAddr) -> Option<IpAddr> {
    let own = place(context)?.address.filter(|own| own.is_ipv4() == dst.is_ipv4());
    let gid = || context.port().gids.first().map(|entry| ip_of(entry.gid));
    own.or_else(|| gid().filter(|_| dst.is_ipv6()))
}

/// The GID of the port with an address.
pub(super) fn find(place: &SubnetPlace, ip: IpAddr) -> Result<Gid, CmError> {
    match place.host.resolve(ip) {
        Err(_) if ip.is_ipv6() => Ok(gid_of(ip)),
        found => found.map_err(CmError::Route),
    }
}

/// The ends of a path.
pub(super) fn peer(path: &PathRecord) -> Peer {
    Peer::in_subnet(path.slid, path.dlid)
}

/// What a connection must know of a path.
pub(super) fn params(path: &PathRecord) -> PathParams {
    PathParams {
        mtu: Pmtu::from_code(path.mtu).unwrap_or(Pmtu::B256),
        flow_label: path.flow_label,
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit,
        sl: path.sl,
        packet_life_time: Some(path.life_time),
        gids: Some([path.sgid, path.dgid]),
    }
}

/// The path to the sender of a request.
pub(super) fn path_back(req: &Req) -> PathRecord {
    let path = &req.primary;
    PathRecord {
        dgid: path.local_gid,
        sgid: path.remote_gid,
        dlid: path.local_lid,
        slid: path.remote_lid,
        flow_label: path.flow_label,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        reversible: true,
        number_of_paths: 1,
        pkey: req.pkey,
        sl: path.sl,
        mtu_selector: EXACTLY,
        mtu: req.mtu_code,
        rate_selector: EXACTLY,
        rate: path.rate,
        life_time_selector: EXACTLY,
        life_time: path.ack_timeout.saturating_sub(1),
        ..PathRecord::default()
    }
}

/// The address vector of a path between two ports, which has a GRH only if the path leaves the
/// subnet.
pub(super) fn vector(engine: &Engine, peer: Peer, path: &PathParams) -> AddrVec {
    let [_, remote] = path.gids.unwrap_or_default();
    let is_local = path.hop_limit <= MAX_LOCAL_HOPS;
    AddrVec {
        dgid: if is_local { Gid::ZERO } else { remote },
        flow_label: path.flow_label,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        sl: path.sl,
        dlid: peer.remote.lid,
        src_path_bits: path_bits(engine, peer.local.lid),
        ..AddrVec::default()
    }
}

/// Which of the LIDs of our port it is.
pub(super) fn path_bits(engine: &Engine, lid: Lid) -> u8 {
    // At most seven bits differ between the LIDs of a port.
    (lid.0 ^ engine.lid().0) as u8 & 0x7f
}

/// The group of an IP multicast address, as Linux maps it for datagrams of the connection manager:
/// that of IPoIB (RFC 4391, section 4) in the default partition, with a signature of its own unless
/// the datagrams are for IPoIB. A GID that a subnet manager has chosen stays as it is. `None` if it
/// is not a multicast address.
pub(super) fn group_gid(ip: IpAddr, space: PortSpace) -> Option<Gid> {
    let signature = if space == PortSpace::Ipoib { 0x1b } else { 0x01 };
    let mut gid = [0; 16];
    match ip {
        ip if !ip.is_multicast() => return None,
        IpAddr::V6(ip) if matches!(ip.octets(), [0xff, 0x10..=0x1f, 0xa0, 0x1b, ..]) => {
            return Some(Gid(ip.octets()));
        }
        IpAddr::V4(ip) => {
            gid[..6].copy_from_slice(&[0xff, 0x12, 0x40, signature, 0xff, 0xff]);
            gid[12..].copy_from_slice(&(u32::from(ip) & 0x0fff_ffff).to_be_bytes());
        }
        IpAddr::V6(ip) => {
            gid[..6].copy_from_slice(&[0xff, 0x12, 0x60, signature, 0xff, 0xff]);
            gid[6..].copy_from_slice(&ip.octets()[6..]);
        }
    }
    Some(Gid(gid))
}

/// A group that an id is joining.
#[derive(Debug)]
pub(super) struct Joining {
    group: Gid,
    receives: bool,
    hold: feroce_umad::Claim,
}

/// Joins a group for an id, with what the subnet administration has said of it.
pub(super) fn joined(id: &Arc<Owner>, record: &McMemberRecord, joining: Joining) {
    let Joining { group, receives, hold } = joining;
    let membership = Membership { group, receives, hold: Some(hold) };
    let av = AddrVec {
        dgid: group,
        flow_label: record.flow_label,
        hop_limit: record.hop_limit,
        traffic_class: record.traffic_class,
        sl: record.sl,
        dlid: record.mlid,
        ..AddrVec::default()
    };
    let id = SoftId { owner: Arc::clone(id) };
    let attached = id.with_port(|s, link, id| {
        let qp = id.lock().qp.map(|qp| qp.qpn);
        if receives {
            mcast::join(s, link, qp, group)?;
        }
        id.lock().groups.push(membership);
        Ok(())
    });
    match attached {
        Ok(()) => {
            let ud = Some(UdParam { av, qpn: MULTICAST_QPN, qkey: record.qkey });
            tell(Queued { ud, ..Queued::new(EventKind::MulticastJoin, id.shared(), 0) });
        }
        Err(e) => {
            tracing::warn!("cannot attach the queue pair to {group}: {e}");
            not_joined(id.shared(), -libc::ENOMEM);
        }
    }
}

/// An id has not become a member of a group.
pub(super) fn not_joined(id: &Arc<Shared>, status: i32) {
    tell(Queued::new(EventKind::MulticastError, id, status));
}

impl SoftId {
    /// Has the port join a group through the subnet administration. Event: multicast join, or
    /// multicast error.
    pub(super) fn join_in_subnet(
        &self,
        place: &SubnetPlace,
        group: Gid,
        send_only: bool,
    ) -> Result<(), Error> {
        let asker = self.asker()?;
        let state = if send_only { SEND_ONLY_MEMBER } else { FULL_MEMBER };
        // First, so that the port does not leave the group when another id does.
        let hold = place.host.join(PORT, group, state)?;
        let request = match self.port_space() {
            PortSpace::Ipoib => Request::join_like(&asker, group, state, &self.broadcast()?),
            _ => Request::join(&asker, group, state, UDP_QKEY),
        };
        let question = Question::ask(&place.host, PORT, &asker, &request, JOIN_MS)?;
        let joining = Joining { group, receives: !send_only, hold };
        Ok(resolver::wait_for_group(&self.owner, question, joining, JOIN_MS)?)
    }

    /// The port as its subnet administration must know it.
    pub(super) fn asker(&self) -> Result<Asker, Error> {
        self.with_service(|s, _, _| {
            let asker = s.subnet.as_ref().and_then(|port| port.asker());
            asker.ok_or_else(|| CmError::NoSubnetManager.into())
        })
    }

    /// Asks the subnet administration for a path to the port with a GID. Event: route resolved, or
    /// route error.
    pub(super) fn ask_for_path(
        &self,
        place: &SubnetPlace,
        to: (Gid, ServiceId),
        timeout_ms: u32,
    ) -> Result<(), Error> {
        let asker = self.asker()?;
        let timeout_ms = if timeout_ms == 0 { DEFAULT_MS } else { timeout_ms };
        let (gid, service) = to;
        let request = Request::path(&asker, gid, service);
        let question = Question::ask(&place.host, PORT, &asker, &request, timeout_ms)?;
        {
            let mut inner = self.shared().lock();
            if inner.stage != Stage::AddrResolved {
                return Err(CmError::WrongState.into());
            }
            inner.stage = Stage::RouteQuery;
        }
        Ok(resolver::wait_for_path(&self.owner, question, timeout_ms)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_mapped_as_linux_does() {
        let gid = |text: &str| {
            let ip: std::net::Ipv6Addr = text.parse().unwrap();
            Some(Gid(ip.octets()))
        };
        for (ip, expected) in [
            ("239.1.2.3", gid("ff12:4001:ffff::f01:203")),
            ("ff05::1:2", gid("ff12:6001:ffff::1:2")),
            ("ff12:a01b:fe80::7", gid("ff12:a01b:fe80::7")),
            ("10.0.0.1", None),
            ("fe80::1", None),
        ] {
            assert_eq!(group_gid(ip.parse().unwrap(), PortSpace::Udp), expected, "{ip}");
        }
        let of_ipoib = group_gid([239, 1, 2, 3].into(), PortSpace::Ipoib);
        assert_eq!(of_ipoib, gid("ff12:401b:ffff::f01:203"));
    }
}
