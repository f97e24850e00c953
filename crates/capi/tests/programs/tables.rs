//! Which programs are run, how, and what they must say.

/// Runs of one program. Every line of `options` is a run; with an address behind it on one of the
/// two machines, if the program has two sides.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) sides: Sides,
    pub(crate) options: &'static [&'static str],
    /// What the client must say, white space aside; `%b` and `%n` stand for bytes and repetitions.
    /// A server need only end well: some have nothing to say.
    pub(crate) says: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sides {
    /// It runs alone.
    One,
    /// A server that listens on a TCP port, and a client that is told its address.
    Two {
        port: u16,
        /// Whether the server needs the options of the client.
        alike: bool,
    },
    /// Two sides that are told what they are: how each is called, with options that come first.
    Roles {
        server: &'static str,
        client: &'static str,
        ready: Ready,
        /// Whether the server ends by itself.
        ends: bool,
        /// Whether the server needs the options of the client.
        alike: bool,
    },
}

/// How to see that a server can be reached.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ready {
    /// Only its connection manager knows. Its device is open and it waits for something, so most
    /// likely it listens. A client that comes too early is refused, and starts again.
    Soon,
    /// Its device is open. It never waits, so that nothing else can be seen.
    Busy,
    /// It listens on this TCP port.
    Port(u16),
    /// It has this UDP port.
    Udp(u16),
    /// It is a member of the multicast group 239.1.1.1.
    Member,
}

/// A package and its programs.
pub(crate) struct Package {
    pub(crate) name: &'static str,
    /// Without the revision of Debian.
    pub(crate) version: &'static str,
    /// Settings that its programs are run with.
    pub(crate) environment: &'static [(&'static str, &'static str)],
    pub(crate) programs: &'static [Program],
}

pub(crate) const fn alone(
    name: &'static str,
    options: &'static [&'static str],
    says: &'static str,
) -> Program {
    Program { name, sides: Sides::One, options, says }
}

pub(crate) const fn pair(
    name: &'static str,
    options: &'static [&'static str],
    says: &'static str,
) -> Program {
    Program { name, sides: Sides::Two { port: 18515, alike: true }, options, says }
}

pub(crate) const fn roles(
    name: &'static str,
    [server, client]: [&'static str; 2],
    ready: Ready,
    options: &'static [&'static str],
    says: &'static str,
) -> Program {
    Program {
        name,
        sides: Sides::Roles { server, client, ready, ends: true, alike: true },
        options,
        says,
    }
}

/// The same for a server that is not told what the client is.
pub(crate) const fn unlike(mut program: Program) -> Program {
    if let Sides::Roles { alike, .. } = &mut program.sides {
        *alike = false;
    }
    program
}

/// The same for a server that goes on for ever.
pub(crate) const fn endless(mut program: Program) -> Program {
    if let Sides::Roles { ends, .. } = &mut program.sides {
        *ends = false;
    }
    program
}

pub(crate) const IBVERBS_UTILS: Package = Package {
    name: "ibverbs-utils",
    version: "44.0",
    environment: &[],
    programs: &[
        alone("ibv_devices", &[""], "feroce0"),
        alone("ibv_devinfo", &["", "-v", "-d feroce0 -i 1"], "state: PORT_ACTIVE (4)"),
        pair(
            "ibv_rc_pingpong",
            &[
                "-g 0 -n 200",
                "-g 1 -n 200",
                "-g 0 -n 200 -e",
                "-g 0 -n 200 -c -s 65536",
                "-g 0 -n 200 -N",
                "-g 0 -n 200 -t",
                "-g 0 -n 200 -o",
                "-g 0 -n 200 -O",
                "-g 0 -n 200 -o -P",
                "-g 0 -n 200 -j",
                "-g 0 -n 200 -e -N -c",
            ],
            "200 iters in",
        ),
        pair("ibv_uc_pingpong", &["-g 0 -n 200", "-g 0 -n 200 -e -c"], "200 iters in"),
        pair("ibv_ud_pingpong", &["-g 0 -n 200", "-g 1 -n 200 -e -c"], "200 iters in"),
        pair("ibv_srq_pingpong", &["-g 0 -n 200", "-g 0 -n 200 -e -c -q 4"], "200 iters in"),
        pair("ibv_xsrq_pingpong", &["-g 0 -n 200", "-g 0 -n 200 -e"], "success"),
    ],
};

pub(crate) const RDMACM_UTILS: Package = Package {
    name: "rdmacm-utils",
    version: "44.0",
    environment: &[],
    programs: &[
        roles(
            "rping",
            ["rping -s", "rping -c -a 10.9.0.1"],
            Ready::Soon,
            &["-v -C 5", "-V -v -C 20 -S 1000", "-v -C 5 -q"],
            "ping data: rdma-ping-4:",
        ),
        roles(
            "rping",
            ["rping -s -a fd09::1", "rping -c -a fd09::1 -I fd09::2"],
            Ready::Soon,
            &["-v -C 5 -p 9999"],
            "ping data: rdma-ping-4:",
        ),
        roles(
            "ucmatose",
            ["ucmatose", "ucmatose -s 10.9.0.1"],
            Ready::Soon,
            &["", "-c 20 -C 5 -S 8000", "-m -t 8 -a 15", "-P ib -c 3"],
            "return status 0",
        ),
        roles(
            "ucmatose",
            ["ucmatose -b fd09::1", "ucmatose -s fd09::1"],
            Ready::Soon,
            &["-f ipv6"],
            "return status 0",
        ),
        roles(
            "udaddy",
            ["udaddy", "udaddy -s 10.9.0.1"],
            Ready::Soon,
            &["", "-c 5 -C 10 -S 1000", "-t 8"],
            "return status 0",
        ),
        roles(
            "udaddy",
            ["udaddy -b fd09::1", "udaddy -s fd09::1"],
            Ready::Soon,
            &["-f ipv6"],
            "return status 0",
        ),
        roles(
            "mckey",
            ["mckey -b 10.9.0.1", "mckey -b 10.9.0.2 -s"],
            Ready::Member,
            &["-m 239.1.1.1", "-m 239.1.1.1 -C 20 -S 100", "-m 239.1.1.1 -l"],
            "return status 0",
        ),
        roles(
            "rdma_client",
            ["rdma_server", "rdma_client -s 10.9.0.1"],
            Ready::Soon,
            &["", "-p 7500"],
            "end 0",
        ),
        roles(
            "rdma_xclient",
            ["rdma_xserver", "rdma_xclient -s 10.9.0.1"],
            Ready::Soon,
            &["", "-c r"],
            "end 0",
        ),
        endless(roles(
            "cmtime",
            ["cmtime", "cmtime -s 10.9.0.1"],
            Ready::Soon,
            &["-c 50"],
            "disconnect :",
        )),
    ],
};

/// The commands of feroce with the originals at the other end, both ways round.
pub(crate) const MIXED: Package = Package {
    name: "rdmacm-utils",
    version: "44.0",
    environment: &[],
    programs: &[
        roles(
            "rping",
            ["feroce rping -s -a 10.9.0.1", "rping -c -a 10.9.0.1"],
            Ready::Soon,
            &["-v -C 5", "-V -v -C 5 -S 1000"],
            "ping data: rdma-ping-4:",
        ),
        roles(
            "rping",
            ["rping -s -a fd09::1", "feroce rping -c -a fd09::1"],
            Ready::Soon,
            &["-v -C 5", "-V -v -C 5 -S 1000"],
            "ping data: rdma-ping-4:",
        ),
        roles(
            "ucmatose",
            ["feroce ucmatose", "ucmatose -s 10.9.0.1"],
            Ready::Soon,
            &["-c 5 -C 5 -S 8000"],
            "return status 0",
        ),
        roles(
            "ucmatose",
            ["ucmatose", "feroce ucmatose -s 10.9.0.1"],
            Ready::Soon,
            &["-c 5 -C 5 -S 8000"],
            "return status 0",
        ),
        roles(
            "udaddy",
            ["feroce udaddy", "udaddy -s 10.9.0.1"],
            Ready::Soon,
            &["", "-c 3 -C 5 -S 1000"],
            "return status 0",
        ),
        roles(
            "udaddy",
            ["udaddy", "feroce udaddy -s 10.9.0.1"],
            Ready::Soon,
            &["", "-c 3 -C 5 -S 1000"],
            "return status 0",
        ),
        roles(
            "mckey",
            ["feroce mckey -b 10.9.0.1", "mckey -b 10.9.0.2 -s"],
            Ready::Member,
            &["-m 239.1.1.1", "-m 239.1.1.1 -l"],
            "return status 0",
        ),
        roles(
            "mckey",
            ["mckey -b 10.9.0.1", "feroce mckey -b 10.9.0.2 -s"],
            Ready::Member,
            &["-m 239.1.1.1", "-m 239.1.1.1 -l"],
            "return status 0",
        ),
        roles(
            "rdma_client",
            ["feroce server", "rdma_client -s 10.9.0.1"],
            Ready::Soon,
            &["", "-p 7500"],
            "end 0",
        ),
        roles(
            "rdma_server",
            ["rdma_server", "feroce client -s 10.9.0.1"],
            Ready::Soon,
            &["", "-p 7500"],
            "end 0",
        ),
        endless(roles(
            "cmtime",
            ["feroce cmtime", "cmtime -s 10.9.0.1"],
            Ready::Soon,
            &["-c 50"],
            "disconnect :",
        )),
        endless(roles(
            "cmtime",
            ["cmtime", "feroce cmtime -s 10.9.0.1"],
            Ready::Soon,
            &["-c 50"],
            "disconnect :",
        )),
    ],
};
