//! The attributes of a device, laid out as `ibv_devinfo` lays them out.

use std::fmt::{Display, Write as _};

use super::attr::{Coded, Info, Limits, Port, mtu_code};

/// Columns of a tab.
const TAB: usize = 8;

/// Indentation and value column of a device, of a nested group and of a port.
const DEVICE: Column = Column { indent: 1, value: 40 };
const GROUP: Column = Column { indent: 2, value: 48 };
const RSS: Column = Column { indent: 2, value: 64 };
const PACING: Column = Column { indent: 2, value: 40 };
const PORT: Column = Column { indent: 3, value: 48 };

/// Indentation of names in tabs, and column of values.
#[derive(Clone, Copy)]
struct Column {
    indent: usize,
    value: usize,
}

impl Display for Coded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.name, self.code)
    }
}

/// The text.
pub(super) fn of(info: &Info, verbose: bool) -> String {
    let mut page = Page(format!("hca_id:\t{}\n", info.hca_id));
    page.row(DEVICE, "transport", info.transport);
    page.row(DEVICE, "fw_ver", &info.fw_ver);
    page.row(DEVICE, "node_guid", &info.node_guid);
    page.row(DEVICE, "sys_image_guid", &info.sys_image_guid);
    page.row(DEVICE, "vendor_id", format_args!("0x{:04x}", info.vendor_id));
    page.row(DEVICE, "vendor_part_id", info.vendor_part_id);
    page.row(DEVICE, "hw_ver", format_args!("0x{:X}", info.hw_ver));
    page.row(DEVICE, "phys_port_cnt", info.phys_port_cnt);
    if verbose {
        page.limits(&info.limits);
        page.offloads(&info.limits);
    }
    for port in &info.ports {
        page.port(port, verbose);
    }
    page.0
}

struct Page(String);

impl Page {
    fn line(&mut self, indent: usize, text: impl Display) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{}{text}", "\t".repeat(indent));
    }

    /// Writes `name: value`, with enough tabs between to align the value to its column.
    fn row(&mut self, column: Column, name: &str, value: impl Display) {
        let at = column.indent * TAB + name.len() + 1;
        let tabs = (column.value / TAB).saturating_sub(at / TAB).max(1);
        self.line(column.indent, format_args!("{name}:{}{value}", "\t".repeat(tabs)));
    }

    fn limits(&mut self, l: &Limits) {
        self.row(DEVICE, "max_mr_size", format_args!("{:#x}", l.max_mr_size));
        self.row(DEVICE, "page_size_cap", format_args!("{:#x}", l.page_size_cap));
        self.row(DEVICE, "max_qp", l.max_qp);
        self.row(DEVICE, "max_qp_wr", l.max_qp_wr);
        self.row(DEVICE, "device_cap_flags", format_args!("0x{:08x}", l.device_cap_flags));
        for name in &l.device_caps {
            self.line(5, name);
        }
        self.row(DEVICE, "max_sge", l.max_sge);
        self.row(DEVICE, "max_sge_rd", l.max_sge_rd);
        self.row(DEVICE, "max_cq", l.max_cq);
        self.row(DEVICE, "max_cqe", l.max_cqe);
        self.row(DEVICE, "max_mr", l.max_mr);
        self.row(DEVICE, "max_pd", l.max_pd);
        self.row(DEVICE, "max_qp_rd_atom", l.max_qp_rd_atom);
        self.row(DEVICE, "max_ee_rd_atom", 0);
        self.row(DEVICE, "max_res_rd_atom", l.max_res_rd_atom);
        self.row(DEVICE, "max_qp_init_rd_atom", l.max_qp_rd_atom);
        self.row(DEVICE, "max_ee_init_rd_atom", 0);
        self.row(DEVICE, "atomic_cap", l.atomic_cap);
        self.row(DEVICE, "max_ee", 0);
        self.row(DEVICE, "max_rdd", 0);
        self.row(DEVICE, "max_mw", l.max_mw);
        self.row(DEVICE, "max_raw_ipv6_qp", 0);
        self.row(DEVICE, "max_raw_ethy_qp", 0);
        self.row(DEVICE, "max_mcast_grp", l.max_mcast_grp);
        self.row(DEVICE, "max_mcast_qp_attach", l.max_mcast_qp_attach);
        self.row(DEVICE, "max_total_mcast_qp_attach", l.max_total_mcast_qp_attach);
        self.row(DEVICE, "max_ah", l.max_ah);
        self.row(DEVICE, "max_fmr", 0);
        self.row(DEVICE, "max_srq", l.max_srq);
        self.row(DEVICE, "max_srq_wr", l.max_srq_wr);
        self.row(DEVICE, "max_srq_sge", l.max_srq_sge);
        self.row(DEVICE, "max_pkeys", l.max_pkeys);
        self.row(DEVICE, "local_ca_ack_delay", l.local_ca_ack_delay);
    }

    /// Further capabilities of network adapters, most of which a software adapter does not have.
    fn offloads(&mut self, l: &Limits) {
        self.line(1, "general_odp_caps:");
        for service in ["rc", "uc", "ud", "xrc"] {
            self.line(1, format_args!("{service}_odp_caps:"));
            self.line(5, "NO SUPPORT");
        }
        let mask = l.completion_timestamp_mask;
        self.line(1, format_args!("completion timestamp_mask:\t\t\t0x{mask:016x}"));
        self.row(DEVICE, "hca_core_clock", format_args!("{}kHZ", l.hca_core_clock_khz));
        self.row(DEVICE, "device_cap_flags_ex", format_args!("0x{:X}", l.device_cap_flags));
        self.line(1, "tso_caps:");
        self.row(GROUP, "max_tso", 0);
        self.line(1, "rss_caps:");
        self.row(RSS, "max_rwq_indirection_tables", 0);
        self.row(RSS, "max_rwq_indirection_table_size", 0);
        self.row(RSS, "rx_hash_function", "0x0");
        self.row(RSS, "rx_hash_fields_mask", "0x0");
        self.row(DEVICE, "max_wq_type_rq", 0);
        self.line(1, "packet_pacing_caps:");
        self.row(PACING, "qp_rate_limit_min", "0kbps");
        self.row(PACING, "qp_rate_limit_max", "0kbps");
        self.line(1, "tag matching not supported");
        self.row(DEVICE, "num_comp_vectors", l.num_comp_vectors);
        if l.shards > 1 {
            self.row(DEVICE, "shards", l.shards);
        }
    }

    fn port(&mut self, p: &Port, verbose: bool) {
        let mtu = |bytes: usize| format!("{bytes} ({})", mtu_code(bytes));
        self.line(2, format_args!("port:\t{}", p.port));
        self.row(PORT, "state", p.state);
        self.row(PORT, "max_mtu", mtu(p.max_mtu));
        self.row(PORT, "active_mtu", mtu(p.active_mtu));
        self.row(PORT, "sm_lid", p.sm_lid);
        self.row(PORT, "port_lid", p.lid);
        self.row(PORT, "port_lmc", format_args!("0x{:02x}", p.lmc));
        self.row(PORT, "link_layer", p.link_layer);
        if verbose {
            self.port_details(p);
        }
        self.line(0, "");
    }

    fn port_details(&mut self, p: &Port) {
        self.row(PORT, "max_msg_sz", format_args!("{:#x}", p.max_msg_sz));
        self.row(PORT, "port_cap_flags", format_args!("0x{:08x}", p.port_cap_flags));
        self.row(PORT, "port_cap_flags2", "0x0000");
        self.row(PORT, "max_vl_num", p.max_vl_num);
        self.row(PORT, "bad_pkey_cntr", format_args!("{:#x}", p.bad_pkey_cntr));
        self.row(PORT, "qkey_viol_cntr", format_args!("{:#x}", p.qkey_viol_cntr));
        self.row(PORT, "sm_sl", p.sm_sl);
        self.row(PORT, "pkey_tbl_len", p.pkey_tbl_len);
        self.row(PORT, "gid_tbl_len", p.gid_tbl_len);
        self.row(PORT, "subnet_timeout", p.subnet_timeout);
        self.row(PORT, "init_type_reply", p.init_type_reply);
        let (width, code) = (p.active_width.name, p.active_width.code);
        self.row(PORT, "active_width", format_args!("{width}X ({code})"));
        self.row(PORT, "active_speed", p.active_speed);
        self.row(PORT, "phys_state", p.phys_state);
        for entry in &p.gids {
            let value = format_args!("{}, {}", entry.gid, entry.kind);
            self.row(PORT, &format!("GID[{:3}]", entry.index), value);
        }
        if let Some(why) = &p.without_rocev1 {
            self.row(PORT, "RoCE v1", format_args!("no GIDs: {why}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_where_ibv_devinfo_puts_them() {
        let mut page = Page(String::new());
        page.row(DEVICE, "fw_ver", "1");
        page.row(DEVICE, "max_total_mcast_qp_attach", "1");
        page.row(GROUP, "max_tso", 0);
        page.row(RSS, "max_rwq_indirection_table_size", 0);
        page.row(PORT, "port_cap_flags2", "0x0000");
        page.row(PORT, "GID[  0]", "::1");
        let lines: Vec<&str> = page.0.lines().collect();
        assert_eq!(
            lines,
            [
                "\tfw_ver:\t\t\t\t1",
                "\tmax_total_mcast_qp_attach:\t1",
                "\t\tmax_tso:\t\t\t0",
                "\t\tmax_rwq_indirection_table_size:\t\t\t0",
                "\t\t\tport_cap_flags2:\t0x0000",
                "\t\t\tGID[  0]:\t\t::1",
            ]
        );
    }
}
