//! Our declarations against the headers of the system: the compiler of C is asked whether every
//! size, offset and constant is what ours says.

use crate::common;
use std::fs;
use std::process::Command;

use feroce_abi::{LAYOUTS, Layout, VALUES, Value};

/// How the names of those begin that came after rdma-core 44. Headers may lack them; when they
/// have them, they are compared like the rest.
const NEWER: &[&str] = &[
    "IBV_ACCESS_FLUSH_",
    "IBV_COMP_CNTR_",
    "IBV_DMAH_",
    "IBV_EVENT_DEVICE_SPEED_CHANGE",
    "IBV_FLUSH_",
    "IBV_ODP_SUPPORT_ATOMIC_WRITE",
    "IBV_ODP_SUPPORT_FLUSH",
    "IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC",
    "IBV_PORT_LINK_SPEED_XDR_SUP",
    "IBV_QP_ATTACH_COMP_CNTR_",
    "IBV_QP_EX_WITH_FLUSH",
    "IBV_QUERY_QP_DATA_IN_ORDER_",
    "IBV_REG_MR_MASK_",
    "IBV_TPH_MEM_TYPE_",
    "IBV_WC_FLUSH",
    "IBV_WR_FLUSH",
    "RAI_DNS",
    "RAI_SA",
    "RDMA_CM_EVENT_ADDRINFO_",
    "RDMA_CM_EVENT_INTERNAL",
    "RDMA_CM_EVENT_USER",
    "ibv_comp_cntr",
    "ibv_dmah",
    "ibv_fd_arr",
    "ibv_mr_init_attr",
    "ibv_port_attr.active_speed_ex",
    "ibv_qp_attach_comp_cntr_attr",
    "ibv_qp_ex.wr_flush",
    "rdma_cm_event__param.arg",
    "verbs_context.alloc_buf",
    "verbs_context.alloc_dmah",
    "verbs_context.dealloc_dmah",
    "verbs_context.dm_export_dmabuf_fd",
    "verbs_context.free_buf",
    "verbs_context.reg_mr_ex",
];

/// The types that grew since then. Callers say which size they know.
const GROWN: &[&str] = &["ibv_port_attr", "ibv_qp_ex", "verbs_context"];

const INCLUDES: &str = "\
#include <stddef.h>
#include <infiniband/verbs.h>
#include <infiniband/sa.h>
#include <infiniband/umad.h>
#include <infiniband/ib.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
";

/// A C file in the making: one assertion on each line behind the includes.
#[derive(Default)]
struct Assertions {
    names: Vec<String>,
    lines: String,
}

impl Assertions {
    /// Asks whether a condition about something holds.
    fn add(&mut self, name: &str, condition: &str) {
        self.lines += &format!("_Static_assert({condition}, \"{name}\");\n");
        self.names.push(name.to_owned());
    }

    /// What the compiler says: complaints, by the name of what they are about.
    fn complaints(&self) -> Option<Vec<(&str, String)>> {
        let path = common::scratch("layout").join("layout.c");
        fs::write(&path, INCLUDES.to_owned() + &self.lines).expect("written");
        let mut gcc = Command::new("gcc");
        gcc.env("LC_ALL", "C").args(["-std=gnu11", "-fsyntax-only"]).arg(&path);
        let output = common::output(&mut gcc, "gcc")?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let file = format!("{}:", path.display());
        let complaints: Vec<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix(&file))
            .filter_map(|line| {
                let (number, message) = line.split_once(':')?;
                let (_, message) = message.split_once("error: ")?;
                let index = number.parse::<usize>().ok()?.checked_sub(INCLUDES.lines().count())?;
                Some((self.names[index - 1].as_str(), message.to_owned()))
            })
            .collect();
        assert_eq!(output.status.success(), complaints.is_empty(), "{text}");
        Some(complaints)
    }
}

/// A type of ours in terms of C.
struct Place {
    /// The outermost type, `struct ibv_send_wr`.
    outer: String,
    /// The way from there, `wr.rdma`; empty for a type that stands for itself.
    path: String,
    /// How far into the outermost type that leads.
    offset: usize,
}

fn layout(name: &str) -> &'static Layout {
    let mut all = LAYOUTS.iter().copied().flatten();
    all.find(|layout| layout.name == name).unwrap_or_else(|| panic!("no type {name}"))
}

/// Where a type is to be found in the headers: its name is the way to it.
fn place(name: &str) -> Place {
    let mut steps = name.split("__");
    let mut so_far = steps.next().expect("a name").to_owned();
    let kind = if layout(&so_far).is_union { "union" } else { "struct" };
    let outer = format!("{kind} {so_far}");
    let (mut path, mut offset) = (Vec::new(), 0);
    for step in steps {
        let wanted = step.strip_prefix("anon_").unwrap_or(step);
        let member = layout(&so_far).members.iter().find(|(member, ..)| *member == wanted);
        offset += member.unwrap_or_else(|| panic!("no {wanted} in {so_far}")).2;
        path.extend((wanted == step).then_some(step));
        so_far = format!("{so_far}__{step}");
    }
    Place { outer, path: path.join("."), offset }
}

/// Asks for the size of a type and the offsets of its members.
fn ask_about(layout: &Layout, assertions: &mut Assertions) {
    let Layout { name, size, members, .. } = layout;
    let Place { outer, path, offset } = place(name);
    if !name.contains("__") {
        let relation = if GROWN.contains(name) { "<=" } else { "==" };
        assertions.add(name, &format!("sizeof({outer}) {relation} {size}"));
    } else if !name.rsplit("__").next().is_some_and(|last| last.starts_with("anon_")) {
        assertions.add(name, &format!("sizeof((({outer} *)0)->{path}) == {size}"));
    }
    let dot = if path.is_empty() { "" } else { "." };
    for (member, _, at) in members.iter().filter(|(_, kind, _)| !kind.contains("__anon_")) {
        // A name that Rust keeps to itself has an underscore behind it.
        let theirs = format!("offsetof({outer}, {path}{dot}{})", member.trim_end_matches('_'));
        // This one grows at the beginning; where it ends is what counts.
        let condition = if *name == "verbs_context" {
            format!("sizeof({outer}) - {theirs} == {}", size - at)
        } else {
            format!("{theirs} == {}", offset + at)
        };
        assertions.add(&format!("{name}.{member}"), &condition);
    }
}

#[test]
fn types_and_constants_are_those_of_the_headers() {
    if common::headers().is_none() {
        return;
    }
    let mut assertions = Assertions::default();
    LAYOUTS.iter().copied().flatten().for_each(|layout| ask_about(layout, &mut assertions));
    for Value { name, value } in VALUES.iter().copied().flatten() {
        assertions.add(name, &format!("(__int128){name} == {value}"));
    }
    let Some(complaints) = assertions.complaints() else { return };
    let is_newer = |name: &str| NEWER.iter().any(|newer| name.starts_with(newer));
    let wrong: Vec<_> = complaints
        .iter()
        .filter(|(name, message)| message.starts_with("static assertion") || !is_newer(name))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let known = assertions.names.len() - complaints.len();
    assert!(known > 1000, "only {known} of {} could be asked", assertions.names.len());
}
