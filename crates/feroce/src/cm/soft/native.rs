//! Ids with addresses of InfiniBand itself (`AF_IB`): GIDs and services, where other ids have IP
//! addresses and ports. Requests for their connections carry no IP addresses.
//!
//! Linux has them on Ethernet, too, up to the point at which a route is resolved.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};

use feroce_cm::Accepts;
use feroce_cm::rdma::{IbAddr, PortSpace, UDP_QKEY};
use feroce_wire::cm::{Req, ServiceId};
use feroce_wire::mad::McMemberRecord;
use feroce_wire::{Gid, Qkey};

use super::id::SoftId;
use super::shared::{Inner, Stage};
use super::{resolver, subnet};
use crate::Error;
use crate::cm::CmError;
use crate::context::Context;
use crate::subnet_admin::{Question, Request, read_member};
use crate::subnet_port::PORT;

/// How long the subnet administration may take to tell of the broadcast group, in milliseconds.
const GROUP_MS: u32 = 2000;

/// The broadcast group of IPoIB in the default partition (RFC 4391, section 4).
const BROADCAST: Gid =
    Gid([0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]);

/// The addresses of an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct IbEnds {
    pub(super) local: IbAddr,
    pub(super) peer: Option<IbAddr>,
}

impl IbEnds {
    /// The addresses of an id that a request is for; the private data of a request for datagrams
    /// does not say which port the request is from.
    pub(super) fn of_request(listener: IbAddr, service: ServiceId, req: Option<&Req>) -> Self {
        let Some(req) = req else {
            return Self { local: IbAddr { mask: u64::MAX, ..listener }, peer: None };
        };
        let (pkey, path) = (req.pkey, &req.primary);
        let end = |gid, service, mask| IbAddr {
            gid,
            service,
            mask,
            pkey,
            flow_info: path.flow_label,
            scope_id: 0,
        };
        Self {
            local: end(path.remote_gid, service, u64::MAX),
            peer: Some(end(path.local_gid, ServiceId(0), 0)),
        }
    }
}

/// The address as those see it who know addresses of IP only.
pub(super) fn shown(addr: IbAddr) -> SocketAddr {
    (Ipv6Addr::from(addr.gid.0), addr.port()).into()
}

/// The error of Linux if no port can have the address.
fn no_device() -> Error {
    CmError::Route(io::Error::from_raw_os_error(libc::ENODEV)).into()
}

impl Inner {
    /// What the id listens for, and at which addresses, if it has an address of InfiniBand.
    pub(super) fn native_service(&self) -> Option<(ServiceId, Accepts)> {
        self.ib.map(|ends| (ends.local.service, Accepts::Native))
    }

    /// The service of the peer.
    pub(super) fn service(&self, space: PortSpace) -> Option<ServiceId> {
        let by_ip = || self.peer.map(|peer| ServiceId::ip(space, peer.port()));
        self.ib.and_then(|ends| ends.peer).map(|peer| peer.service).or_else(by_ip)
    }
}

impl SoftId {
    /// Whether its port is one of InfiniBand.
    pub(crate) fn is_in_subnet(&self) -> bool {
        self.context().and_then(subnet::place).is_some()
    }

    /// The addresses of InfiniBand that the id and its peer have, if it was bound to one.
    pub(crate) fn ib_addrs(&self) -> Option<(IbAddr, Option<IbAddr>)> {
        self.shared().lock().ib.map(|ends| (ends.local, ends.peer))
    }

    /// Binds the id to a service at a GID; the zero GID selects all ports.
    pub(crate) fn bind_ib(&self, addr: IbAddr) -> Result<(), Error> {
        let space = addr.space(self.port_space()).ok_or(CmError::NoService)?;
        if self.shared().lock().stage != Stage::Idle {
            return Err(CmError::WrongState.into());
        }
        let context = match addr.gid.is_zero() {
            true => None,
            false => Some(self.port_with(addr.gid)?),
        };
        let port = self.hold(space, shown(addr), addr.port() != 0, context)?;
        let local = addr.with_port(space, port);
        self.shared().lock().ib = Some(IbEnds { local, peer: None });
        Ok(())
    }

    /// Finds the port from which a GID is reached. Event: address resolved.
    pub(crate) fn resolve_ib(&self, src: Option<IbAddr>, dst: IbAddr) -> Result<(), Error> {
        if self.shared().lock().stage == Stage::Idle {
            let any =
                IbAddr { mask: 0, pkey: dst.pkey, ..IbAddr::new(Gid::ZERO, PortSpace::Ib, 0) };
            self.bind_ib(src.unwrap_or(any))?;
        }
        {
            let inner = self.shared().lock();
            if inner.stage != Stage::Bound || inner.ib.is_none() {
                return Err(CmError::WrongState.into());
            }
        }
        if self.context().is_none() {
            self.choose(self.port_towards(dst.gid)?);
        }
        let own = self.context().and_then(|context| own_gid(context, dst.gid));
        let own = own.ok_or_else(no_device)?;
        let dst = IbAddr { gid: if dst.gid.is_zero() { own } else { dst.gid }, ..dst };
        let mut inner = self.shared().lock();
        let Some(ends) = &mut inner.ib else { return Err(CmError::WrongState.into()) };
        if ends.local.gid.is_zero() {
            ends.local.gid = own;
        }
        ends.peer = Some(dst);
        let local = ends.local;
        (inner.local, inner.peer) = (Some(shown(local)), Some(shown(dst)));
        inner.gid = Some(dst.gid);
        inner.stage = Stage::AddrQuery;
        drop(inner);
        resolver::resolved(self.shared());
        Ok(())
    }

    /// The device whose port has a GID, which must be one of InfiniBand, as on Linux.
    fn port_with(&self, gid: Gid) -> Result<Context, Error> {
        let all = self.owner.manager.all()?;
        let has = |context: &Context| {
            subnet::place(context).is_some() && context.port().gid_index(gid).is_some()
        };
        all.into_iter().find(has).ok_or_else(no_device)
    }

    /// The device that has a GID, or else the first whose port has the prefix of the GID.
    fn port_towards(&self, gid: Gid) -> Result<Context, Error> {
        let all = self.owner.manager.all()?;
        let is_own = |context: &&Context| context.port().gid_index(gid).is_some();
        let is_near = |context: &&Context| own_gid(context, gid).is_some();
        let found = all.iter().find(is_own).or_else(|| all.iter().find(is_near));
        found.cloned().ok_or_else(no_device)
    }

    /// The queue key of datagrams of the id: a known one, and for an id of IPoIB that of its
    /// broadcast group.
    pub(super) fn qkey(&self) -> Result<Qkey, Error> {
        match self.port_space() {
            PortSpace::Ipoib => Ok(self.broadcast()?.qkey),
            _ => Ok(UDP_QKEY),
        }
    }

    /// The broadcast group of IPoIB, as the subnet administration knows it. The kernel knows it
    /// from its own network interface, which a host of a fabric has not.
    pub(super) fn broadcast(&self) -> Result<McMemberRecord, Error> {
        if let Some(known) = self.shared().lock().broadcast {
            return Ok(known);
        }
        let no_group = || CmError::Route(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        let place = self.context().and_then(subnet::place).ok_or_else(no_group)?;
        let asker = self.asker()?;
        let request = Request::group(BROADCAST);
        let question = Question::ask(&place.host, PORT, &asker, &request, GROUP_MS)?;
        let record = question.wait(GROUP_MS).ok().and_then(|record| read_member(&record));
        let record = record.ok_or_else(no_group)?;
        self.shared().lock().broadcast = Some(record);
        Ok(record)
    }
}

/// The GID of a device from which another is reached: it has the same prefix. The zero GID is
/// reached from any.
fn own_gid(context: &Context, gid: Gid) -> Option<Gid> {
    let mut own = context.port().gids.into_iter().map(|entry| entry.gid);
    own.find(|own| !own.is_zero() && (gid.is_zero() || own.0[..8] == gid.0[..8]))
}
