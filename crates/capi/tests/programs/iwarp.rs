//! Programs that are run on devices that speak iWARP.

use super::tables::{Package, Program, Ready, roles};

/// Runs of perftest. As all listeners of iWARP, its server has a TCP port.
const fn by_address(
    name: &'static str,
    sides: [&'static str; 2],
    options: &'static [&'static str],
    says: &'static str,
) -> Program {
    roles(name, sides, Ready::Port(18515), options, says)
}

const fn rping(ends: [&'static str; 2], port: u16, options: &'static [&'static str]) -> Program {
    let [server, client] = ends;
    roles("rping", [server, client], Ready::Port(port), options, "ping data: rdma-ping-4:")
}

pub(crate) const RDMACM_IWARP: Package = Package {
    name: "rdmacm-utils",
    version: "44.0",
    environment: &[("FEROCE_TRANSPORT", "iwarp")],
    programs: &[
        rping(["rping -s", "rping -c -a 10.9.0.1"], 7174, &["-v -C 5", "-V -v -C 20 -S 1000"]),
        rping(
            ["rping -s -a fd09::1", "rping -c -a fd09::1 -I fd09::2"],
            9999,
            &["-v -C 5 -p 9999"],
        ),
        roles(
            "ucmatose",
            ["ucmatose", "ucmatose -s 10.9.0.1"],
            Ready::Port(7471),
            &["", "-c 20 -C 5 -S 8000"],
            "return status 0",
        ),
        roles(
            "rdma_client",
            ["rdma_server", "rdma_client -s 10.9.0.1"],
            Ready::Port(7471),
            &[""],
            "end 0",
        ),
    ],
};

pub(crate) const PERFTEST_IWARP: Package = Package {
    name: "perftest",
    version: "4.5+0.17",
    environment: &[("FEROCE_TRANSPORT", "iwarp")],
    programs: &[
        by_address(
            "ib_send_bw",
            ["ib_send_bw", "ib_send_bw 10.9.0.1"],
            &["-R -F -n 100 -s 65536", "-R -F -n 100 -s 65536 -b -e"],
            "%b %n ",
        ),
        by_address(
            "ib_write_lat",
            ["ib_write_lat", "ib_write_lat 10.9.0.1"],
            &["-R -F -n 100 -s 2"],
            "%b %n ",
        ),
        by_address(
            "ib_read_bw",
            ["ib_read_bw", "ib_read_bw 10.9.0.1"],
            &["-R -F -n 100 -s 65536"],
            "%b %n ",
        ),
    ],
};
