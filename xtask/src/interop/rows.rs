//! The rows of the matrix: programs, how they are run, and what they must say.

use super::cells::{Form, Network};
use super::counters::Counters;
use super::driver::Driver;
use super::lab::Side;
use super::ready::Ready;

/// How the programs of a family are called. In these words, `%s` and `%c` stand for the addresses
/// of server and client, `%m` for the one at which they meet over TCP, `%p` for a port, `%d` for
/// the device and `%g` for the index of the address there, `%G` for a multicast group.
#[derive(Debug)]
pub(super) struct Family {
    /// What both ends are told.
    pub(super) both: &'static str,
    /// What only the server is told, and only the client.
    pub(super) roles: [&'static str; 2],
    /// What a command of ours is told besides.
    pub(super) tool: &'static str,
    /// What shows that the server is ready.
    pub(super) ready: Ready,
    /// The port that the programs use, if they cannot be told one.
    pub(super) port: Option<u16>,
    /// The side at which a client does something too soon, and has to wait (`interop/late.c`).
    pub(super) hasty_client: Option<Side>,
    /// Our end must not close its connections at once (`interop/linger.c`).
    pub(super) lingers: bool,
}

/// How a server ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// By itself, with success.
    Well,
    /// The test kills it while messages are under way.
    Killed,
    /// Not before it is told to.
    Never,
}

/// One line of the table.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) family: &'static Family,
    /// What server and client are called; mostly the same.
    pub(super) programs: [&'static str; 2],
    /// The same at both ends.
    pub(super) options: &'static str,
    /// What a client says when all went well, white space aside; `%n` and `%b` stand for the
    /// values of `-n` and `-s`.
    pub(super) says: &'static str,
    pub(super) ending: Ending,
    /// What our link does to what it receives, in the words of `FEROCE_FAULT`.
    pub(super) fault: &'static str,
    /// Variables of our end.
    pub(super) settings: &'static [(&'static str, &'static str)],
    pub(super) counters: Counters,
    /// Whether the kernel's end is our command, too, on the kernel's driver.
    pub(super) is_ours_there: bool,
    /// Whether what the ends say must be the same in all cells of the row, in either role.
    pub(super) is_compared: bool,
    /// What is at the other end.
    pub(super) driver: Driver,
    pub(super) forms: &'static [Form],
    /// Who may be the server.
    pub(super) servers: &'static [Side],
    pub(super) networks: &'static [Network],
}

impl Row {
    /// What a client says when all went well, white space aside.
    pub(super) fn says(&self) -> String {
        let bytes = value(self.options, "-s");
        self.says.replace("%n", value(self.options, "-n")).replace("%b", bytes)
    }

    /// What shows that the server is ready. A listener of iWARP is one of TCP.
    pub(super) fn ready(&self) -> Ready {
        match (self.driver, self.family.ready) {
            (Driver::Siw, Ready::Listener) => Ready::Port,
            (_, ready) => ready,
        }
    }

    /// What is special about it, if anything is.
    pub(super) fn remark(&self) -> String {
        let fault = self.fault.split(',').next().unwrap_or_default();
        let of_setting = |(name, value): &(&str, &str)| match (*name, *value) {
            ("FEROCE_MPA_CRC", "0") => Some("no CRC"),
            ("FEROCE_MPA_REVISION", "1") => Some("MPA revision 1"),
            ("FEROCE_MPA_PEER_TO_PEER", "0") => Some("the client sends first"),
            _ => None,
        };
        let fault = Some(fault).filter(|fault| !fault.is_empty());
        let remarks = fault.into_iter().chain(self.settings.iter().filter_map(of_setting));
        remarks.map(|remark| format!(", {remark}")).collect()
    }

    /// Both names of a pair of programs, or the one of both ends.
    pub(super) fn name(&self) -> String {
        match self.programs {
            [program, _] if self.is_ours_there => format!("feroce {}", tool(program)),
            [server, client] if server == client => server.to_owned(),
            [server, client] => format!("{server}, {client}"),
        }
    }
}

/// What a program of the distribution is called among our commands.
pub(super) fn tool(program: &str) -> String {
    if let Some(measured) = program.strip_prefix("ib_") {
        return format!("perf {}", measured.replace('_', " "));
    }
    let bare = ["ibv_", "rdma_"].iter().find_map(|prefix| program.strip_prefix(prefix));
    bare.unwrap_or(program).replace('_', "-")
}

/// The value of an option, as in `-n 100`.
fn value<'a>(options: &'a str, name: &str) -> &'a str {
    let mut words = options.split_whitespace().skip_while(|word| *word != name);
    words.nth(1).unwrap_or_default()
}

const BOTH: &[Network] = &[Network::V4, Network::V6];
const ONLY_V4: &[Network] = &[Network::V4];
const ALL: &[Form] = &[Form::Tool, Form::DropIn];
const ONLY_TOOL: &[Form] = &[Form::Tool];
const ONLY_DROP_IN: &[Form] = &[Form::DropIn];

/// Programs of libibverbs.
const VERBS: Family = Family {
    both: "-d %d -g %g -p %p",
    roles: ["", "%m"],
    tool: "--timeout 60",
    ready: Ready::Port,
    port: None,
    hasty_client: None,
    lingers: false,
};

/// perftest. An emulated machine answers late, hence `-u`.
const PERF: Family = Family { both: "-F -u 18 -d %d -x %g -p %p", tool: "", ..VERBS };

/// What we have in its place.
const MEASURED: Family = Family { tool: "", ..VERBS };

/// The same as perftest, connected by address.
pub(super) const PERF_CM: Family = Family {
    both: "-F -d %d -x %g -p %p",
    roles: ["", "%s"],
    ready: Ready::Listener,
    hasty_client: Some(Side::Ours),
    ..PERF
};

/// Our own, which stand in `interop`.
const PROBE: Family = Family { tool: "", ..VERBS };
const GROUPS: Family = Family { both: "-d %d -g %g -p %p %G", ..PROBE };
pub(super) const CALLER: Family = by_address("-a %s -p %p", ["", "-c"]);

/// Programs of librdmacm.
pub(super) const RPING: Family = by_address("-a %s -p %p", ["-s", "-c"]);
const GREETING: Family = by_address("-s %s -p %p", ["", ""]);
pub(super) const CMATOSE: Family = by_address("-p %p", ["-b %s", "-s %s"]);
const UDADDY: Family = Family { port: Some(7174), ..by_address("", ["-b %s", "-s %s"]) };
const MCKEY: Family = Family {
    ready: Ready::Member,
    hasty_client: Some(Side::Kernel),
    ..by_address("-m %G", ["-b %s", "-b %c -s"])
};

const fn by_address(both: &'static str, roles: [&'static str; 2]) -> Family {
    Family { both, roles, ready: Ready::Listener, tool: "", ..VERBS }
}

const fn pingpong(program: &'static str, options: &'static str) -> Row {
    Row { forms: ALL, ..row(&VERBS, [program; 2], options, "%n iters in") }
}

/// A length that our command should be able to do; our library has more of them in `probe`.
const fn length(options: &'static str) -> Row {
    Row { forms: ONLY_TOOL, ..pingpong("ibv_rc_pingpong", options) }
}

/// It ends while others still send to it.
const fn leaving(row: Row) -> Row {
    Row { counters: Counters::Leaving, ..row }
}

/// Our command at both ends, on the kernel's driver at the other.
const fn ours_there(row: Row) -> Row {
    Row { is_ours_there: true, forms: ONLY_TOOL, ..row }
}

/// The same for what measures; the words that the two ends exchange are our own.
const fn measured(program: &'static str, options: &'static str, says: &'static str) -> Row {
    ours_there(row(&MEASURED, [program; 2], options, says))
}

const fn perf(program: &'static str, options: &'static str) -> Row {
    row(&PERF, [program; 2], options, " %b %n ")
}

/// By address, these programs know IPv4 only.
pub(super) const fn perf_cm(program: &'static str, options: &'static str) -> Row {
    Row { networks: ONLY_V4, ..row(&PERF_CM, [program; 2], options, " %b %n ") }
}

const fn atomic(options: &'static str) -> Row {
    row(&PERF, ["ib_atomic_bw"; 2], options, " 8 %n ")
}

const fn probe(options: &'static str) -> Row {
    row(&PROBE, ["probe"; 2], options, CONTENT)
}

const fn random(options: &'static str) -> Row {
    Row { is_compared: true, ..wrong(row(&PROBE, ["random"; 2], options, CONTENT)) }
}

/// A program of the swarm: everything in it succeeds.
const fn swarm(seed: &'static str) -> Row {
    Row { is_compared: true, ..row(&PROBE, [SWARM; 2], seed, CONTENT) }
}

/// What runs programs of the swarm.
pub(super) const SWARM: &str = "swarm";

const fn group(options: &'static str) -> Row {
    row(&GROUPS, ["group"; 2], options, CONTENT)
}

/// What our own programs say.
const CONTENT: &str = "as it should be";

pub(super) const fn caller(options: &'static str) -> Row {
    row(&CALLER, ["caller"; 2], options, CONTENT)
}

pub(super) const fn cm(
    family: &'static Family,
    program: &'static str,
    options: &'static str,
) -> Row {
    Row { forms: ALL, ..row(family, [program; 2], options, "return status 0") }
}

const fn row(
    family: &'static Family,
    programs: [&'static str; 2],
    options: &'static str,
    says: &'static str,
) -> Row {
    let (ending, counters) = (Ending::Well, Counters::AtRest);
    let (forms, networks, servers) = (ONLY_DROP_IN, BOTH, &[Side::Kernel, Side::Ours]);
    let (fault, is_ours_there, is_compared) = ("", false, false);
    let (settings, driver) = (&[], Driver::Rxe);
    Row {
        family,
        programs,
        options,
        says,
        ending,
        fault,
        settings,
        counters,
        is_ours_there,
        is_compared,
        driver,
        forms,
        servers,
        networks,
    }
}

/// A row in which our link loses 1 % of the packets that it receives.
const fn lossy(row: Row) -> Row {
    Row { fault: "loss=1%,seed=7", counters: Counters::Lossy, ..row }
}

/// A row that tests errors.
const fn wrong(row: Row) -> Row {
    Row { counters: Counters::Free, ..row }
}

/// A row in which the server is killed.
pub(super) const fn killed(row: Row) -> Row {
    Row { ending: Ending::Killed, ..wrong(row) }
}

/// Rows that are there for the kernel's programs and for our own on its driver.
pub(super) const PINGS: Row =
    Row { says: "ping data: rdma-ping-4:", ..cm(&RPING, "rping", "-v -V -C 5 -S 1000") };
pub(super) const GREETINGS: Row =
    Row { programs: ["rdma_server", "rdma_client"], says: "end 0", ..cm(&GREETING, "", "") };
const TIMES: Row =
    Row { ending: Ending::Never, says: "disconnect :", ..cm(&CMATOSE, "cmtime", "-c 20") };

/// The connection manager of the kernel joins no groups of IPv6 over RoCEv2.
const MEMBERS: Row = Row { networks: ONLY_V4, ..cm(&MCKEY, "mckey", "-C 5 -S 1000") };

#[rustfmt::skip] // a table: one row, one line
pub(super) const ROWS: &[Row] = &[
    pingpong("ibv_rc_pingpong", "-c -n 20 -m 1024 -s 1025"),
    pingpong("ibv_rc_pingpong", "-c -n 10 -m 4096 -s 65539"),
    length("-c -n 5 -m 1024 -s 1"),
    length("-c -n 5 -m 1024 -s 1023"),
    length("-c -n 5 -m 1024 -s 1024"),
    length("-c -n 5 -m 4096 -s 4095"),
    length("-c -n 5 -m 4096 -s 4096"),
    length("-c -n 5 -m 4096 -s 4097"),
    length("-c -n 2 -m 4096 -s 8388608"),
    pingpong("ibv_uc_pingpong", "-c -n 20 -m 1024 -s 1025"),
    pingpong("ibv_uc_pingpong", "-c -n 20 -m 4096 -s 8193"),
    pingpong("ibv_ud_pingpong", "-c -n 20 -s 1024"),
    pingpong("ibv_ud_pingpong", "-c -n 20 -s 4096"),
    leaving(pingpong("ibv_srq_pingpong", "-c -n 20 -m 1024 -s 1025 -q 4")),
    leaving(pingpong("ibv_srq_pingpong", "-c -n 20 -m 4096 -s 65539 -q 4")),
    lossy(pingpong("ibv_rc_pingpong", "-c -n 100 -m 1024 -s 4097")),
    ours_there(pingpong("ibv_rc_pingpong", "-c -n 20 -m 1024 -s 1025")),
    ours_there(pingpong("ibv_uc_pingpong", "-c -n 20 -m 1024 -s 1025")),
    ours_there(pingpong("ibv_ud_pingpong", "-c -n 20 -s 1024")),
    leaving(ours_there(pingpong("ibv_srq_pingpong", "-c -n 20 -m 1024 -s 1025 -q 4"))),
    measured("ib_send_bw", "-m 1024 -n 20 -s 65539", " %b %n "),
    measured("ib_send_bw", "-n 600 -r 1024 -s 8 -t 1", " %b %n "),
    measured("ib_send_bw", "-m 1024 -n 600 -r 1024 -s 2048 -t 1", " %b %n "),
    measured("ib_send_lat", "-n 20 -s 1", " %b %n "),
    measured("ib_write_bw", "-m 4096 -n 20 -s 65539", " %b %n "),
    measured("ib_write_lat", "-n 20 -s 1025", " %b %n "),
    measured("ib_read_bw", "-m 1024 -n 20 -s 65539", " %b %n "),
    measured("ib_read_lat", "-n 20 -s 4097", " %b %n "),
    measured("ib_atomic_bw", "-n 20 -A fetch-add", " 8 %n "),
    measured("ib_atomic_lat", "-n 20 -A cmp-swap", " 8 %n "),
    perf("ib_send_bw", "-m 1024 -n 10 -s 65539"),
    perf("ib_send_bw", "-m 4096 -n 10 -s 65539"),
    perf("ib_send_bw", "-c UD -n 10 -s 1023"),
    perf("ib_send_lat", "-n 10 -s 1"),
    perf("ib_write_bw", "-m 1024 -n 10 -s 65539"),
    perf("ib_write_bw", "-m 4096 -n 5 -s 8388608"),
    perf("ib_write_lat", "-n 10 -s 1025"),
    perf("ib_read_bw", "-m 1024 -n 10 -s 65539"),
    perf("ib_read_bw", "-m 4096 -n 5 -s 8388608"),
    perf("ib_read_lat", "-n 10 -s 4097"),
    atomic("-n 10 -A FETCH_AND_ADD"),
    atomic("-n 10 -A CMP_AND_SWAP"),
    lossy(perf("ib_write_bw", "-m 1024 -n 20 -s 65539")),
    lossy(perf("ib_read_bw", "-m 1024 -n 20 -s 65539")),
    lossy(perf("ib_send_bw", "-m 1024 -n 20 -s 65539")),
    probe("-m 1024 lengths"),
    probe("-m 4096 lengths"),
    probe("-m 1024 atomics"),
    wrong(probe("-m 1024 bad-rkey")),
    wrong(probe("-m 1024 no-receive")),
    killed(probe("-m 1024 killed")),
    random("-m 1024 1"),
    random("-m 1024 2"),
    random("-m 4096 3"),
    random("-m 4096 4"),
    swarm("1"),
    swarm("2"),
    swarm("3"),
    swarm("4"),
    swarm("5"),
    swarm("6"),
    swarm("7"),
    swarm("8"),
    swarm("9"),
    swarm("10"),
    swarm("11"),
    swarm("12"),
    PINGS,
    lossy(Row { says: "ping data: rdma-ping-39:", ..cm(&RPING, "rping", "-v -V -C 40 -S 4000") }),
    GREETINGS,
    cm(&CMATOSE, "ucmatose", "-c 5 -C 5 -S 8000"),
    cm(&UDADDY, "udaddy", "-c 5 -C 5 -S 1000"),
    group(""),
    MEMBERS,
    TIMES,
    ours_there(PINGS),
    ours_there(GREETINGS),
    ours_there(cm(&CMATOSE, "ucmatose", "-c 5 -C 5 -S 8000")),
    ours_there(cm(&UDADDY, "udaddy", "-c 5 -C 5 -S 1000")),
    ours_there(MEMBERS),
    ours_there(TIMES),
    perf_cm("ib_send_bw", "-R -n 10 -s 65539"),
    perf_cm("ib_write_bw", "-R -n 10 -s 65539"),
    perf_cm("ib_write_lat", "-R -n 10 -s 1025"),
    perf_cm("ib_read_bw", "-R -n 10 -s 65539"),
    perf_cm("ib_send_lat", "-R -n 10 -s 1"),
    perf_cm("ib_read_lat", "-R -n 10 -s 4097"),
    Row { says: " 8 %n ", ..perf_cm("ib_atomic_bw", "-R -n 10 -A FETCH_AND_ADD") },
    Row { says: " 8 %n ", ..perf_cm("ib_atomic_bw", "-R -n 10 -A CMP_AND_SWAP") },
    caller("private-data"),
    caller("refused"),
    caller("no-listener"),
    killed(caller("killed")),
];
