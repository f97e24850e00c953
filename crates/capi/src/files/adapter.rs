//! The files of the adapter of a host in an InfiniBand fabric, as they are at this moment.

use feroce::wire::mad::{PhysicalState, PortState};
use feroce_umad::{Adapter, AdapterPort};

use super::contents::{Tree, words};
use crate::umad::adapter::width_and_speed;

impl Tree {
    /// The files of an adapter.
    pub(super) fn of_adapter(name: &str, adapter: &Adapter) -> Self {
        let mut tree = Self::default();
        tree.text("sys/class/infiniband_mad/abi_version", "5");
        tree.verbs(0, name);
        let folder = format!("sys/class/infiniband/{name}");
        let mut file = |path: &str, line: &str| tree.text(&format!("{folder}/{path}"), line);
        let info = &adapter.info;
        file("node_type", "1: CA");
        file("node_guid", &words(&info.node_guid.to_be_bytes()));
        file("sys_image_guid", &words(&info.system_image_guid.to_be_bytes()));
        file("node_desc", &adapter.description);
        file("board_id", "feroce");
        file("hca_type", "feroce");
        file("hw_rev", "0");
        file("fw_ver", env!("CARGO_PKG_VERSION"));
        tree.pci(0, None, &folder);
        for (port, number) in adapter.ports.iter().zip(1..) {
            tree.adapter_port(&format!("{folder}/ports/{number}"), port);
            let index: u32 = number - 1;
            let mad = format!("sys/class/infiniband_mad/umad{index}");
            tree.text(&format!("{mad}/ibdev"), name);
            tree.text(&format!("{mad}/port"), &number.to_string());
            tree.link(&format!("dev/infiniband/issm{index}"), &port.issm);
        }
        tree
    }

    fn adapter_port(&mut self, folder: &str, port: &AdapterPort) {
        let info = &port.info;
        let mut file = |path: &str, line: &str| self.text(&format!("{folder}/{path}"), line);
        file("link_layer", "InfiniBand");
        file("state", &format!("{}: {}", info.state.0, state(info.state)));
        let physical = info.physical_state;
        file("phys_state", &format!("{}: {}", physical.0, physical_state(physical)));
        file("rate", &rate(port));
        file("cap_mask", &format!("{:#010x}", info.capability_mask));
        file("lid", &format!("{:#x}", info.lid.0));
        file("sm_lid", &format!("{:#x}", info.sm_lid.0));
        file("lid_mask_count", &info.lmc.to_string());
        file("sm_sl", &info.sm_sl.to_string());
        for (index, gid) in port.gids.iter().enumerate() {
            file(&format!("gids/{index}"), &words(&gid.0));
            file(&format!("gid_attrs/types/{index}"), "IB/RoCE v1");
        }
        // There is no network interface behind a port.
        let ndevs = (0..port.gids.len()).map(|index| format!("{folder}/gid_attrs/ndevs/{index}"));
        ndevs.for_each(|path| self.unreadable(&path));
        let mut file = |path: &str, line: &str| self.text(&format!("{folder}/{path}"), line);
        for (index, key) in port.pkeys.iter().enumerate() {
            file(&format!("pkeys/{index}"), &format!("{:#06x}", key.0));
        }
        let [[sent, sent_words], [received, received_words]] = port.traffic;
        for (name, count) in [
            ("port_xmit_packets", sent),
            ("port_xmit_data", sent_words),
            ("port_rcv_packets", received),
            ("port_rcv_data", received_words),
        ] {
            file(&format!("counters/{name}"), &count.to_string());
        }
    }
}

/// A state as the kernel writes it.
fn state(state: PortState) -> &'static str {
    match state {
        PortState::DOWN => "DOWN",
        PortState::INIT => "INIT",
        PortState::ARMED => "ARMED",
        PortState::ACTIVE => "ACTIVE",
        _ => "<unknown>",
    }
}

fn physical_state(state: PhysicalState) -> &'static str {
    match state {
        PhysicalState::SLEEP => "Sleep",
        PhysicalState::POLLING => "Polling",
        PhysicalState::DISABLED => "Disabled",
        PhysicalState::TRAINING => "PortConfigurationTraining",
        PhysicalState::LINK_UP => "LinkUp",
        PhysicalState::ERROR_RECOVERY => "LinkErrorRecovery",
        _ => "<unknown>",
    }
}

/// A speed in the kernel's words.
fn rate(port: &AdapterPort) -> String {
    let (width, tenths) = width_and_speed(port);
    let name = match tenths {
        50 => "DDR",
        100 => "QDR",
        _ => "SDR",
    };
    let all = width * tenths;
    match all % 10 {
        0 => format!("{} Gb/sec ({width}X {name})", all / 10),
        rest => format!("{}.{rest} Gb/sec ({width}X {name})", all / 10),
    }
}
