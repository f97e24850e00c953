//! Ids on hosts of an InfiniBand fabric: their addresses are LIDs, which the subnet administration
//! tells.
//!
//! IP addresses only name ports. On a machine with IPoIB the kernel finds the GID of one by ARP;
//! here the fabric knows it. An IPv6 address that no port has is taken for a GID.

use std::net::{IpAddr, SocketAddr};

use feroce_cm::rdma::{gid_of, ip_of};
use feroce_cm::{PathParams, Peer};
use feroce_engine::{AddrVec, Engine};
use feroce_train::PortAddr;
use feroce_wire::cm::ServiceId;
use feroce_wire::mad::PathRecord;
use feroce_wire::{Gid, Lid, Pmtu};

use super::id::SoftId;
use super::resolver;
use super::shared::Stage;
use crate::Error;
use crate::cm::CmError;
use crate::context::Context;
use crate::subnet_admin::{Asker, Question, Request};
use crate::subnet_port::{PORT, SubnetPlace};

/// Time limit of a question for which the caller gives none, in milliseconds.
const DEFAULT_MS: u32 = 2000;

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

/// A port that a LID names.
fn at(lid: Lid) -> PortAddr {
    PortAddr { gid: Gid::ZERO, lid }
}

/// The ends of a path.
pub(super) fn peer(path: &PathRecord) -> Peer {
    Peer { local: at(path.slid), remote: at(path.dlid) }
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

impl SoftId {
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
        to: (Gid, SocketAddr),
        timeout_ms: u32,
    ) -> Result<(), Error> {
        let asker = self.asker()?;
        let timeout_ms = if timeout_ms == 0 { DEFAULT_MS } else { timeout_ms };
        let (gid, dst) = to;
        let service = ServiceId::ip(self.port_space(), dst.port());
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
