//! Programs that are run on devices that speak iWARP.

use super::tables::{Package, Program, Ready, roles};
use super::{is_installed, try_package};
use crate::netns::with_cable;

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
            "ib_send_lat",
            ["ib_send_lat", "ib_send_lat 10.9.0.1"],
            &["-R -F -n 100 -s 64"],
            "%b %n ",
        ),
        by_address(
            "ib_write_bw",
            ["ib_write_bw", "ib_write_bw 10.9.0.1"],
            &["-R -F -n 100 -s 65536", "-R -F -n 10 -s 1048576 -b"],
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
        by_address(
            "ib_read_lat",
            ["ib_read_lat", "ib_read_lat 10.9.0.1"],
            &["-R -F -n 100 -s 64"],
            "%b %n ",
        ),
    ],
};

/// Endpoints of messages; datagrams need UD.
pub(crate) const LIBFABRIC_IWARP: Package = Package {
    name: "libfabric-bin",
    version: "1.17.0",
    environment: &[("FEROCE_TRANSPORT", "iwarp")],
    programs: &[roles(
        "fi_pingpong",
        ["fi_pingpong -p verbs", "fi_pingpong -p verbs 10.9.0.1"],
        Ready::Port(47592),
        &["-e msg -c -I 20 -S 1024"],
        "1k 20 =20 ",
    )],
};

/// The listener of a stream has a TCP port.
const fn streams(
    name: &'static str,
    sides: [&'static str; 2],
    port: u16,
    options: &'static [&'static str],
) -> Program {
    roles(name, sides, Ready::Port(port), options, "custom")
}

pub(crate) const RSOCKETS_IWARP: Package = Package {
    name: "rdmacm-utils",
    version: "44.0",
    environment: &[("FEROCE_TRANSPORT", "iwarp")],
    programs: &[
        streams(
            "rstream",
            ["rstream -b 10.9.0.1", "rstream -s 10.9.0.1"],
            7471,
            &["-T v -S 1000 -C 100", "-T n -T a -T v -S 100000 -C 10", "-T b -T v -S 1000000 -C 5"],
        ),
        streams(
            "rstream",
            ["rstream -b fd09::1", "rstream -s fd09::1"],
            7471,
            &["-f ipv6 -T b -T v -S 10000 -C 10"],
        ),
        streams(
            "riostream",
            ["riostream -b 10.9.0.1", "riostream -s 10.9.0.1"],
            7471,
            &["-T v -S 1000 -C 100", "-T b -T v -S 1000000 -C 5"],
        ),
    ],
};

pub(crate) const FIO_IWARP: Package = Package {
    name: "fio",
    version: "3.33",
    environment: &[("FEROCE_TRANSPORT", "iwarp")],
    programs: &[roles(
        "fio",
        [
            "fio --name=taker --ioengine=rdma --port=5555 --rw=read --iodepth=64",
            "fio --name=giver --ioengine=rdma --hostname=10.9.0.1 --port=5555 --rw=write \
             --iodepth_batch_complete=1",
        ],
        Ready::Port(5555),
        &[
            "--bs=4k --size=200k --verb=write",
            "--bs=4k --size=200k --verb=read",
            "--bs=4k --size=200k --verb=send",
        ],
        "io=200KiB",
    )],
};

#[test]
fn the_programs_of_rdmacm_utils_run_over_iwarp() {
    if is_installed(&RDMACM_IWARP) {
        with_cable(1500, |cable| try_package(&RDMACM_IWARP, cable));
    }
}

#[test]
fn the_programs_of_rsockets_run_over_iwarp() {
    if is_installed(&RSOCKETS_IWARP) {
        with_cable(1500, |cable| try_package(&RSOCKETS_IWARP, cable));
    }
}

#[test]
fn fio_runs_over_iwarp() {
    if is_installed(&FIO_IWARP) {
        with_cable(1500, |cable| try_package(&FIO_IWARP, cable));
    }
}

#[test]
fn the_programs_of_perftest_run_over_iwarp() {
    if is_installed(&PERFTEST_IWARP) {
        with_cable(9000, |cable| try_package(&PERFTEST_IWARP, cable));
    }
}

#[test]
fn libfabric_runs_over_iwarp() {
    if is_installed(&LIBFABRIC_IWARP) {
        with_cable(1500, |cable| try_package(&LIBFABRIC_IWARP, cable));
    }
}
