//! Settings of devices, from a file and from the environment.
//!
//! Every setting is one row of [`KEYS`], from which the names in the file, the variables of the
//! environment and the documentation are derived.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs};

use feroce_engine::{Config, CongestionConfig, DcqcnConfig};
use feroce_link::{FaultConfig, FaultParseError, Tap};
use feroce_train::Framing;

use crate::Error;

mod backend;
pub(crate) mod congestion;
mod error;
mod roce;
mod similar;
mod sources;
mod transport;
mod values;
mod variables;

pub use backend::Backend;
pub use error::{SettingError, SettingPlace};
pub use sources::SettingSource;
use sources::{config_file, written};
use values::{addresses, affinity, bytes, lint, name, number, portd, shards, switch};
use variables::{check_variables, variable_name};

/// What the drop-in library does about likely mistakes in the use of verbs.
///
/// ```
/// use feroce::{Lint, Settings};
///
/// let mut settings = Settings::default();
/// settings.set("lint", "error")?;
/// assert_eq!(settings.lint, Lint::Error);
/// # Ok::<(), feroce::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Lint {
    /// Nothing.
    #[default]
    Off,
    /// Prints them on standard error.
    Warn,
    /// The same, and if there were any, the exit status is 1.
    Error,
}

/// Settings of a device.
///
/// [`Settings::load`] reads what a user may set without changing the program: the file
/// `feroce.toml`, then the environment, which overrides the file. The file is the one that
/// `FEROCE_CONFIG` names, or `feroce/feroce.toml` in the user's configuration directory.
/// `docs/CONFIGURATION.md` lists the settings.
///
/// ```
/// use feroce::{Device, Settings};
///
/// // Every hundredth packet is lost on its way in, always the same ones.
/// let fault = Some("loss=1%,seed=7".parse()?);
/// let settings = Settings { fault, ..Settings::load()? };
/// let context = Device::at(["127.0.0.35".parse()?]).open_with(settings)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    /// The backend: which devices are listed.
    pub backend: Backend,
    /// Directory of the libraries of rdma-core, if the dynamic linker does not find them. The first
    /// use in a process decides.
    pub rdma_core: Option<PathBuf>,
    /// Configuration of the engine. Seed 0 is replaced by a random one.
    pub engine: Config,
    /// Have GIDs of RoCEv1 beside those of RoCEv2, where the process may.
    pub rocev1: bool,
    /// VLAN of RoCEv1 frames, if it is not that of the interface.
    pub rocev1_vlan: Option<u16>,
    /// The framing of connections that the connection manager makes.
    pub cm_framing: Framing,
    /// Ask for checksums (CRC-32C) on iWARP connections. They are used if one of the ends asks.
    pub mpa_crc: bool,
    /// Revision of MPA that iWARP connections ask for and know: 1 or 2.
    pub mpa_revision: u8,
    /// Ask for iWARP connections on which either end may send first.
    pub mpa_peer_to_peer: bool,
    /// Send FPDUs that are longer than a TCP segment on iWARP connections.
    pub mpa_long_fpdus: bool,
    /// How long the host of a peer may be silent before an iWARP connection ends. `None`: until the
    /// kernel gives up.
    pub tcp_timeout: Option<Duration>,
    /// Segmentation offload when sending.
    pub gso: bool,
    /// Receive offload: the kernel merges received packets.
    pub gro: bool,
    /// Mark packets as ECN-capable.
    pub ecn: bool,
    /// Receive buffer to ask the kernel for, in bytes.
    pub rcvbuf: usize,
    /// Shards of a device: engines with a thread each, among which it divides its queue pairs. 0:
    /// one for every two processors, up to eight, where the device can have several.
    pub shards: u8,
    /// Processors on which the threads of the shards run, in turn; where the kernel likes if there
    /// are none.
    pub affinity: Vec<u16>,
    /// Share the addresses of the host with other processes of the same user.
    pub shared: bool,
    /// Receive through the `feroce portd --all-users` of root, of the own user, or of one of these
    /// users, if there is one. `None`: never.
    pub portd: Option<Vec<u32>>,
    /// Make private memory shareable in place when it is registered. No thread may write to it
    /// meanwhile, and after a fork the child shares it with its parent.
    pub convert: bool,
    /// Let other processes of the user read the memory of this one where the kernel restricts that.
    pub readable: bool,
    /// Refuse packets whose IPv4 identification is not the expected one.
    pub strict_icrc: bool,
    /// File to capture packets to.
    pub pcap: Option<PathBuf>,
    /// Faults to inject into received packets.
    pub fault: Option<FaultConfig>,
    /// Where to write a line per packet; `-` is standard error.
    pub trace: Option<PathBuf>,
    /// Print what a device did on standard error, when it is closed or the process exits.
    pub stats: bool,
    /// Whether the drop-in library warns of the mistakes that programs make with verbs.
    pub lint: Lint,
    /// Name of the first device; the names of further devices count up from the number at its end.
    pub device_name: Option<String>,
    /// Devices to list instead of one for every interface: the addresses of each.
    pub addresses: Vec<Vec<IpAddr>>,
    /// Socket of the fabric that packets pass, one of whose hosts has the address of the device.
    pub fabric: Option<PathBuf>,
    /// Socket of the InfiniBand fabric that programs see, and the host there that they run on.
    pub subnet: Option<PathBuf>,
    /// The host of that fabric.
    pub host: Option<String>,
    /// Observer of every packet that the device sends and receives, if there is one.
    pub tap: Option<Arc<dyn Tap>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            backend: Backend::default(),
            rdma_core: None,
            engine: Config::default(),
            rocev1: true,
            rocev1_vlan: None,
            cm_framing: Framing::RoceV2,
            mpa_crc: true,
            mpa_revision: 2,
            mpa_peer_to_peer: true,
            mpa_long_fpdus: false,
            tcp_timeout: Some(Duration::from_secs(60)),
            gso: true,
            gro: true,
            ecn: true,
            rcvbuf: 8 << 20,
            shards: 1,
            affinity: Vec::new(),
            shared: true,
            portd: Some(Vec::new()),
            convert: false,
            readable: false,
            strict_icrc: false,
            pcap: None,
            fault: None,
            trace: None,
            stats: false,
            lint: Lint::Off,
            device_name: None,
            addresses: Vec::new(),
            fabric: None,
            subnet: None,
            host: None,
            tap: None,
        }
    }
}

/// What is wrong with a value.
type Wrong = String;

/// One setting.
struct Key {
    /// Name in the file; in the environment it is upper case behind `FEROCE_`.
    name: &'static str,
    /// Its value if neither the file nor the environment sets it.
    default: &'static str,
    /// What it does.
    help: &'static str,
    apply: fn(&mut Settings, &str) -> Result<(), Wrong>,
}

/// All settings.
const KEYS: &[Key] = &[
    Key {
        name: "backend",
        default: "feroce",
        help: "whose devices there are: `feroce` for our own, in software; `rdma-core` for those \
               that the kernel has drivers for",
        apply: |s, v| set(&mut s.backend, v.parse()),
    },
    Key {
        name: "rdma_core",
        default: "where the system looks",
        help: "directory of `libibverbs.so.1` and `librdmacm.so.1`, for that backend",
        apply: |s, v| set(&mut s.rdma_core, Ok(Some(v.into()))),
    },
    Key {
        name: "transport",
        default: "roce",
        help: "what devices speak: `roce` (RoCEv2 over UDP, RoCEv1 over Ethernet), or `iwarp` \
               (RDMA over TCP), whose queue pairs the connection manager connects",
        apply: |s, v| set(&mut s.engine.transport, transport::parse(v)),
    },
    Key {
        name: "rocev1",
        default: "1",
        help: "have GIDs of RoCEv1 (Ethertype 0x8915) beside those of RoCEv2, on Ethernet \
               interfaces where the process has CAP_NET_RAW; `feroce devinfo` says why there are \
               none",
        apply: |s, v| set(&mut s.rocev1, switch(v)),
    },
    Key {
        name: "rocev1_vlan",
        default: "that of the interface",
        help: "VLAN of RoCEv1 frames, 1 to 4094, or 0 for none; neighbours are resolved on the \
               interface all the same",
        apply: |s, v| set(&mut s.rocev1_vlan, roce::vlan(v).map(Some)),
    },
    Key {
        name: "default_roce_mode",
        default: "v2",
        help: "the framing of connections that the connection manager makes: `v2` or `v1`; it \
               accepts both",
        apply: |s, v| set(&mut s.cm_framing, roce::mode(v)),
    },
    Key {
        name: "mpa_crc",
        default: "1",
        help: "ask for checksums (CRC-32C) on iWARP connections; they are used if one of the two \
               ends asks for them",
        apply: |s, v| set(&mut s.mpa_crc, switch(v)),
    },
    Key {
        name: "mpa_revision",
        default: "2",
        help: "revision of MPA on iWARP connections: 2, or 1, which says nothing about READs",
        apply: |s, v| set(&mut s.mpa_revision, transport::mpa_revision(v)),
    },
    Key {
        name: "mpa_peer_to_peer",
        default: "1",
        help: "ask for iWARP connections on which either end may send first; 0: the end that \
               connects has to",
        apply: |s, v| set(&mut s.mpa_peer_to_peer, switch(v)),
    },
    Key {
        name: "mpa_long_fpdus",
        default: "0",
        help: "send FPDUs on iWARP connections that are longer than a TCP segment: faster to peers \
               in software",
        apply: |s, v| set(&mut s.mpa_long_fpdus, switch(v)),
    },
    Key {
        name: "tcp_timeout",
        default: "60",
        help: "seconds after which an iWARP connection ends if the host of the peer does not \
               answer, 1 to 86400; 0: when the kernel gives up, which it never does where nothing \
               is sent",
        apply: |s, v| set(&mut s.tcp_timeout, transport::tcp_timeout(v)),
    },
    Key {
        name: "iwarp_extensions",
        default: "0",
        help: "atomics and WRITEs with immediate data (RFC 7306) on iWARP connections; ends do not \
               negotiate that: both need it",
        apply: |s, v| set(&mut s.engine.iwarp_extensions, switch(v)),
    },
    Key {
        name: "seed",
        default: "random",
        help: "number that fixes everything random in the adapter: QPNs, PSNs, keys",
        apply: |s, v| set(&mut s.engine.seed, number(v)),
    },
    Key {
        name: "pcap",
        default: "none",
        help: "file to capture packets to (pcapng; `%d` becomes the device's name, `%p` the \
               process id)",
        apply: |s, v| set(&mut s.pcap, values::capture(v).map(Some)),
    },
    Key {
        name: "fault",
        default: "none",
        help: "faults to inject into received packets, for example \
               `loss=1%,dup=0.1%,reorder=1%:3,delay=50us,seed=7`; over iWARP into streams: \
               `corrupt`, `cut`, `reset`, `delay`, `rate`. `off` injects none until \
               `feroce web --control` switches some on; there is no direct access to memory of \
               other processes either way",
        apply: |s, v| {
            s.fault = Some(v.parse().map_err(|e: FaultParseError| e.to_string())?);
            Ok(())
        },
    },
    Key {
        name: "trace",
        default: "none",
        help: "file for a line per packet, `%d` and `%p` as above; `-` is standard error",
        apply: |s, v| set(&mut s.trace, Ok(Some(v.into()))),
    },
    Key {
        name: "stats",
        default: "0",
        help: "print what a device did on standard error, when it is closed or the process exits",
        apply: |s, v| set(&mut s.stats, switch(v)),
    },
    Key {
        name: "lint",
        default: "0",
        help: "print likely mistakes of a program in its use of verbs, on standard error (the \
               drop-in library only); with `error`, the exit status is then 1",
        apply: |s, v| set(&mut s.lint, lint(v)),
    },
    Key {
        name: "device_name",
        default: "feroce0",
        help: "name of the first device, for programs that insist on `mlx5_0`; the others count on \
               from the number at its end",
        apply: |s, v| set(&mut s.device_name, name(v).map(Some)),
    },
    Key {
        name: "address",
        default: "those of interfaces",
        help: "devices to have instead of one for every interface, by address: \
               `10.0.0.1,fd00::1` is one device with two, `127.0.0.1;127.0.0.2` are two devices",
        apply: |s, v| set(&mut s.addresses, addresses(v)),
    },
    Key {
        name: "fabric",
        default: "none",
        help: "socket of the fabric that packets pass instead of a network; `feroce fabric run` \
               sets it, and the address of a host there",
        apply: |s, v| set(&mut s.fabric, Ok(Some(v.into()))),
    },
    Key {
        name: "subnet",
        default: "none",
        help: "socket of the InfiniBand fabric that programs see instead of RoCE devices; `feroce \
               fabric run` sets it, and `host`",
        apply: |s, v| set(&mut s.subnet, Ok(Some(v.into()))),
    },
    Key {
        name: "host",
        default: "none",
        help: "name of the host of that fabric on which programs run",
        apply: |s, v| set(&mut s.host, Ok(Some(v.into()))),
    },
    Key {
        name: "selective_repeat",
        default: "1",
        help: "keep packets behind a missing one, and send only that one again to peers that do",
        apply: |s, v| set(&mut s.engine.selective_repeat, switch(v)),
    },
    Key {
        name: "tail_probe",
        default: "1",
        help: "retransmit early when the measured round trip time says an answer is overdue",
        apply: |s, v| set(&mut s.engine.tail_probe, switch(v)),
    },
    Key {
        name: "window",
        default: "262144",
        help: "bytes in flight to one destination at the start, such as 256K; adapts from there",
        apply: |s, v| set(&mut s.engine.window.initial, bytes(v)),
    },
    Key {
        name: "window_max",
        default: "8388608",
        help: "most bytes in flight to one destination",
        apply: |s, v| set(&mut s.engine.window.max, bytes(v)),
    },
    Key {
        name: "credits",
        default: "1",
        help: "tell peers how many receives are posted (end-to-end credits)",
        apply: |s, v| set(&mut s.engine.advertise_credits, switch(v)),
    },
    Key {
        name: "congestion",
        default: "none",
        help: "how senders avoid congestion: `none`, `dcqcn` as published in 2015, `connectx` \
               (DCQCN as ConnectX adapters run it), `timely` or `swift`; all but `none` make \
               packets of what is otherwise copied inside this host",
        apply: |s, v| set(&mut s.engine.congestion, congestion::algorithm(v)),
    },
    Key {
        name: "dcqcn",
        default: "0",
        help: "the same as `congestion = \"dcqcn\"`",
        apply: |s, v| {
            s.engine.congestion = match switch(v)? {
                true => CongestionConfig::Dcqcn(DcqcnConfig::default()),
                false => CongestionConfig::None,
            };
            Ok(())
        },
    },
    Key {
        name: "ecn",
        default: "1",
        help: "mark packets as ECN-capable",
        apply: |s, v| set(&mut s.ecn, switch(v)),
    },
    Key {
        name: "gso",
        default: "1",
        help: "hand the kernel whole trains to segment (UDP_SEGMENT)",
        apply: |s, v| set(&mut s.gso, switch(v)),
    },
    Key {
        name: "gro",
        default: "1",
        help: "let the kernel merge received packets (UDP_GRO)",
        apply: |s, v| set(&mut s.gro, switch(v)),
    },
    Key {
        name: "rcvbuf",
        default: "8388608",
        help: "receive buffer to ask the kernel for, in bytes",
        apply: |s, v| set(&mut s.rcvbuf, bytes(v)),
    },
    Key {
        name: "shards",
        default: "1",
        help: "engines with a thread each that divide the queue pairs of a device, up to 16; \
               with `auto`, one for every two processors, up to 8, where a device can have several",
        apply: |s, v| set(&mut s.shards, shards(v)),
    },
    Key {
        name: "affinity",
        default: "any",
        help: "processors on which the threads of the shards run, in turn, such as `2-5` or \
               `0,2`; with `any`, where the kernel likes",
        apply: |s, v| set(&mut s.affinity, affinity(v)),
    },
    Key {
        name: "shared",
        default: "on",
        help: "share the addresses of this host with other processes of the same user, and reach \
               them through shared memory",
        apply: |s, v| set(&mut s.shared, switch(v)),
    },
    Key {
        name: "portd",
        default: "root",
        help: "users whose `feroce portd --all-users` may receive for this process, beside root \
               and the own user, as numbers with commas between them: they see what arrives; with \
               `off`, no portd is asked",
        apply: |s, v| set(&mut s.portd, portd(v)),
    },
    Key {
        name: "convert",
        default: "off",
        help: "when memory of the program is registered, 64 KiB of it or more, make its whole \
               pages shareable where they are, so that other processes of this host copy from and \
               to them without the kernel; the program must not write to them meanwhile, and \
               children of a fork have them in common with it",
        apply: |s, v| set(&mut s.convert, switch(v)),
    },
    Key {
        name: "readable",
        default: "off",
        help: "where only parents may read the memory of a process (`kernel.yama.ptrace_scope` is \
               1), let every process of the user read that of this one, so that long messages \
               inside the host are copied once; without, they go through the rings there",
        apply: |s, v| set(&mut s.readable, switch(v)),
    },
    Key {
        name: "icrc",
        default: "any",
        help: "which IPv4 identifications, that a socket does not see, may make the ICRC right: \
               with `any`, those that feroce senders use (below 64), or any in a flow that does \
               not begin like theirs; with `strict`, only those, so that packets of other senders \
               are refused",
        apply: |s, v| {
            s.strict_icrc = match v {
                "any" => false,
                "strict" => true,
                _ => return Err("expected any or strict".into()),
            };
            Ok(())
        },
    },
];

impl Settings {
    /// The defaults, changed by the file and then by the environment.
    pub fn load() -> Result<Self, Error> {
        let mut settings = Self::default();
        if let Some(path) = config_file() {
            let unreadable = |error| SettingError::Unreadable { path: path.clone(), error };
            let text = fs::read_to_string(&path).map_err(unreadable)?;
            settings.apply_file(&path, &text)?;
        }
        check_variables(env::vars_os().map(|(name, _)| name))?;
        for key in KEYS {
            let variable = variable_name(key.name);
            if let Some(value) = env::var(&variable).ok().filter(|v| !v.is_empty()) {
                (key.apply)(&mut settings, &value).map_err(|why| SettingError::Value {
                    name: variable,
                    value,
                    why,
                    place: SettingPlace::Environment,
                })?;
            }
        }
        backend::apply_chosen(&mut settings);
        transport::apply_chosen(&mut settings);
        Ok(settings)
    }

    /// Changes the setting that has this name in the file; an error says what is wrong with the
    /// value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), Error> {
        Ok(self.apply(name, value, SettingPlace::Call)?)
    }

    /// The variable of the environment for a name in the file.
    pub fn variable(name: &str) -> String {
        variable_name(name)
    }

    /// Applies the text of a TOML file.
    fn apply_file(&mut self, path: &Path, text: &str) -> Result<(), SettingError> {
        let syntax = |error: toml::de::Error| SettingError::Syntax {
            path: path.to_owned(),
            error: error.into(),
        };
        let table: toml::Table = text.parse().map_err(syntax)?;
        for (name, value) in &table {
            self.apply(name, &written(value), SettingPlace::File(path.to_owned()))?;
        }
        Ok(())
    }

    /// Applies one setting.
    fn apply(&mut self, name: &str, value: &str, place: SettingPlace) -> Result<(), SettingError> {
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            let similar = similar::similar(name, KEYS.iter().map(|key| key.name));
            let (name, similar) = (name.to_owned(), similar.map(str::to_owned));
            return Err(SettingError::Unknown { name, similar, place });
        };
        (key.apply)(self, value).map_err(|why| SettingError::Value {
            name: name.to_owned(),
            value: value.to_owned(),
            why,
            place,
        })
    }

    /// The table of settings, as Markdown.
    pub fn table() -> String {
        let row = |k: &Key| {
            let (name, variable) = (k.name, variable_name(k.name));
            format!("| `{name}` | `{variable}` | {} | {} |\n", k.default, k.help)
        };
        let rows: String = KEYS.iter().map(row).collect();
        format!(
            "| in the file | in the environment | default | meaning |\n|---|---|---|---|\n{rows}"
        )
    }
}

fn set<T>(field: &mut T, value: Result<T, Wrong>) -> Result<(), Wrong> {
    *field = value?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn the_file_sets_what_it_names_and_nothing_else() {
        let mut settings = Settings::default();
        settings
            .apply_file(
                Path::new("f.toml"),
                "seed = 42\ngso = false\nicrc = \"strict\"\nfault = \"loss=1%\"",
            )
            .unwrap();
        assert_eq!((settings.engine.seed, settings.gso, settings.gro), (42, false, true));
        assert!(settings.strict_icrc);
        assert_eq!(settings.fault, "loss=1%".parse().ok());
    }

    #[test]
    fn devices_are_named_by_address() {
        let mut settings = Settings::default();
        settings.set("address", "10.0.0.1,fd00::1;127.0.0.2").unwrap();
        let texts = |device: &Vec<IpAddr>| device.iter().map(IpAddr::to_string).collect();
        let devices: Vec<Vec<String>> = settings.addresses.iter().map(texts).collect();
        assert_eq!(devices, [vec!["10.0.0.1", "fd00::1"], vec!["127.0.0.2"]]);
        assert!(settings.set("address", "10.0.0.1;").is_err());
        assert!(settings.set("address", "localhost").is_err());
        assert!(settings.set("device_name", "../etc").is_err());
        assert!(settings.set("device_name", "mlx5_0").is_ok());
    }

    #[test]
    fn mistakes_are_named() {
        let mut settings = Settings::default();
        let mut wrong = |text: &str| {
            let error = settings.apply_file(Path::new("f.toml"), text).unwrap_err();
            assert!(error.to_string().starts_with("f.toml: "), "{error}");
            error
        };
        let unknown = wrong("gzo = 1");
        assert!(matches!(&unknown, SettingError::Unknown { name, .. } if name == "gzo"));
        assert!(unknown.to_string().contains("no setting \"gzo\": did you mean \"gso\"?"));
        assert!(wrong("gso = 2").to_string().ends_with("gso = \"2\": expected 1 or 0"));
        assert!(wrong("seed = \"x\"").to_string().contains("seed = \"x\""));
        let syntax = wrong("seed =");
        assert!(matches!(syntax, SettingError::Syntax { .. }), "{syntax:?}");
        assert!(syntax.to_string().contains("TOML"));
    }

    #[test]
    fn a_variable_that_is_no_setting_is_refused() {
        let check = |name: &str| check_variables([OsString::from(name)].into_iter());
        for known in ["FEROCE_GSO", "FEROCE_LOG", "FEROCE_LIB", "FEROCE_TEST_X", "PATH", "FERO"] {
            check(known).unwrap();
        }
        let refused = |name: &str| check(name).unwrap_err().to_string();
        let wrong = refused("FEROCE_FALT");
        assert!(wrong.starts_with("there is no setting FEROCE_FALT: did you mean FEROCE_FAULT?"));
        let wrong = refused("FEROCE_VERBOSITY");
        assert_eq!(wrong, "there is no setting FEROCE_VERBOSITY: docs/CONFIGURATION.md lists all");
    }

    #[test]
    fn the_documentation_lists_every_setting() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CONFIGURATION.md");
        let text = fs::read_to_string(path).unwrap();
        assert!(text.contains(&Settings::table()), "the table should read:\n{}", Settings::table());
    }
}
