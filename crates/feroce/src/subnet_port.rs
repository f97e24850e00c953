//! Devices of hosts of an InfiniBand fabric.
//!
//! The fabric has the adapters of its hosts: it answers the subnet manager whether or not programs
//! run. A process that opens the device has two connections to the fabric: one carries packets, and
//! one tells of every change of the port that the subnet manager makes.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use feroce_engine::{Config, Engine};
use feroce_link::port::{PortSocket, Welcome};
use feroce_link::{Logger, PortConfig, PortLink};
use feroce_local::RingChannel;
use feroce_train::{Framing, GidEntry, LinkLayer};
use feroce_umad::{Adapter, AdapterPort, Host, Watch};
use feroce_wire::mad::{PhysicalState, PortState as LinkState};
use feroce_wire::{Gid, Lid, Pmtu};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use crate::Settings;
use crate::attr::{LaneSpeed, LinkWidth, PhysState, PortAttr, PortCaps, PortState};
use crate::subnet_admin::Asker;

/// The port of an adapter that a device has.
pub(crate) const PORT: u8 = 1;

/// The host of an InfiniBand fabric that this process runs on, if the settings name one.
pub(crate) fn host(settings: &Settings) -> Option<Host> {
    let (socket, name) = (settings.subnet.clone()?, settings.host.clone()?);
    Some(Host { socket, name })
}

/// The place of this process in an InfiniBand fabric.
#[derive(Debug)]
pub(crate) struct SubnetPlace {
    /// The host.
    pub(crate) host: Host,
    /// The IP address of its port.
    pub(crate) address: Option<IpAddr>,
}

/// What a process gets that opens the device.
pub(crate) struct Joined {
    pub(crate) slot: u8,
    pub(crate) place: SubnetPlace,
    pub(crate) link: PortLink,
    pub(crate) monitor: SubnetMonitor,
}

/// Joins the InfiniBand fabric that the settings name, if they do. `origin_ns` is the zero of the
/// device's clock on that of the system.
pub(crate) fn join(
    settings: &Settings,
    origin_ns: u64,
    log: &Logger,
) -> io::Result<Option<Joined>> {
    let Some(host) = host(settings) else { return Ok(None) };
    let (socket, attached) = host.attach(PORT)?;
    let welcome = Welcome {
        slot: attached.slot,
        marks: false,
        rate_bps: attached.rate_bps,
        credit: attached.credit,
        train: attached.train,
    };
    let (watch, adapter) = host.watch()?;
    let gone = || io::Error::new(io::ErrorKind::NotFound, "the adapter has no port");
    let port = SubnetState::of(&adapter).ok_or_else(gone)?;
    let channel = RingChannel::offer(PortSocket::of(socket)?, log)?;
    let (socket_path, log) = (host.socket.clone(), log.clone());
    let place = SubnetPlace { host, address: port.0.address };
    let config = PortConfig { socket: socket_path, address: None, ecn: false, origin_ns, log };
    let link = PortLink::attached(config, channel, welcome)?;
    let monitor = SubnetMonitor::new(watch, port)?;
    Ok(Some(Joined { slot: attached.slot, place, link, monitor }))
}

/// The port as the subnet manager has configured it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SubnetState(AdapterPort);

impl SubnetState {
    fn of(adapter: &Adapter) -> Option<Self> {
        adapter.ports.first().cloned().map(Self)
    }

    pub(crate) fn is_active(&self) -> bool {
        self.0.info.state == LinkState::ACTIVE
    }

    /// Fits the configuration of an engine to the port.
    pub(crate) fn fit(&self, config: &mut Config) {
        config.link_layer = LinkLayer::InfiniBand;
        config.port_mtu = mtu(self.0.info.neighbor_mtu);
        config.pkeys.clone_from(&self.0.pkeys);
    }

    /// Applies the state of the port to the engine, which reports what differs from before.
    pub(crate) fn apply(&self, engine: &mut Engine, before: Option<&Self>) {
        let (port, info) = (&self.0, &self.0.info);
        let before = before.map(|before| &before.0);
        for (index, entry) in (0..).zip(gids(port)) {
            engine.set_gid(index, entry);
        }
        if engine.config().pkeys != port.pkeys {
            engine.set_pkeys(&port.pkeys);
        }
        engine.set_lid(info.lid);
        engine.set_lmc(info.lmc & 7);
        let (old_mtu, mtu) = (engine.config().port_mtu, mtu(info.neighbor_mtu));
        engine.set_port_mtu(mtu);
        let is_active = |port: &AdapterPort| port.info.state == LinkState::ACTIVE;
        let was_active = before.is_some_and(is_active);
        if was_active != is_active(port) || (is_active(port) && mtu != old_mtu) {
            engine.set_port_active(is_active(port));
        }
        let Some(before) = before else { return };
        if (before.info.sm_lid, before.info.sm_sl) != (info.sm_lid, info.sm_sl) {
            engine.report_sm_change();
        }
        if before.reregistrations != port.reregistrations {
            engine.report_reregister();
        }
    }

    /// The port as the subnet administration must know it; `None` if there is no subnet manager.
    pub(crate) fn asker(&self) -> Option<Asker> {
        let (port, info) = (&self.0, &self.0.info);
        let (gid, pkey) = (*port.gids.first()?, *port.pkeys.first()?);
        let asker = Asker { gid, pkey, sm_lid: info.sm_lid, sm_sl: info.sm_sl };
        (self.is_active() && info.sm_lid != Lid(0)).then_some(asker)
    }

    /// The attributes of the port.
    pub(crate) fn attr(&self) -> PortAttr {
        PortAttr::of_subnet(&self.0)
    }

    /// The port of a fabric that has ended: nothing passes any more.
    pub(crate) fn ended(&self) -> Self {
        let mut port = self.0.clone();
        port.info.state = LinkState::DOWN;
        port.info.physical_state = PhysicalState::POLLING;
        Self(port)
    }
}

impl PortAttr {
    /// The attributes of a port of an InfiniBand fabric.
    pub(crate) fn of_subnet(port: &AdapterPort) -> Self {
        let info = &port.info;
        Self {
            state: match info.state {
                LinkState::ACTIVE => PortState::Active,
                LinkState::ARMED => PortState::Armed,
                LinkState::INIT => PortState::Init,
                _ => PortState::Down,
            },
            phys_state: match info.physical_state {
                PhysicalState::SLEEP => PhysState::Sleep,
                PhysicalState::POLLING => PhysState::Polling,
                PhysicalState::TRAINING => PhysState::Training,
                PhysicalState::LINK_UP => PhysState::LinkUp,
                PhysicalState::ERROR_RECOVERY => PhysState::ErrorRecovery,
                _ => PhysState::Disabled,
            },
            max_mtu: mtu(info.mtu_cap),
            active_mtu: mtu(info.neighbor_mtu),
            max_msg_size: feroce_engine::MAX_MESSAGE,
            caps: PortCaps::from_bits_retain(info.capability_mask),
            link_layer: LinkLayer::InfiniBand,
            lid: info.lid,
            lmc: info.lmc,
            sm_lid: info.sm_lid,
            sm_sl: info.sm_sl,
            subnet_timeout: info.subnet_timeout,
            init_type_reply: info.init_type_reply,
            max_vls: info.vl_cap,
            gids: gids(port).collect(),
            gid_table_len: u32::try_from(port.gids.len()).unwrap_or(u32::MAX),
            pkeys: port.pkeys.clone(),
            bad_pkeys: 0,
            bad_qkeys: 0,
            active_width: LinkWidth::from_code(info.link_width_active),
            active_speed: LaneSpeed::from_code(info.link_speed_active),
        }
    }
}

/// The GID table. An entry without a GUID is empty.
fn gids(port: &AdapterPort) -> impl Iterator<Item = GidEntry> {
    port.gids.iter().map(|gid| match gid.0.last_chunk::<8>() {
        Some([0, 0, 0, 0, 0, 0, 0, 0]) | None => GidEntry { gid: Gid::ZERO, framing: IB },
        Some(_) => GidEntry { gid: *gid, framing: IB },
    })
}

const IB: Framing = Framing::InfiniBand;

/// An MTU by its code; a port that no subnet manager has seen has the least.
fn mtu(code: u8) -> Pmtu {
    Pmtu::from_code(code).unwrap_or(Pmtu::B256)
}

/// The signalling rate of the link.
pub(crate) fn speed_mbit(port: &AdapterPort) -> u32 {
    let lanes = match LinkWidth::from_code(port.info.link_width_active) {
        LinkWidth::X1 => 1,
        LinkWidth::X2 => 2,
        LinkWidth::X4 => 4,
        LinkWidth::X8 => 8,
        LinkWidth::X12 => 12,
    };
    lanes * 2500 * u32::from(port.info.link_speed_active.max(1))
}

/// Hears of changes of the port.
#[derive(Debug)]
pub(crate) struct SubnetMonitor {
    watch: Watch,
    /// The connection, until the fabric has ended: its end would stay readable.
    epoll: Epoll,
    /// The port when it was opened.
    first: Arc<SubnetState>,
}

impl SubnetMonitor {
    fn new(watch: Watch, port: SubnetState) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(watch.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        Ok(Self { watch, epoll, first: Arc::new(port) })
    }

    /// The port when it was opened.
    pub(crate) fn first(&self) -> &Arc<SubnetState> {
        &self.first
    }

    /// Readable when the port has changed.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// The port, if it has changed. It is an error of kind [`io::ErrorKind::ConnectionReset`] if
    /// the fabric has ended.
    pub(crate) fn look(&self) -> io::Result<Option<SubnetState>> {
        let seen = self.watch.take().inspect_err(|_| {
            let _ = self.epoll.delete(self.watch.as_fd());
        });
        Ok(seen?.as_ref().and_then(SubnetState::of))
    }
}
