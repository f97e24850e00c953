//! Programs of rsockets, and programs of TCP that librspreload brings to them.

use super::tables::{Package, Ready, endless, roles};

pub(crate) const RSOCKETS: Package = Package {
    name: "rdmacm-utils",
    version: "44.0",
    environment: &[],
    programs: &[
        roles(
            "rstream",
            ["rstream -b 10.9.0.1", "rstream -s 10.9.0.1"],
            Ready::Busy,
            &["-T v -S 1000 -C 100", "-T n -T a -T v -S 100000 -C 10"],
            "custom",
        ),
        roles(
            "rstream",
            ["rstream", "rstream -s 10.9.0.1"],
            Ready::Soon,
            &[
                "-T b -T v -S 1000000 -C 5",
                "-T b -T a -T v -S 50000 -C 10 -B 5000",
                "-T b -T r -T v -I 20 -C 1 -S 64 -i 16 -k 1 -p 7500",
            ],
            "custom",
        ),
        roles(
            "rstream",
            ["rstream -b fd09::1", "rstream -s fd09::1"],
            Ready::Soon,
            &["-f ipv6 -T b -T v -S 10000 -C 10"],
            "custom",
        ),
        roles(
            "riostream",
            ["riostream -b 10.9.0.1", "riostream -s 10.9.0.1"],
            Ready::Busy,
            &["-T v -S 1000 -C 100", "-T a -T v -S 100000 -C 10"],
            "custom",
        ),
        roles(
            "riostream",
            ["riostream", "riostream -s 10.9.0.1"],
            Ready::Soon,
            &["-T b -T v -S 1000000 -C 5"],
            "custom",
        ),
        endless(roles(
            "udpong",
            ["udpong -b 10.9.0.1", "udpong -s 10.9.0.1"],
            Ready::Udp(7174),
            &["-S 1000 -C 100", "-T b -T e -S 100 -C 50", "-T a -S 1000 -C 100"],
            "custom",
        )),
    ],
};

/// Preloads librspreload, too, as `feroce run` does where it is preloaded already. `$LIB` is for
/// the linker, which knows where the distribution has its libraries.
const PRELOAD: &[(&str, &str)] =
    &[("LD_PRELOAD", "./libibverbs.so.1:/usr/$LIB/rsocket/librspreload.so")];

pub(crate) const PRELOADED: Package = Package {
    name: "rdmacm-utils",
    version: "44.0",
    environment: PRELOAD,
    programs: &[roles(
        "rstream",
        ["rstream -T s", "rstream -T s -s 10.9.0.1"],
        Ready::Soon,
        &["-T b -T v -S 100000 -C 10"],
        "custom",
    )],
};

pub(crate) const IPERF: Package = Package {
    name: "iperf3",
    version: "3.12",
    environment: PRELOAD,
    programs: &[roles(
        "iperf3",
        ["iperf3 -s -1", "iperf3 -c 10.9.0.1 -n 20M"],
        Ready::Soon,
        &["-f m"],
        "iperf Done.",
    )],
};
