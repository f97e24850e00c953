//! What the files say.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use feroce::{Device, Error, Framing, LinkLayer, PortState, TransportKind};

use super::counters;

/// A file of the tree.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Entry {
    /// A file with a line of text.
    Text(String),
    /// A link to a path outside of the tree.
    Link(PathBuf),
    /// A link to a path from the root of the tree. It is made with the whole path, because programs
    /// that follow links by themselves would look for a relative one in the real `/sys`.
    Inner(PathBuf),
}

/// A file that every process can open, and that cannot be read: `EINVAL`, as for the attributes of
/// an entry of the GID table that has no address.
const UNREADABLE: &str = "/proc/self/ns/net";

/// A tree in the making: paths from its root, and what is there.
pub(super) struct Tree(pub(super) BTreeMap<PathBuf, Entry>);

/// The files that are there without any device.
impl Default for Tree {
    fn default() -> Self {
        let mut tree = Self(BTreeMap::new());
        tree.text("sys/class/infiniband_verbs/abi_version", "6");
        // Programs check that this device exists, and do not read it.
        tree.link("dev/infiniband/rdma_cm", "/dev/null");
        tree
    }
}

impl Tree {
    /// The files of these devices.
    pub(super) fn of(devices: &[Device]) -> Result<Self, Error> {
        let mut tree = Self::default();
        for (index, device) in devices.iter().enumerate() {
            tree.device(index, device)?;
        }
        Ok(tree)
    }

    pub(super) fn text(&mut self, path: &str, line: &str) {
        self.0.insert(path.into(), Entry::Text(format!("{line}\n")));
    }

    pub(super) fn link(&mut self, path: &str, to: &str) {
        self.0.insert(path.into(), Entry::Link(to.into()));
    }

    fn inner(&mut self, path: &str, to: &str) {
        self.0.insert(path.into(), Entry::Inner(to.into()));
    }

    fn device(&mut self, index: usize, device: &Device) -> Result<(), Error> {
        let name = device.name();
        let (attr, folder) = (device.attr()?, format!("sys/class/infiniband/{name}"));
        let mut file = |path: &str, line: &str| self.text(&format!("{folder}/{path}"), line);
        let is_iwarp = attr.transport == TransportKind::Iwarp;
        file("node_type", if is_iwarp { "4: RNIC" } else { "1: CA" });
        file("node_guid", &words(&attr.guid.to_be_bytes()));
        file("sys_image_guid", &words(&attr.sys_image_guid.to_be_bytes()));
        file("node_desc", &format!("feroce {name}"));
        file("board_id", "feroce");
        file("hca_type", "feroce");
        file("hw_rev", "0x0");
        file("fw_ver", &attr.fw_ver);
        if let Some(interface) = device.interface_name() {
            file("parent", interface);
        }
        self.pci(index, device.interface_name(), &folder);
        self.port(device, &format!("{folder}/ports/1"))?;
        self.verbs(index, name);
        Ok(())
    }

    /// The files by which libibverbs knows a device.
    pub(super) fn verbs(&mut self, index: usize, name: &str) {
        let verbs = format!("sys/class/infiniband_verbs/uverbs{index}");
        self.text(&format!("{verbs}/ibdev"), name);
        self.text(&format!("{verbs}/abi_version"), "1");
        // A character device that can be opened, read and written, which is all that is asked.
        self.link(&format!("dev/infiniband/uverbs{index}"), "/dev/null");
    }

    /// A file that can be opened, and not read.
    pub(super) fn unreadable(&mut self, path: &str) {
        self.link(path, UNREADABLE);
    }

    /// The PCI device that an adapter would be. Programs order devices by these paths: NCCL
    /// replaces the numbers of device and function by zeros, and takes what is equal then for ports
    /// of one adapter. So every device has a bus of its own, in a domain that no machine has.
    pub(super) fn pci(&mut self, index: usize, interface: Option<&str>, folder: &str) {
        let (domain, bus) = (0xfe0c_usize + (index >> 8), index & 0xff);
        let busid = format!("{domain:04x}:{bus:02x}:00.0");
        let path = format!("sys/devices/pci{domain:04x}:{bus:02x}/{busid}");
        self.text(&format!("{path}/numa_node"), "-1");
        self.inner(&format!("{path}/subsystem"), "sys/bus/pci");
        if let Some(interface) = interface {
            let to = format!("/sys/class/net/{interface}");
            self.link(&format!("{path}/net/{interface}"), &to);
        }
        self.inner(&format!("sys/bus/pci/devices/{busid}"), &path);
        self.inner(&format!("{folder}/device"), &path);
    }

    fn port(&mut self, device: &Device, folder: &str) -> Result<(), Error> {
        let port = device.port()?;
        let is_active = port.state == PortState::Active;
        let mut file = |path: &str, line: &str| self.text(&format!("{folder}/{path}"), line);
        file("link_layer", link_layer(port.link_layer));
        file("state", if is_active { "4: ACTIVE" } else { "1: DOWN" });
        file("phys_state", if is_active { "5: LinkUp" } else { "3: Disabled" });
        file("rate", &rate(device.speed_mbit().unwrap_or(1000)));
        file("cap_mask", "0x00010000");
        file("lid", &format!("{:#x}", port.lid.0));
        file("sm_lid", "0x0");
        file("lid_mask_count", "0");
        file("sm_sl", "0");
        let mut empty = Vec::new();
        for index in 0..port.gid_table_len as usize {
            let entry = port.gids.get(index).copied().unwrap_or_default();
            file(&format!("gids/{index}"), &words(&entry.gid.0));
            let attributes = |name| format!("gid_attrs/{name}/{index}");
            if entry.is_empty() {
                empty.extend(["types", "ndevs"].map(attributes));
            } else {
                file(&attributes("types"), gid_type(entry.framing));
                match device.interface_name() {
                    Some(interface) => file(&attributes("ndevs"), interface),
                    // UCX takes an empty line for the name of an interface.
                    None => empty.push(attributes("ndevs")),
                }
            }
        }
        for (index, pkey) in port.pkeys.iter().enumerate() {
            file(&format!("pkeys/{index}"), &format!("{:#06x}", pkey.0));
        }
        // What a program reads from these is made when it opens them.
        counters::paths().for_each(|path| file(&path, "0"));
        empty.iter().for_each(|path| self.unreadable(&format!("{folder}/{path}")));
        Ok(())
    }
}

/// A link layer as the kernel writes it.
fn link_layer(link_layer: LinkLayer) -> &'static str {
    match link_layer {
        LinkLayer::Ethernet => "Ethernet",
        LinkLayer::InfiniBand => "InfiniBand",
    }
}

/// The type of a GID as the kernel writes it, which has one name for InfiniBand and RoCEv1.
fn gid_type(framing: Framing) -> &'static str {
    match framing {
        Framing::RoceV2 => "RoCE v2",
        Framing::RoceV1 | Framing::InfiniBand => "IB/RoCE v1",
    }
}

/// Bytes as groups of four digits, as in `fe80:0000:0000:0001`.
pub(super) fn words(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (i, pair) in bytes.chunks(2).enumerate() {
        text.push_str(if i > 0 { ":" } else { "" });
        pair.iter().for_each(|byte| {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
        });
    }
    text
}

/// A speed in the kernel's words.
fn rate(mbit: u32) -> String {
    match mbit % 1000 {
        0 => format!("{} Gb/sec (1X)", mbit / 1000),
        rest => format!("{}.{} Gb/sec (1X)", mbit / 1000, rest / 100),
    }
}
