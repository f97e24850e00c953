//! What was seen, as Prometheus and OpenMetrics read it.
//!
//! A device has a fixed number of series; queue pairs come and go, and have none of their own.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use feroce::watch::Snapshot;

use crate::inside::{Look, qp_state, qp_type};

/// Which of the two texts to write: they differ in how counters are declared, and in the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Format {
    Prometheus,
    OpenMetrics,
}

impl Format {
    /// The one that a client accepts.
    pub(super) fn accepted(accept: Option<&str>) -> Self {
        match accept {
            Some(types) if types.contains("application/openmetrics-text") => Self::OpenMetrics,
            _ => Self::Prometheus,
        }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A metric: its name, whether it only grows, and what it is.
pub(super) struct Family(pub(super) &'static str, pub(super) Kind, pub(super) &'static str);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
}

/// What queue pairs did, by the name of the counter.
const TOTALS: [(&str, Family); 7] = [
    ("requests", Family("feroce_requests", Kind::Counter, "Requests that programs posted.")),
    (
        "request_bytes",
        Family("feroce_request_bytes", Kind::Counter, "Payload of requests that programs posted."),
    ),
    (
        "direct_requests",
        Family(
            "feroce_direct_requests",
            Kind::Counter,
            "Requests copied between processes of this host without a packet.",
        ),
    ),
    ("served", Family("feroce_served", Kind::Counter, "Messages executed for peers.")),
    (
        "served_bytes",
        Family("feroce_served_bytes", Kind::Counter, "Payload of messages executed for peers."),
    ),
    (
        "retransmissions",
        Family("feroce_retransmissions", Kind::Counter, "Times a queue pair retransmitted."),
    ),
    (
        "rnr_naks",
        Family("feroce_rnr_naks", Kind::Counter, "Times a peer had no receive posted (RNR NAK)."),
    ),
];

const EVENTS: Family =
    Family("feroce_adapter_events", Kind::Counter, "What the adapter counts, by name.");
const DROPS: Family =
    Family("feroce_dropped_packets", Kind::Counter, "Packets that the adapter dropped, by reason.");
const LINK: Family = Family("feroce_link_events", Kind::Counter, "What the link counts, by name.");
const QPS: Family = Family("feroce_queue_pairs", Kind::Gauge, "Queue pairs, by service and state.");
const CONNECTIONS: Family =
    Family("feroce_connections", Kind::Gauge, "Connections and listeners, by state.");
const ROUND_TRIP: Family = Family(
    "feroce_longest_round_trip_seconds",
    Kind::Gauge,
    "The longest smoothed round trip time among the queue pairs.",
);
const UNANSWERED: Family = Family(
    "feroce_silent_processes",
    Kind::Gauge,
    "Processes with an open device that did not answer in time.",
);

/// Numbers of one device.
type Gauge = (Family, fn(&Snapshot) -> u64);

const GAUGES: [Gauge; 6] = [
    (Family("feroce_memory_regions", Kind::Gauge, "Memory regions."), |d| d.mrs),
    (Family("feroce_memory_region_bytes", Kind::Gauge, "Bytes of all memory regions."), |d| {
        d.mr_bytes
    }),
    (Family("feroce_protection_domains", Kind::Gauge, "Protection domains."), |d| d.pds),
    (Family("feroce_completion_queues", Kind::Gauge, "Completion queues."), |d| d.cqs.len() as u64),
    (Family("feroce_shared_receive_queues", Kind::Gauge, "Shared receive queues."), |d| d.srqs),
    (Family("feroce_waiting_requests", Kind::Gauge, "Requests that are not complete."), |d| {
        d.qps.iter().map(|qp| qp.waiting).sum()
    }),
];

/// Counters of one device, by name.
type Counters = fn(&Snapshot) -> &BTreeMap<String, u64>;

/// What distinguishes samples of a metric: names and values.
pub(super) type Labels = Vec<(&'static str, String)>;

/// A number of a sample.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Number {
    Whole(u64),
    Real(f64),
}

/// Where metrics go: a family, and then its samples.
pub(super) trait Output {
    fn family(&mut self, family: &Family);
    fn sample(&mut self, family: &Family, labels: Labels, value: Number);
}

/// Writes all metrics.
pub(super) fn write(look: &Look, format: Format) -> String {
    let mut text = Text { text: String::new(), format };
    visit(look, &mut text);
    if format == Format::OpenMetrics {
        text.text.push_str("# EOF\n");
    }
    text.text
}

/// Hands all metrics to `out`.
pub(super) fn visit(look: &Look, out: &mut impl Output) {
    for (name, family) in &TOTALS {
        out.family(family);
        for device in &look.devices {
            let value = device.totals.iter().find(|(n, _)| n == name).map_or(0, |(_, v)| v);
            out.sample(family, labels(look, device), Number::Whole(value));
        }
    }
    let by_name: [(&Family, &str, &str, Counters); 3] = [
        (&EVENTS, "event", "", |device| &device.counters),
        (&DROPS, "reason", "drop_", |device| &device.drops),
        (&LINK, "event", "", |device| &device.link),
    ];
    for (family, label, prefix, counters) in by_name {
        out.family(family);
        for device in &look.devices {
            for (name, value) in counters(device) {
                let name = name.strip_prefix(prefix).unwrap_or(name);
                let more = [(label, name.to_owned())];
                out.sample(family, with(look, device, more), Number::Whole(*value));
            }
        }
    }
    for (family, value) in &GAUGES {
        out.family(family);
        for device in &look.devices {
            out.sample(family, labels(look, device), Number::Whole(value(device)));
        }
    }
    out.family(&QPS);
    for device in &look.devices {
        let kinds = device.qps.iter().map(|qp| (qp_type(qp).to_owned(), qp_state(qp)));
        for ((qp_type, state), n) in counted(kinds) {
            let more = [("type", qp_type), ("state", state)];
            out.sample(&QPS, with(look, device, more), Number::Whole(n));
        }
    }
    out.family(&CONNECTIONS);
    for device in &look.devices {
        for (state, n) in counted(device.connections.iter().map(|c| c.state.clone())) {
            out.sample(&CONNECTIONS, with(look, device, [("state", state)]), Number::Whole(n));
        }
    }
    out.family(&ROUND_TRIP);
    for device in &look.devices {
        let longest = device.qps.iter().map(|qp| qp.rtt_ns).max().unwrap_or(0);
        out.sample(&ROUND_TRIP, labels(look, device), Number::Real(longest as f64 / 1e9));
    }
    out.family(&UNANSWERED);
    out.sample(&UNANSWERED, Vec::new(), Number::Whole(look.silent.len() as u64));
}

/// How many there are of each.
fn counted<T: Ord>(all: impl Iterator<Item = T>) -> BTreeMap<T, u64> {
    let mut counts = BTreeMap::new();
    all.for_each(|one| *counts.entry(one).or_insert(0) += 1);
    counts
}

/// The labels of a device.
fn labels(look: &Look, device: &Snapshot) -> Labels {
    vec![
        ("pid", device.pid.to_string()),
        ("program", look.program(device).to_owned()),
        ("device", device.device.clone()),
    ]
}

/// The labels of a device, and more.
fn with<const N: usize>(
    look: &Look,
    device: &Snapshot,
    more: [(&'static str, String); N],
) -> Labels {
    labels(look, device).into_iter().chain(more).collect()
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

struct Text {
    text: String,
    format: Format,
}

impl Output for Text {
    fn family(&mut self, Family(name, kind, help): &Family) {
        let (kind, suffix) = match kind {
            Kind::Counter if self.format == Format::Prometheus => ("counter", "_total"),
            Kind::Counter => ("counter", ""),
            Kind::Gauge => ("gauge", ""),
        };
        // Writing into a string does not fail.
        let _ = writeln!(self.text, "# HELP {name}{suffix} {help}");
        let _ = writeln!(self.text, "# TYPE {name}{suffix} {kind}");
    }

    fn sample(&mut self, Family(name, kind, _): &Family, labels: Labels, value: Number) {
        let suffix = if *kind == Kind::Counter { "_total" } else { "" };
        let labels: Vec<String> =
            labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
        let labels = match labels.is_empty() {
            true => String::new(),
            false => format!("{{{}}}", labels.join(",")),
        };
        let value = match value {
            Number::Whole(value) => value.to_string(),
            Number::Real(value) => value.to_string(),
        };
        let _ = writeln!(self.text, "{name}{suffix}{labels} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look() -> Look {
        let mut device = Snapshot::default();
        (device.pid, device.device) = (7, "fe\"0".to_owned());
        (device.totals.requests, device.mr_bytes) = (12, 4096);
        device.drops.insert("drop_unknown_qp".to_owned(), 3);
        device.counters.insert("sent_pkts".to_owned(), 44);
        let programs = [(7, "a\\b".to_owned())].into();
        Look { devices: vec![device], programs, silent: vec![9] }
    }

    #[test]
    fn a_device_has_its_numbers_in_both_formats() {
        let of = r#"pid="7",program="a\\b",device="fe\"0""#;
        for format in [Format::Prometheus, Format::OpenMetrics] {
            let text = write(&look(), format);
            for line in [
                format!("feroce_requests_total{{{of}}} 12"),
                format!("feroce_dropped_packets_total{{{of},reason=\"unknown_qp\"}} 3"),
                format!("feroce_adapter_events_total{{{of},event=\"sent_pkts\"}} 44"),
                format!("feroce_memory_region_bytes{{{of}}} 4096"),
                format!("feroce_longest_round_trip_seconds{{{of}}} 0"),
                "feroce_silent_processes 1".to_owned(),
            ] {
                assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
            }
        }
        let open = write(&look(), Format::OpenMetrics);
        assert!(open.ends_with("\n# EOF\n") && open.contains("# TYPE feroce_requests counter\n"));
        let plain = write(&look(), Format::Prometheus);
        assert!(plain.contains("# TYPE feroce_requests_total counter\n"), "{plain}");
        assert!(!plain.contains("EOF"));
    }

    #[test]
    fn a_client_gets_the_format_that_it_accepts() {
        let prometheus = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
        assert_eq!(Format::accepted(Some(prometheus)), Format::OpenMetrics);
        assert_eq!(Format::accepted(Some("*/*")), Format::Prometheus);
        assert_eq!(Format::accepted(None), Format::Prometheus);
    }

    /// Every panel of the dashboard in the documents asks for a metric that there is.
    #[test]
    fn the_dashboard_asks_for_what_there_is() {
        let dashboard = include_str!("../../../../../docs/grafana.json");
        let dashboard: serde_json::Value = serde_json::from_str(dashboard).expect("JSON");
        let text = write(&look(), Format::Prometheus);
        let panels = dashboard["panels"].as_array().expect("panels");
        let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("some"));
        let mut asked = 0;
        for target in targets {
            let expr = target["expr"].as_str().expect("a query");
            let words = expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for name in words.filter(|word| word.starts_with("feroce_")) {
                assert!(text.contains(&format!("# TYPE {name} ")), "{name} in {expr}");
                asked += 1;
            }
        }
        assert!(asked >= panels.len(), "{asked} metrics in {} panels", panels.len());
    }
}
