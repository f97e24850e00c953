//! Routing engines of opensm beside those whose tables are compared with ibsim's: each routes the
//! fabric that it is for, and packets follow its tables.

use std::fs;

use super::FT4;
use super::fabric::Fabric;
use super::verbs::{has, pair_hosts};

/// Switches on each side of a torus.
const SIDE: usize = 3;

/// A torus of two dimensions with a host at each switch.
fn torus() -> String {
    let all = || (0..SIDE).flat_map(|y| (0..SIDE).map(move |x| (x, y)));
    let switch = |(x, y)| {
        let (right, up) = ((x + 1) % SIDE, (y + 1) % SIDE);
        let links = format!("[1] \"H{x}{y}\"[1]\n[2] \"S{right}{y}\"[3]\n[4] \"S{x}{up}\"[5]\n");
        format!("Switch 8 \"S{x}{y}\"\n{links}")
    };
    let host = |(x, y)| format!("Hca 1 \"H{x}{y}\"\n");
    all().map(switch).chain(all().map(host)).collect()
}

/// What opensm must be told of it: its size, and the links from one switch along each dimension.
const TORUS: &str = "torus 3 3 1\n\
                     xp_link 0x200000 0x200001\n\
                     yp_link 0x200000 0x200003\n\
                     x_dateline -1\n\
                     y_dateline -1\n";

#[test]
fn other_routing_engines_of_opensm_run() {
    if !has("ibv_devinfo", "ibverbs-utils") {
        return;
    }
    let torus = torus();
    let (tree, torus) = ((FT4, ["Host1", "Host4"]), (torus.as_str(), ["H00", "H12"]));
    let engines = [
        ("updn", "", tree),
        ("dnup", "", tree),
        ("ftree", "", tree),
        ("dor", "", torus),
        ("torus-2QoS", "-Q --torus_config torus.conf", torus),
    ];
    for (port, (engine, options, (net, hosts))) in (18660..).zip(engines) {
        let fabric = Fabric::up(&format!("ib-engine-{engine}"), net);
        fs::write(fabric.folder.join("torus.conf"), TORUS).expect("a file");
        let _opensm = fabric.opensm(hosts[0], &format!("-R {engine} {options}"));
        let log = fs::read_to_string(fabric.folder.join(hosts[0]).join("opensm.log"));
        let log = log.expect("a log");
        // It uses another engine if this one cannot.
        assert!(log.contains(&format!("{engine} tables configured on all switches")), "{log}");
        let said = pair_hosts(&fabric, hosts, "ibv_rc_pingpong -n 20", port);
        assert!(said.contains("20 iters"), "{said}");
    }
}
