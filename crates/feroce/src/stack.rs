//! The links of a device, one on top of the other.
//!
//! From the wire up: the carrier; capture and trace, which see what the wire carries; fault
//! injection, which acts on received packets; the check of the ICRC; a tap. If addresses are shared
//! and no layer in between needs the ICRC, the carrier checks it itself.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use feroce_engine::TransportKind;
use feroce_engine::iwarp::HandshakeConfig;
use feroce_link::{
    Fault, IcrcPolicy, Logger, Pcap, PcapConfig, Tapped, Trace, UdpConfig, UdpLink, Verified,
};
use feroce_local::{HostCarrier, HostLink, Lease, Registry};
use feroce_wire::iwarp::fpdu::MAX_ULPDU;

use crate::driver::Clock;
use crate::{Error, Settings};

/// The carrier: the wire, and the other processes of the host if addresses are shared.
pub(crate) fn carrier(
    config: UdpConfig,
    shared: Option<(&Arc<Registry>, Option<Lease>)>,
    settings: &Settings,
) -> io::Result<Box<dyn HostCarrier>> {
    let Some((registry, lease)) = shared else { return Ok(Box::new(UdpLink::new(config, &[])?)) };
    let icrc = (!is_layered(settings)).then(|| policy(settings));
    let log = config.log.clone();
    // One of the processes that share an address receives there; they agree on which.
    let wire = UdpLink::new(UdpConfig { listen: false, ..config }, &[])?;
    let link = HostLink::new(wire, Arc::clone(registry), icrc)?.with_lease(lease).with_log(&log);
    let is_seen = is_layered(settings) || settings.tap.is_some();
    Ok(Box::new(if is_seen { link } else { link.fetching() }))
}

/// What a device asks for in handshakes, if the settings say that it speaks iWARP. The layers know
/// packets only.
pub(crate) fn iwarp(settings: &Settings) -> io::Result<Option<HandshakeConfig>> {
    if settings.engine.transport != TransportKind::Iwarp {
        return Ok(None);
    }
    let packets = [
        ("pcap", settings.pcap.is_some()),
        ("trace", settings.trace.is_some()),
        ("fault", settings.fault.is_some()),
        ("fabric", settings.fabric.is_some()),
        ("a tap", settings.tap.is_some()),
    ];
    if let Some((what, _)) = packets.iter().find(|(_, is_set)| *is_set) {
        let text = format!(
            "{what} concerns packets, and iWARP has TCP connections: leave it out (`tcpdump -i any \
             tcp` captures them), or set `transport` to `roce`"
        );
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    Ok(Some(HandshakeConfig {
        crc: settings.mpa_crc,
        max_ulpdu: MAX_ULPDU,
        ..HandshakeConfig::default()
    }))
}

/// Whether layers between carrier and engine want to see packets as a wire would carry them.
fn is_layered(settings: &Settings) -> bool {
    settings.pcap.is_some() || settings.trace.is_some() || settings.fault.is_some()
}

fn policy(settings: &Settings) -> IcrcPolicy {
    if settings.strict_icrc { IcrcPolicy::Strict } else { IcrcPolicy::default() }
}

/// Puts the layers that the settings ask for on top of a carrier.
pub(crate) fn build(
    carrier: Box<dyn HostCarrier>,
    is_shared: bool,
    settings: &Settings,
    clock: &Clock,
    device: &str,
    log: &Logger,
) -> Result<Box<dyn HostCarrier>, Error> {
    let mut link = carrier;
    if let Some(file) = &settings.pcap {
        let epoch_ns = clock.epoch_ns();
        let (interface, log) = (device.to_owned(), log.clone());
        let config = PcapConfig { interface, epoch_ns, log, ..PcapConfig::default() };
        link = Box::new(Pcap::create(link, named(file, device), config)?);
    }
    if let Some(file) = &settings.trace {
        let trace = match file.as_os_str().as_encoded_bytes() {
            b"-" => Trace::new(link, io::stderr()),
            _ => Trace::create(link, named(file, device), device)?,
        };
        link = Box::new(trace.with_log(log.clone()));
    }
    if let Some(fault) = &settings.fault {
        link = Box::new(Fault::new(link, fault));
    }
    if !is_shared || is_layered(settings) {
        link = Box::new(Verified::new(link, policy(settings)));
    }
    if let Some(tap) = &settings.tap {
        link = Box::new(Tapped::new(link, tap.clone()));
    }
    Ok(link)
}

/// The file name with `%d` replaced by the name of the device and `%p` by the process id.
fn named(file: &Path, device: &str) -> PathBuf {
    // Names of devices on addresses have colons, which some file systems refuse.
    let device = device.replace([':', '/'], "_");
    let process = std::process::id().to_string();
    PathBuf::from(file.to_string_lossy().replace("%d", &device).replace("%p", &process))
}
