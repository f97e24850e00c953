//! The links of a device, one on top of the other.
//!
//! From the wire up: the carrier; capture and trace, which see what the wire carries; fault
//! injection, which acts on received packets; the check of the ICRC; a tap. If addresses are shared
//! and no layer in between needs the ICRC, the carrier checks it itself.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use feroce_engine::iwarp::HandshakeConfig;
use feroce_engine::{CongestionConfig, TransportKind};
use feroce_link::tcp::{StreamFaults, StreamRecords, TcpLink};
use feroce_link::{
    EtherConfig, EtherLink, Fault, FaultConfig, FaultSwitch, IcrcPolicy, Logger, Pcap, PcapConfig,
    PcapFile, Probability, RoceLink, Tapped, Trace, TraceFile, UdpConfig, UdpLink, Verified,
};
use feroce_local::{HostCarrier, HostLink, Lease, Registry};
use feroce_train::Framing;
use feroce_wire::iwarp::fpdu::MAX_ULPDU;

use crate::device::{Device, DeviceKind};
use crate::driver::{Clock, Streams};
use crate::{Error, Settings};

/// The carrier: the wire, and the other processes of the host if addresses are shared.
pub(crate) fn carrier(
    config: UdpConfig,
    ether: Option<EtherLink>,
    shared: Option<(&Arc<Registry>, Option<Lease>)>,
    settings: &Settings,
) -> io::Result<Box<dyn HostCarrier>> {
    let Some((registry, lease)) = shared else {
        return Ok(Box::new(RoceLink::new(UdpLink::new(config, &[])?, ether)?));
    };
    let icrc = (!is_layered(settings)).then(|| policy(settings));
    let log = config.log.clone();
    // One of the processes that share an address receives there; they agree on which.
    let udp = UdpLink::new(UdpConfig { listen: false, ..config }, &[])?;
    let wire = RoceLink::new(udp, ether)?;
    let link = HostLink::new(wire, Arc::clone(registry), icrc)?.with_lease(lease).with_log(&log);
    let is_seen = wants_packets(settings) || settings.tap.is_some();
    Ok(Box::new(if is_seen { link } else { link.fetching() }))
}

/// How RoCEv2 packets of a device are sent and received.
pub(crate) fn udp(device: &Device, settings: &Settings, log: &Logger) -> UdpConfig {
    UdpConfig {
        interface: device.interface().cloned(),
        gso: settings.gso,
        gro: settings.gro,
        ecn: settings.ecn,
        rcvbuf: settings.rcvbuf,
        log: log.clone(),
        ..UdpConfig::default()
    }
}

/// RoCEv1 on the interface of a device, where that is possible. `prefix` are the upper eight bits
/// of its queue pair numbers, if other processes have others.
pub(crate) fn rocev1(
    device: &Device,
    settings: &Settings,
    prefix: Option<u8>,
    log: &Logger,
) -> Option<EtherLink> {
    let open = |interface| {
        let (vlan, rcvbuf, log) = (settings.rocev1_vlan, settings.rcvbuf, log.clone());
        let sndbuf = UdpConfig::default().sndbuf;
        let config = EtherConfig { interface, vlan, prefix, rcvbuf, sndbuf, log };
        EtherLink::new(config).map_err(|e| e.to_string())
    };
    let opened = device.rocev1(settings).and_then(open);
    if let Err(why) = &opened
        && settings.cm_framing == Framing::RoceV1
        && device.kind() == DeviceKind::Interface
    {
        log.warn(format_args!(
            "{} has no RoCEv1, so its connections are RoCEv2: {why}",
            device.name()
        ));
    }
    opened.ok()
}

/// What a device asks for in handshakes, if the settings say that it speaks iWARP.
pub(crate) fn iwarp(settings: &Settings) -> io::Result<Option<HandshakeConfig>> {
    let fault = settings.fault.as_ref();
    if settings.engine.transport != TransportKind::Iwarp {
        fault.map_or(Ok(()), of_roce).map_err(unsupported)?;
        return Ok(None);
    }
    fault.map_or(Ok(()), of_iwarp).map_err(unsupported)?;
    if settings.fabric.is_some() {
        return Err(unsupported(
            "a fabric carries packets, and iWARP has TCP connections: leave `fabric` out, or set \
             `transport` to `roce`",
        ));
    }
    if settings.tap.is_some() {
        return Err(unsupported(
            "a tap sees packets, and iWARP has TCP connections: leave it out (`pcap` and `trace` \
             show them), or set `transport` to `roce`",
        ));
    }
    Ok(Some(HandshakeConfig {
        crc: settings.mpa_crc,
        revision: settings.mpa_revision,
        peer_to_peer: settings.mpa_peer_to_peer,
        max_ulpdu: MAX_ULPDU,
        long_fpdus: settings.mpa_long_fpdus,
        ..HandshakeConfig::default()
    }))
}

/// Refuses faults that packets cannot have.
pub(crate) fn of_roce(fault: &FaultConfig) -> Result<(), &'static str> {
    match fault.cut.is_never() && fault.reset.is_never() {
        true => Ok(()),
        false => Err("the faults cut and reset concern TCP connections, and RoCE has packets: \
                      leave them out, or set `transport` to `iwarp`"),
    }
}

/// Refuses faults that streams cannot have.
fn of_iwarp(fault: &FaultConfig) -> Result<(), &'static str> {
    match [fault.loss, fault.duplicate, fault.reorder].into_iter().all(Probability::is_never) {
        true => Ok(()),
        false => {
            Err("the faults loss, dup and reorder concern packets, and TCP repairs them: use \
                      corrupt, delay, rate, cut or reset, or set `transport` to `roce`")
        }
    }
}

/// The faults of an open device.
#[derive(Clone, Debug, Default)]
pub(crate) enum Faults {
    /// There is no layer for them.
    #[default]
    Absent,
    /// Those of streams.
    Streams(Arc<FaultSwitch>),
    /// Those of packets.
    Packets(Arc<FaultSwitch>),
}

impl Faults {
    /// As the settings say.
    pub(crate) fn new(settings: &Settings) -> Self {
        let Some(fault) = &settings.fault else { return Self::Absent };
        let switch = Arc::new(FaultSwitch::new(fault.clone()));
        match settings.engine.transport {
            TransportKind::Iwarp => Self::Streams(switch),
            _ => Self::Packets(switch),
        }
    }

    /// The present ones, unless there is no layer for them.
    pub(crate) fn get(&self) -> Option<FaultConfig> {
        match self {
            Self::Absent => None,
            Self::Streams(switch) | Self::Packets(switch) => Some(switch.get()),
        }
    }

    /// Sets others. The error says why that is not possible.
    pub(crate) fn set(&self, fault: FaultConfig) -> Result<(), &'static str> {
        let switch = match self {
            Self::Absent => {
                return Err("the device has no fault layer, and processes of this host may reach \
                            its memory without packets: start the program with FEROCE_FAULT=off, \
                            then faults can be switched on");
            }
            Self::Streams(switch) => {
                of_iwarp(&fault)?;
                switch
            }
            Self::Packets(switch) => {
                of_roce(&fault)?;
                switch
            }
        };
        switch.set(fault);
        Ok(())
    }
}

fn unsupported(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, text)
}

/// The streams of a device that speaks iWARP.
pub(crate) fn tcp(settings: &Settings) -> io::Result<TcpLink> {
    let link = TcpLink::new()?;
    Ok(match settings.tcp_timeout {
        Some(patience) => link.with_patience(patience),
        None => link,
    })
}

/// The same, with the records and faults that the settings ask for.
pub(crate) fn streams(
    tcp: TcpLink,
    settings: &Settings,
    faults: &Faults,
    clock: &Clock,
    device: &str,
    log: &Logger,
) -> Result<Streams, Error> {
    let capture = settings
        .pcap
        .as_deref()
        .map(|file| PcapFile::create(named(file, device), pcap_config(clock, device, log)));
    let trace = settings.trace.as_deref().map(|file| trace_file(file, clock, device, log));
    let records = StreamRecords::new(capture.transpose()?, trace.transpose()?);
    let faults = match faults {
        Faults::Streams(switch) => Some(StreamFaults::with_switch(Arc::clone(switch))),
        Faults::Absent | Faults::Packets(_) => None,
    };
    Ok(Streams::new(tcp, records, faults))
}

fn pcap_config(clock: &Clock, device: &str, log: &Logger) -> PcapConfig {
    let (interface, log) = (device.to_owned(), log.clone());
    PcapConfig { interface, epoch_ns: clock.epoch_ns(), log, ..PcapConfig::default() }
}

/// Where the setting `trace` writes.
fn trace_file(file: &Path, clock: &Clock, device: &str, log: &Logger) -> io::Result<TraceFile> {
    let trace = match file.as_os_str().as_encoded_bytes() {
        b"-" => TraceFile::new(io::stderr()).with_name(device),
        _ => TraceFile::create(named(file, device), device)?,
    };
    Ok(trace.with_time(clock.epoch_ns()).with_log(log.clone()))
}

/// Whether layers between carrier and engine want to see packets as a wire would carry them.
pub(crate) fn is_layered(settings: &Settings) -> bool {
    settings.pcap.is_some() || settings.trace.is_some() || settings.fault.is_some()
}

/// Whether everything travels in packets, also inside this host: for the layers, or because
/// congestion control paces packets, and knows nothing of what is copied.
pub(crate) fn wants_packets(settings: &Settings) -> bool {
    is_layered(settings) || !matches!(settings.engine.congestion, CongestionConfig::None)
}

fn policy(settings: &Settings) -> IcrcPolicy {
    if settings.strict_icrc { IcrcPolicy::Strict } else { IcrcPolicy::default() }
}

/// Puts the layers that the settings ask for on top of a carrier.
pub(crate) fn build(
    carrier: Box<dyn HostCarrier>,
    is_shared: bool,
    settings: &Settings,
    faults: &Faults,
    clock: &Clock,
    device: &str,
    log: &Logger,
) -> Result<Box<dyn HostCarrier>, Error> {
    let mut link = carrier;
    let switch = match faults {
        Faults::Packets(switch) => Some(switch),
        Faults::Absent | Faults::Streams(_) => None,
    };
    if let Some(file) = &settings.pcap {
        let framing = match settings.subnet {
            Some(_) => Framing::InfiniBand,
            None => Framing::RoceV2,
        };
        let config = PcapConfig { framing, ..pcap_config(clock, device, log) };
        let pcap = Pcap::create(link, named(file, device), config)?;
        link = match switch {
            Some(switch) => Box::new(pcap.with_faults(Arc::clone(switch))),
            None => Box::new(pcap),
        };
    }
    if let Some(file) = &settings.trace {
        let trace = Trace::new(link, trace_file(file, clock, device, log)?);
        link = match switch {
            Some(switch) => Box::new(trace.with_faults(Arc::clone(switch))),
            None => Box::new(trace),
        };
    }
    if let Some(switch) = switch {
        link = Box::new(Fault::with_switch(link, Arc::clone(switch)));
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
