//! A snapshot as text: one line for each object and counter, with fields between tabs. A reader
//! skips lines and fields that it does not know; so processes of different versions can look at
//! each other.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::str::FromStr;

use feroce_cm::rdma::gid_of;
use feroce_engine::{
    Counters, CqReport, DropCounters, QpCounters, QpReport, QpState, QpType, Report,
};
use feroce_wire::{Gid, Qpn};

use super::{ConnectionSnapshot, CqSnapshot, QpSnapshot, Snapshot};

/// The last line: without it the text is not complete.
const END: &str = "end";

/// What a device has to tell.
#[derive(Debug)]
pub(crate) struct State<'a> {
    pub(crate) device: &'a str,
    pub(crate) addresses: Vec<Gid>,
    pub(crate) age_ns: u64,
    pub(crate) counters: Counters,
    pub(crate) drops: DropCounters,
    pub(crate) link: Vec<(&'static str, u64)>,
    pub(crate) fault: Option<String>,
    pub(crate) report: Report,
    pub(crate) connections: Vec<ConnectionSnapshot>,
}

/// Writes a snapshot.
pub(crate) fn write(state: &State<'_>) -> String {
    let mut text = String::new();
    let mut line = |fields: std::fmt::Arguments<'_>| {
        // Writing into a string does not fail.
        let _ = writeln!(text, "{fields}");
    };
    let report = &state.report;
    line(format_args!("device\t{}", state.device.replace(['\t', '\n'], " ")));
    line(format_args!("age_ns\t{}", state.age_ns));
    state.addresses.iter().for_each(|gid| line(format_args!("address\t{}", gid.to_ip())));
    for (kind, value) in [
        ("mrs", report.mrs as u64),
        ("mr_bytes", report.mr_bytes),
        ("pds", report.pds as u64),
        ("srqs", report.srqs as u64),
        ("ahs", report.ahs as u64),
    ] {
        line(format_args!("{kind}\t{value}"));
    }
    state.fault.iter().for_each(|fault| line(format_args!("fault\t{fault}")));
    for (name, value) in report.totals.iter() {
        line(format_args!("total\t{name}\t{value}"));
    }
    for (name, value) in state.counters.iter() {
        line(format_args!("counter\t{name}\t{value}"));
    }
    for (name, value) in state.drops.iter() {
        line(format_args!("drop\t{name}\t{value}"));
    }
    for (name, value) in &state.link {
        line(format_args!("link\t{name}\t{value}"));
    }
    report.qps.iter().for_each(|qp| line(format_args!("{}", qp_line(qp))));
    for &CqReport { id, depth, waiting, users } in &report.cqs {
        let number = id.0;
        line(format_args!("cq\tnumber={number}\tdepth={depth}\twaiting={waiting}\tusers={users}"));
    }
    for connection in &state.connections {
        let mut fields = format!("connection\tstate={}", connection.state);
        let optional = [
            ("qpn", connection.qpn.map(|qpn| qpn.get().to_string())),
            ("local", connection.local.map(|addr| addr.to_string())),
            ("peer", connection.peer.map(|addr| addr.to_string())),
        ];
        for (key, value) in optional {
            fields.extend(value.map(|value| format!("\t{key}={value}")));
        }
        line(format_args!("{fields}"));
    }
    line(format_args!("{END}"));
    text
}

fn qp_line(qp: &QpReport) -> String {
    let (qpn, kind, state) = (qp.qpn.get(), name_of(qp.qp_type), qp.state as u8);
    let mut fields = format!(
        "qp\tqpn={qpn}\ttype={kind}\tstate={state}\twaiting={}\trtt_ns={}\twindow={}",
        qp.waiting, qp.rtt_ns, qp.window
    );
    fields.extend(
        qp.peer.map(|(gid, qpn)| format!("\tpeer={}\tpeer_qpn={}", gid.to_ip(), qpn.get())),
    );
    fields.extend(qp.counters.iter().map(|(name, value)| format!("\t{name}={value}")));
    fields
}

const TYPES: [(QpType, &str); 5] = [
    (QpType::Rc, "RC"),
    (QpType::Uc, "UC"),
    (QpType::Ud, "UD"),
    (QpType::XrcIni, "XRC_INI"),
    (QpType::XrcTgt, "XRC_TGT"),
];

fn name_of(qp_type: QpType) -> &'static str {
    TYPES.iter().find(|(t, _)| *t == qp_type).map_or("", |(_, name)| name)
}

fn type_of(name: &str) -> Option<QpType> {
    TYPES.iter().find(|(_, n)| *n == name).map(|(qp_type, _)| *qp_type)
}

/// Reads a snapshot; `None` if it is not complete.
pub(super) fn parse(text: &str) -> Option<Snapshot> {
    let (mut seen, mut totals) = (Snapshot::default(), BTreeMap::new());
    for line in text.lines() {
        let (kind, rest) = line.split_once('\t').unwrap_or((line, ""));
        match kind {
            "device" => seen.device = rest.to_owned(),
            "age_ns" => seen.age_ns = rest.parse().ok()?,
            "address" => seen.addresses.push(gid_of(rest.parse().ok()?)),
            "fault" => seen.fault = Some(rest.to_owned()),
            "mrs" => seen.mrs = rest.parse().ok()?,
            "mr_bytes" => seen.mr_bytes = rest.parse().ok()?,
            "pds" => seen.pds = rest.parse().ok()?,
            "srqs" => seen.srqs = rest.parse().ok()?,
            "ahs" => seen.ahs = rest.parse().ok()?,
            "total" => add(&mut totals, rest)?,
            "counter" => add(&mut seen.counters, rest)?,
            "drop" => add(&mut seen.drops, rest)?,
            "link" => add(&mut seen.link, rest)?,
            "qp" => seen.qps.push(qp(&Fields::new(rest))?),
            "cq" => seen.cqs.push(cq(&Fields::new(rest))?),
            "connection" => seen.connections.push(connection(&Fields::new(rest))?),
            END => {
                seen.totals = QpCounters::by_name(|name| totals.get(name).copied().unwrap_or(0));
                return Some(seen);
            }
            _ => {}
        }
    }
    None
}

fn add(counters: &mut BTreeMap<String, u64>, line: &str) -> Option<()> {
    let (name, value) = line.split_once('\t')?;
    counters.insert(name.to_owned(), value.parse().ok()?);
    Some(())
}

/// The fields of a line, by key.
struct Fields<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Fields<'a> {
    fn new(line: &'a str) -> Self {
        Self(line.split('\t').filter_map(|field| field.split_once('=')).collect())
    }

    fn get<T: FromStr>(&self, key: &str) -> Option<T> {
        self.0.get(key)?.parse().ok()
    }
}

fn qp(fields: &Fields<'_>) -> Option<QpSnapshot> {
    let peer = fields.get::<IpAddr>("peer").zip(fields.get("peer_qpn").map(Qpn::new));
    Some(QpSnapshot {
        qpn: Qpn::new(fields.get("qpn")?),
        qp_type: type_of(fields.0.get("type")?)?,
        state: QpState::from_u8(fields.get("state")?),
        peer: peer.map(|(ip, qpn)| (gid_of(ip), qpn)),
        waiting: fields.get("waiting").unwrap_or(0),
        rtt_ns: fields.get("rtt_ns").unwrap_or(0),
        window: fields.get("window").unwrap_or(0),
        counters: QpCounters::by_name(|name| fields.get(name).unwrap_or(0)),
    })
}

fn cq(fields: &Fields<'_>) -> Option<CqSnapshot> {
    Some(CqSnapshot {
        number: fields.get("number")?,
        depth: fields.get("depth")?,
        waiting: fields.get("waiting").unwrap_or(0),
        users: fields.get("users").unwrap_or(0),
    })
}

fn connection(fields: &Fields<'_>) -> Option<ConnectionSnapshot> {
    Some(ConnectionSnapshot {
        state: fields.get("state")?,
        qpn: fields.get("qpn").map(Qpn::new),
        local: fields.get("local"),
        peer: fields.get("peer"),
    })
}

#[cfg(test)]
mod tests {
    use feroce_engine::CqId;

    use super::*;

    fn state() -> State<'static> {
        let qp = QpReport {
            qpn: Qpn::new(0x0102),
            qp_type: QpType::Rc,
            state: QpState::Rts,
            peer: Some((Gid::from_ipv4([192, 0, 2, 7]), Qpn::new(9))),
            waiting: 3,
            rtt_ns: 17_000,
            window: 1 << 20,
            counters: QpCounters { requests: 5, request_bytes: 6, ..QpCounters::default() },
        };
        let unconnected = QpReport { state: QpState::Init, peer: None, ..qp };
        State {
            device: "fe0",
            addresses: vec![Gid::from_ipv4([192, 0, 2, 1]), gid_of("fe80::1".parse().expect("ip"))],
            age_ns: 12,
            counters: Counters { sent_pkts: 44, ..Counters::default() },
            drops: DropCounters { drop_unknown_qp: 2, ..DropCounters::default() },
            link: vec![("fault_lost", 8)],
            fault: Some("loss=1%".to_owned()),
            report: Report {
                totals: QpCounters { served: 70, ..QpCounters::default() },
                qps: vec![qp, unconnected],
                cqs: vec![CqReport { id: CqId(4), depth: 16, waiting: 1, users: 2 }],
                mrs: 1,
                mr_bytes: 4096,
                pds: 1,
                srqs: 0,
                ahs: 0,
            },
            connections: vec![ConnectionSnapshot {
                state: "listening".to_owned(),
                qpn: None,
                local: Some("192.0.2.1:7471".parse().expect("address")),
                peer: None,
            }],
        }
    }

    #[test]
    fn a_snapshot_is_read_as_it_was_written() {
        let state = state();
        let seen = parse(&write(&state)).expect("complete");
        assert_eq!((seen.device.as_str(), seen.age_ns, seen.mr_bytes), ("fe0", 12, 4096));
        assert_eq!((&seen.addresses, &seen.fault), (&state.addresses, &state.fault));
        assert_eq!(seen.totals, state.report.totals);
        assert_eq!(seen.counters["sent_pkts"], 44);
        assert_eq!((seen.drops["drop_unknown_qp"], seen.link["fault_lost"]), (2, 8));
        let [qp, other] = seen.qps[..] else { panic!("two queue pairs: {:?}", seen.qps) };
        assert_eq!(qp.counters, state.report.qps[0].counters);
        assert_eq!((qp.peer, other.peer), (state.report.qps[0].peer, None));
        assert_eq!((qp.waiting, qp.rtt_ns, qp.window), (3, 17_000, 1 << 20));
        assert_eq!((seen.cqs[0].number, seen.cqs[0].depth, seen.cqs[0].users), (4, 16, 2));
        assert_eq!(seen.connections, state.connections);
    }

    #[test]
    fn what_is_cut_short_is_refused_and_what_is_new_is_skipped() {
        let whole = write(&state());
        let cut = whole.strip_suffix("end\n").expect("the last line");
        assert_eq!(parse(cut), None);
        let newer = whole.replacen("\nqp\t", "\ncolour\tblue\nqp\tshade=3\t", 1);
        assert_eq!(parse(&newer), parse(&whole));
        assert_eq!(parse(&whole.replace("mrs\t1", "mrs\tmany")), None);
    }
}
