//! The symbols of the library, compared with those of the libraries that it stands in for.

use crate::common;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What came after rdma-core 44, by the node it came with.
const LATER: &[(&str, &str)] = &[
    ("IBVERBS_1.15", "ibv_alloc_dmah ibv_dealloc_dmah ibv_reg_mr_ex"),
    ("IBVERBS_1.16", "ibv_dm_export_dmabuf_fd ibv_query_port_speed"),
    ("IBVERBS_1.17", "ibv_alloc_buf ibv_free_buf ibv_reg_buf_mr"),
    (
        "IBVERBS_1.18",
        "_ibv_query_comp_cntr_caps ibv_create_comp_cntr ibv_destroy_comp_cntr \
         ibv_export_buf_dmabuf_fd ibv_inc_comp_cntr ibv_inc_err_comp_cntr ibv_qp_attach_comp_cntr \
         ibv_read_comp_cntr ibv_read_err_comp_cntr ibv_set_comp_cntr ibv_set_err_comp_cntr",
    ),
    ("RDMACM_1.4", "rdma_query_addrinfo rdma_resolve_addrinfo rdma_write_cm_event"),
    ("RDMACM_1.5", "repoll_create repoll_ctl repoll_wait"),
];

/// What the private nodes hold beside the symbols of the first of them.
const PRIVATE: &[(&str, &str)] = &[
    ("57", "verbs_register_driver_57 ibv_cmd_create_cq_ex2 ibv_wr_opcode_str"),
    ("59", "verbs_register_driver_59 ibv_cmd_alloc_dmah ibv_cmd_free_dmah ibv_cmd_reg_mr_ex"),
    (
        "64",
        "verbs_register_driver_64 ibv_cmd_export_dmabuf_fd ibv_cmd_query_port_speed \
         ibv_dmabuf_heap_alloc ibv_dmabuf_heap_cc_shared_init ibv_dmabuf_heap_destroy \
         ibv_dmabuf_heap_free",
    ),
    (
        "65",
        "verbs_register_driver_65 ibv_cmd_create_comp_cntr ibv_cmd_destroy_comp_cntr \
         ibv_cmd_inc_comp_cntr ibv_cmd_inc_err_comp_cntr ibv_cmd_qp_attach_comp_cntr \
         ibv_cmd_query_comp_cntr_caps ibv_cmd_read_comp_cntr ibv_cmd_read_err_comp_cntr \
         ibv_cmd_set_comp_cntr ibv_cmd_set_err_comp_cntr",
    ),
];

/// Calls of the C library that the preloaded library answers: for paths of RDMA devices, and for
/// netlink sockets of the RDMA subsystem.
const INTERPOSED: &str = "\
    __fxstatat __fxstatat64 __lxstat __lxstat64 __open64_2 __open_2 __openat64_2 __openat_2 \
    __readlink_chk __realpath_chk __recv_chk __recvfrom_chk __xstat __xstat64 access \
    canonicalize_file_name chdir eaccess euidaccess faccessat fopen fopen64 fstatat fstatat64 \
    getxattr ioctl lgetxattr listxattr llistxattr lstat lstat64 open open64 openat openat64 \
    opendir readlink readlinkat realpath recv recvfrom recvmsg scandir scandir64 send sendmsg \
    sendto socket stat stat64 statx";

/// Exported symbols, as (name, node), the default version of each apart from the others. Symbols
/// without a version have an empty node.
#[derive(Default, Debug)]
struct Symbols {
    default: BTreeSet<(String, String)>,
    other: BTreeSet<(String, String)>,
    /// `T` for code, `B` for data and so on.
    kinds: BTreeMap<String, char>,
}

impl Symbols {
    fn of(library: &Path) -> Option<Self> {
        let mut nm = Command::new("nm");
        let output = common::output(nm.args(["-D", "--defined-only"]).arg(library), "binutils")?;
        assert!(output.status.success(), "{}", library.display());
        let text = String::from_utf8(output.stdout).expect("text");
        let mut symbols = Self::default();
        for line in text.lines() {
            let [_, kind, symbol] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}");
            };
            let (name, rest) = symbol.split_once('@').unwrap_or((symbol, "@"));
            let entry = |node: &str| (name.to_owned(), node.to_owned());
            match rest.strip_prefix('@') {
                // A node is listed like a symbol.
                _ if kind == "A" => continue,
                Some(node) => symbols.default.insert(entry(node)),
                None => symbols.other.insert(entry(rest)),
            };
            symbols.kinds.insert(name.to_owned(), kind.chars().next().expect("a letter"));
        }
        Some(symbols)
    }

    fn has(&self, name: &str, node: &str) -> bool {
        let wanted = (name.to_owned(), node.to_owned());
        self.default.contains(&wanted) || self.other.contains(&wanted)
    }
}

fn system_library(name: &str) -> Option<PathBuf> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"];
    let paths = folders.iter().map(|folder| Path::new(folder).join(name));
    let found = paths.into_iter().find(|path| path.exists());
    found.or_else(|| common::skip(name, "libibumad3 libibverbs1 librdmacm1"))
}

#[test]
fn every_symbol_of_the_real_libraries_is_there_with_its_version() {
    let Some(ours) = Symbols::of(common::library()) else { return };
    let mut compared = 0;
    for name in ["libibumad.so.3", "libibverbs.so.1", "librdmacm.so.1"] {
        let Some(theirs) = system_library(name).and_then(|path| Symbols::of(&path)) else { return };
        for symbol in &theirs.default {
            // On a machine with a later release its private node need not be our default.
            let is_there = if symbol.1.starts_with("IBVERBS_PRIVATE_") {
                ours.has(&symbol.0, &symbol.1)
            } else {
                ours.default.contains(symbol)
            };
            assert!(is_there, "{}@@{} is missing", symbol.0, symbol.1);
            // Programs would read the code of a function where they expect a variable.
            let is_code = |kind: char| matches!(kind, 'T' | 'W');
            let kinds = (ours.kinds[&symbol.0], theirs.kinds[&symbol.0]);
            assert_eq!(is_code(kinds.0), is_code(kinds.1), "{}: {kinds:?}", symbol.0);
            compared += 1;
        }
    }
    assert!(compared > 200, "{compared}");
}

#[test]
fn symbols_of_later_releases_are_there() {
    let Some(ours) = Symbols::of(common::library()) else { return };
    for (node, names) in LATER {
        for name in names.split_whitespace() {
            assert!(ours.default.contains(&(name.into(), (*node).into())), "{name}@@{node}");
        }
    }
    let base = || ours.default.iter().filter(|(_, node)| node == "IBVERBS_PRIVATE_34");
    let base = base().map(|(name, _)| name.as_str()).filter(|name| !name.ends_with("_34"));
    let mut expected: BTreeSet<&str> = base.collect();
    assert_eq!(expected.len(), 70);
    for (release, more) in PRIVATE {
        expected.retain(|name| !name.starts_with("verbs_register_driver_"));
        expected.extend(more.split_whitespace());
        let node = format!("IBVERBS_PRIVATE_{release}");
        let all = ours.default.iter().chain(&ours.other);
        let there: BTreeSet<&str> =
            all.filter(|symbol| symbol.1 == node).map(|symbol| symbol.0.as_str()).collect();
        assert_eq!(there, expected, "{node}");
    }
}

#[test]
fn nothing_else_is_exported() {
    let Some(ours) = Symbols::of(common::library()) else { return };
    let unversioned = ours.default.iter().filter(|(_, node)| node.is_empty());
    let unversioned: Vec<&str> = unversioned.map(|(name, _)| name.as_str()).collect();
    assert_eq!(unversioned.join(" "), INTERPOSED);
    let begins = ["ibv_", "_ibv_", "rdma_", "umad_", "verbs_", "r"];
    let special = ["__ioctl_final_num_attrs", "__verbs_log", "_verbs_init_and_alloc_context"];
    let special = [&special[..], &["execute_ioctl", "mult_to_ibv_rate", "mbps_to_ibv_rate"]];
    for (name, node) in ours.default.iter().chain(&ours.other).filter(|s| !s.1.is_empty()) {
        let known = begins.iter().any(|begin| name.starts_with(begin))
            || special.concat().contains(&name.as_str());
        assert!(known, "{name}@{node}");
    }
}
