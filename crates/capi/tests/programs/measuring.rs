//! Programs that measure.

use super::tables::{Package, Program, Ready, Sides, alone, pair, roles};

const fn ucx(options: &'static [&'static str]) -> Program {
    let sides = Sides::Two { port: 13337, alike: false };
    Program { name: "ucx_perftest", sides, options, says: "Final: " }
}

pub(crate) const PERFTEST: Package = Package {
    name: "perftest",
    version: "4.5+0.17",
    environment: &[],
    programs: &[
        pair(
            "ib_send_bw",
            &[
                "-F -n 100 -s 65536",
                "-F -n 100 -s 65536 -e",
                "-F -n 100 -s 65536 -c UC",
                "-F -n 100 -s 1024 -c UD",
                "-F -n 100 -s 65536 -c XRC",
            ],
            "%b %n ",
        ),
        pair("ib_send_bw", &["-F -n 100 -s 4096 -q 2 --use-srq"], "4096 200 "),
        pair("ib_send_lat", &["-F -n 100 -s 2", "-F -n 100 -s 64 -c UD"], "%b %n "),
        pair(
            "ib_write_bw",
            &[
                "-F -n 100 -s 65536",
                "-F -n 100 -s 65536 -b",
                "-F -n 100 -s 4096 -c UC",
                "-F -n 100 -s 65536 -c XRC",
            ],
            "%b %n ",
        ),
        pair("ib_write_bw", &["-F -n 100 -s 65536 -q 4 -b"], "65536 400 "),
        pair("ib_write_bw", &["-F -n 10 -a", "-F -n 10 -a -b"], "8388608 10 "),
        pair("ib_write_lat", &["-F -n 100 -s 2"], "%b %n "),
        pair("ib_read_bw", &["-F -n 100 -s 65536", "-F -n 100 -s 65536 -o 1"], "%b %n "),
        pair("ib_read_lat", &["-F -n 100 -s 2"], "%b %n "),
        pair("ib_atomic_bw", &["-F -n 100", "-F -n 100 -A CMP_AND_SWAP"], "8 100 "),
        pair("ib_atomic_lat", &["-F -n 100"], "8 100 "),
    ],
};

/// What `feroce run --device-name mlx5_0` passes on, for those who insist on a name.
pub(crate) const PERFTEST_NAMED: Package = Package {
    name: "perftest",
    version: "4.5+0.17",
    environment: &[("FEROCE_DEVICE_NAME", "mlx5_0")],
    programs: &[
        pair("ib_write_bw", &["-d mlx5_0 -F -n 100 -s 65536"], "%b %n "),
        pair("ib_send_lat", &["-d mlx5_0 -x 1 -F -n 100 -s 64"], "%b %n "),
    ],
};

/// Runs of perftest that use librdmacm for everything.
const fn by_address(
    name: &'static str,
    sides: [&'static str; 2],
    options: &'static [&'static str],
    says: &'static str,
) -> Program {
    roles(name, sides, Ready::Soon, options, says)
}

/// Its programs with connections of librdmacm, which do without TCP.
pub(crate) const PERFTEST_CM: Package = Package {
    name: "perftest",
    version: "4.5+0.17",
    environment: &[],
    programs: &[
        by_address(
            "ib_send_bw",
            ["ib_send_bw", "ib_send_bw 10.9.0.1"],
            &["-R -F -n 100 -s 65536", "-R -F -n 100 -s 65536 -b -e", "-R -F -n 100 -s 1024 -c UD"],
            "%b %n ",
        ),
        by_address(
            "ib_send_lat",
            ["ib_send_lat", "ib_send_lat 10.9.0.1"],
            &["-R -F -n 100 -s 2", "-R -F -n 100 -s 64 -c UD"],
            "%b %n ",
        ),
        by_address(
            "ib_write_bw",
            ["ib_write_bw", "ib_write_bw 10.9.0.1"],
            &["-R -F -n 100 -s 65536 -q 4 -b"],
            "65536 400 ",
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
            &["-R -F -n 100 -s 2"],
            "%b %n ",
        ),
        by_address(
            "ib_atomic_bw",
            ["ib_atomic_bw", "ib_atomic_bw 10.9.0.1"],
            &["-R -F -n 100"],
            "8 100 ",
        ),
        by_address(
            "ib_atomic_lat",
            ["ib_atomic_lat", "ib_atomic_lat 10.9.0.1"],
            &["-R -F -n 100"],
            "8 100 ",
        ),
    ],
};

/// UCX looks for the files of a device before it uses it, and has no way round it here.
pub(crate) const UCX_RC: Package = Package {
    name: "ucx-utils",
    version: "1.13.1",
    environment: &[("UCX_TLS", "rc_v,ud_v,self"), ("UCX_NET_DEVICES", "feroce0:1")],
    programs: &[ucx(&["-t tag_lat -n 100 -s 1024", "-t ucp_put_bw -n 100 -s 65536"])],
};

pub(crate) const UCX_UD: Package = Package {
    name: "ucx-utils",
    version: "1.13.1",
    environment: &[("UCX_TLS", "ud_v,self"), ("UCX_NET_DEVICES", "feroce0:1")],
    programs: &[ucx(&["-t tag_lat -n 100 -s 1024"])],
};

/// The same between two names of one transport, without what UCX puts on top.
const fn uct(sides: [&'static str; 2], options: &'static [&'static str]) -> Program {
    roles("ucx_perftest", sides, Ready::Port(13337), options, "Final: ")
}

/// The transports of UCX themselves.
pub(crate) const UCX_TRANSPORTS: Package = Package {
    name: "ucx-utils",
    version: "1.13.1",
    environment: &[],
    programs: &[uct(
        ["ucx_perftest", "ucx_perftest 10.9.0.1"],
        &[
            "-d feroce0:1 -x rc_verbs -t am_lat -n 100 -s 64",
            "-d feroce0:1 -x rc_verbs -t put_bw -D zcopy -n 100 -s 65536",
            "-d feroce0:1 -x rc_verbs -t get -D bcopy -n 100 -s 4096",
            "-d feroce0:1 -x rc_verbs -t add_mr -n 100 -s 8",
            "-d feroce0:1 -x ud_verbs -t am_lat -n 100 -s 64",
            "-d feroce0:1 -x ud_verbs -t am_bw -D bcopy -n 100 -s 1000",
        ],
    )],
};

/// UCX between addresses of IPv6.
pub(crate) const UCX_IPV6: Package = Package {
    name: "ucx-utils",
    version: "1.13.1",
    environment: &[
        ("UCX_IB_GID_INDEX", "1"),
        ("UCX_TLS", "rc_v,ud_v,self"),
        ("UCX_NET_DEVICES", "feroce0:1"),
    ],
    programs: &[ucx(&["-t tag_lat -n 100 -s 1024"])],
};

pub(crate) const LIBFABRIC: Package = Package {
    name: "libfabric-bin",
    version: "1.17.0",
    environment: &[],
    programs: &[
        alone("fi_info", &["-p verbs"], "type: FI_EP_MSG"),
        alone("fi_info", &["-p verbs -t FI_EP_DGRAM"], "domain: feroce0-dgram"),
        roles(
            "fi_pingpong",
            ["fi_pingpong -p verbs", "fi_pingpong -p verbs 10.9.0.1"],
            Ready::Port(47592),
            &["-e msg -c -I 20 -S 1024", "-e dgram -c -I 20 -S 1024"],
            "1k 20 =20 ",
        ),
    ],
};
