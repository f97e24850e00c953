//! Starting the shards of a device: an engine, a link and a driver for each.

use std::io;
use std::num::NonZero;
use std::sync::Arc;

use feroce_engine::iwarp::HandshakeConfig;
use feroce_engine::{Config, Engine, TransportKind};
use feroce_link::tcp::TcpPort;
use feroce_link::{Logger, Steering};
use feroce_local::{HostCarrier, Registry};

use super::affinity::Placed;
use super::{bind, join, monitor_of, restrict_qpns, table};
use crate::device::Device;
use crate::driver::{Clock, Driver, Shards, Wakes};
use crate::fabric_port::{self, FabricPort};
use crate::sigbus::{self, Sigbus};
use crate::stack::Faults;
use crate::{Error, Settings, stack};

/// The value of [`Settings::shards`] for as many as suit the machine.
const AUTO_SHARDS: u8 = 0;

/// The most of them: each has one of the 255 slots that the processes of a user share.
const MOST_AUTO_SHARDS: u8 = 8;

/// A device whose shards run.
pub(super) struct Started {
    pub(super) shards: Arc<Shards>,
    pub(super) registry: Option<Arc<Registry>>,
    pub(super) fabric: Option<FabricPort>,
    pub(super) iwarp: Option<HandshakeConfig>,
    pub(super) has_v1: bool,
}

/// One shard.
struct Shard {
    driver: Arc<Driver>,
    registry: Option<Arc<Registry>>,
    fabric: Option<FabricPort>,
    iwarp: Option<HandshakeConfig>,
    has_v1: bool,
}

/// Starts as many shards as the settings say. To other processes, and to each other, they are like
/// devices of several processes: each has a slot of the registry, which gives its queue pairs their
/// numbers.
pub(super) fn start(
    device: &Device,
    settings: &Settings,
    config: &Config,
) -> Result<Started, Error> {
    let (clock, count) = (Clock::start(), count(settings));
    if let Some(why) = refusal(settings) {
        return Err(io::Error::new(io::ErrorKind::Unsupported, why).into());
    }
    let steering = (count > 1).then(Arc::<Steering>::default);
    let start = |config: Config, shard| {
        let around = (&clock, steering.as_ref());
        let _placed = Placed::at(&settings.affinity, shard)?;
        start_one(device, settings, config, around, shard == 0)
    };
    let Shard { driver, registry, fabric, iwarp, has_v1 } = start(config.clone(), 0)?;
    // Without a registry the device is alone at its addresses, also for shards of its own.
    let count = if registry.is_some() { count } else { 1 };
    let mut more = Vec::new();
    for shard in 1..count {
        // Numbers of queue pairs of one shard must tell nothing about those of others.
        let seed = config.seed.wrapping_add(u64::from(shard).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        match start(Config { seed, ..config.clone() }, shard) {
            Ok(shard) => more.push(shard.driver),
            Err(e) => {
                more.iter().chain([&driver]).for_each(|driver| driver.shut_down());
                return Err(e);
            }
        }
    }
    let shards = Arc::new(Shards::new(driver, more));
    Ok(Started { shards, registry, fabric, iwarp, has_v1 })
}

/// How many shards a device with these settings should have.
pub(super) fn count(settings: &Settings) -> u8 {
    match settings.shards {
        AUTO_SHARDS if why_single(settings).is_some() => 1,
        AUTO_SHARDS => {
            // A shard keeps a thread of its own busy, and the consumer another.
            let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
            u8::try_from(processors / 2).unwrap_or(u8::MAX).clamp(1, MOST_AUTO_SHARDS)
        }
        count => count,
    }
}

/// Why a device with these settings cannot have several shards, if they ask for that.
pub(super) fn refusal(settings: &Settings) -> Option<&'static str> {
    if settings.shards > 1 { why_single(settings) } else { None }
}

/// Why a device with these settings has one shard.
fn why_single(settings: &Settings) -> Option<&'static str> {
    if settings.engine.transport == TransportKind::Iwarp {
        return Some(
            "iWARP has TCP connections, which one thread serves: leave `shards` out, or set \
             `transport` to `roce`",
        );
    }
    if settings.fabric.is_some() || settings.subnet.is_some() {
        return Some(
            "packets of a host of a fabric pass one port: leave `shards` out, or the fabric",
        );
    }
    (!settings.shared).then_some(
        "the shards of a device pass packets to each other as processes of the host do: set \
         `shared` to on, or leave `shards` out",
    )
}

fn start_one(
    device: &Device,
    settings: &Settings,
    mut config: Config,
    (clock, steering): (&Clock, Option<&Arc<Steering>>),
    is_first: bool,
) -> Result<Shard, Error> {
    let wakes = Arc::<Wakes>::default();
    let log = Logger::new(Arc::<Wakes>::clone(&wakes));
    let (fabric, port) = FabricPort::join(device, settings, clock, &log)?.unzip();
    if let (Some(fabric), Some(port)) = (&fabric, &port) {
        restrict_qpns(&mut config, fabric.prefix());
        fabric_port::fit(&mut config, &port.welcome());
    }
    let iwarp = stack::iwarp(settings)?;
    let (registry, lease) = join(settings, config.seed, device);
    if let Some(registry) = &registry {
        restrict_qpns(&mut config, registry.prefix());
        if !sigbus::is_blocked() {
            registry.guard_with(&Sigbus);
        }
        if settings.readable {
            registry.let_all_read();
        }
    } else if settings.shards > 1 {
        let text = "several shards need a registry in /dev/shm: leave `shards` out";
        return Err(io::Error::new(io::ErrorKind::Unsupported, text).into());
    }
    let mut engine = Engine::new(config);
    if let Some(registry) = &registry {
        engine.set_host_memory(Arc::<Registry>::clone(registry));
    }
    let prefix = registry.as_ref().map(|registry| registry.prefix());
    let ether = stack::rocev1(device, settings, prefix, &log);
    let has_v1 = ether.is_some();
    let mut udp = stack::udp(device, settings, &log);
    udp.steering = steering.cloned().zip(prefix);
    let streams = iwarp.map(|_| stack::tcp(settings)).transpose()?;
    let mut link: Box<dyn HostCarrier> = match (port, &streams) {
        (Some(port), _) => Box::new(port),
        (None, Some(streams)) => Box::new(TcpPort::of(streams)?),
        (None, None) => {
            stack::carrier(udp, ether, registry.as_ref().map(|r| (r, lease)), settings)?
        }
    };
    let bound = bind(device, &mut *link, registry.is_some())?;
    for (i, entry) in (0..).zip(table(&bound, has_v1)) {
        engine.set_gid(i, entry);
    }
    // Setting the initial GIDs raises events. No consumer listens yet, and they are not changes, so
    // they are discarded.
    while engine.poll_event().is_some() {}
    let monitor = monitor_of(device, has_v1);
    let (name, is_shared, faults) = (device.name(), registry.is_some(), Faults::new(settings));
    let streams = streams.map(|tcp| stack::streams(tcp, settings, &faults, clock, name, &log));
    let link = match streams {
        // Layers on packets would see none.
        Some(_) => link,
        None => stack::build(link, is_shared, settings, &faults, clock, name, &log)?,
    };
    let driver = Driver::start(engine, link, clock.clone(), device, monitor, wakes, is_first)?;
    driver.set_faults(faults);
    driver.set_streams(streams.transpose()?);
    Ok(Shard { driver, registry, fabric, iwarp, has_v1 })
}
