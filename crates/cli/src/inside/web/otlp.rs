//! The metrics for OpenTelemetry: OTLP over HTTP in its JSON encoding, to a collector that listens.
//!
//! It is the encoding of `ExportMetricsServiceRequest` by the rules of Protocol Buffers for JSON:
//! keys in lowerCamelCase, and 64-bit numbers as text.

#![expect(clippy::disallowed_methods, reason = "measurements have a time, and are sent again")]

use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::metrics::{Family, Kind, Labels, Number, Output, visit};
use crate::inside::Look;

/// How long a collector may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest answer that is read.
const MAX_ANSWER: u64 = 64 << 10;

/// A sum since the beginning, as the protocol numbers it.
const CUMULATIVE: u32 = 2;

/// Where a collector listens: `http://HOST:PORT/PATH`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Collector {
    /// `HOST:PORT`.
    authority: String,
    path: String,
}

impl FromStr for Collector {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        let Some(rest) = url.strip_prefix("http://") else {
            return Err("expected http://HOST:PORT; for https, send to a collector on this host, \
                        which forwards"
                .to_owned());
        };
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if host.is_empty() || !is_plain(rest) {
            return Err("expected http://HOST:PORT".to_owned());
        }
        let after_brackets = host.rsplit(']').next().unwrap_or(host);
        let port = if after_brackets.contains(':') { "" } else { ":4318" };
        let path = if path.is_empty() { "v1/metrics" } else { path };
        Ok(Self { authority: format!("{host}{port}"), path: format!("/{path}") })
    }
}

/// Sends what devices do to a collector, again and again. Says when that begins to fail.
pub(super) fn send_forever(
    to: &Collector,
    interval: Duration,
    look: impl Fn() -> anyhow::Result<Look>,
) {
    let start = now_ns();
    let mut has_failed = false;
    loop {
        let sent = look().and_then(|look| send(to, &request(&look, start, now_ns()).to_string()));
        match &sent {
            Err(e) if !has_failed => eprintln!("feroce: cannot send metrics: {e:#}"),
            Ok(()) if has_failed => eprintln!("feroce: metrics are sent again"),
            _ => {}
        }
        has_failed = sent.is_err();
        std::thread::sleep(interval);
    }
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Posts one request.
fn send(to: &Collector, body: &str) -> anyhow::Result<()> {
    let Collector { authority, path } = to;
    let mut addresses = authority.to_socket_addrs().with_context(|| authority.clone())?;
    let address = addresses.next().with_context(|| format!("{authority} has no address"))?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)
        .with_context(|| format!("no collector answers at {authority}"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut answer = Vec::new();
    match stream.take(MAX_ANSWER).read_to_end(&mut answer) {
        // Some collectors leave the connection open: the headers are enough.
        Err(e) if answer.is_empty() => return Err(wait_error(e).into()),
        _ => {}
    }
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut parsed = httparse::Response::new(&mut headers);
    parsed.parse(&answer).with_context(|| format!("{authority} does not speak HTTP"))?;
    match parsed.code {
        Some(200..300) => Ok(()),
        Some(code) => bail!("the collector at http://{authority}{path} refuses: status {code}"),
        None => bail!("the answer of {authority} is not complete"),
    }
}

fn wait_error(e: io::Error) -> io::Error {
    match e.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => e,
    }
}

/// One request of the protocol. Counters have counted since `start_ns`, when this program began to
/// send: what devices did before is in their first value.
fn request(look: &Look, start_ns: u64, now_ns: u64) -> Value {
    let mut out = Metrics { start_ns, now_ns, metrics: Vec::new() };
    visit(look, &mut out);
    out.metrics.retain(|metric| {
        let data = metric.get("sum").or_else(|| metric.get("gauge"));
        data.and_then(|data| data["dataPoints"].as_array()).is_some_and(|all| !all.is_empty())
    });
    let version = env!("CARGO_PKG_VERSION");
    json!({
        "resourceMetrics": [{
            "resource": { "attributes": [attribute("service.name", "feroce")] },
            "scopeMetrics": [{
                "scope": { "name": "feroce", "version": version },
                "metrics": out.metrics,
            }],
        }],
    })
}

fn attribute(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

struct Metrics {
    start_ns: u64,
    now_ns: u64,
    metrics: Vec<Value>,
}

impl Output for Metrics {
    fn family(&mut self, Family(name, kind, help): &Family) {
        let mut metric = json!({ "name": name, "description": help, "unit": unit_of(name) });
        match kind {
            Kind::Counter => {
                metric["sum"] = json!({
                    "aggregationTemporality": CUMULATIVE, "isMonotonic": true, "dataPoints": [],
                });
            }
            Kind::Gauge => metric["gauge"] = json!({ "dataPoints": [] }),
        }
        self.metrics.push(metric);
    }

    fn sample(&mut self, family: &Family, labels: Labels, value: Number) {
        let attributes: Vec<Value> =
            labels.iter().map(|(key, value)| attribute(key, value)).collect();
        let mut point = json!({
            "attributes": attributes,
            "timeUnixNano": self.now_ns.to_string(),
        });
        match value {
            Number::Whole(value) => point["asInt"] = value.to_string().into(),
            Number::Real(value) => point["asDouble"] = value.into(),
        }
        let kind = if family.1 == Kind::Counter { "sum" } else { "gauge" };
        if family.1 == Kind::Counter {
            point["startTimeUnixNano"] = self.start_ns.to_string().into();
        }
        let points = self.metrics.last_mut().and_then(|metric| metric.get_mut(kind));
        if let Some(points) = points.and_then(|data| data["dataPoints"].as_array_mut()) {
            points.push(point);
        }
    }
}

/// The unit of a metric, as the Unified Code for Units of Measure writes it.
fn unit_of(name: &str) -> &'static str {
    match name.rsplit('_').next() {
        Some("bytes") => "By",
        Some("seconds") => "s",
        _ => "1",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_collectors() {
        let parse = |url: &str| url.parse::<Collector>().map(|c| (c.authority, c.path));
        let found = |authority: &str, path: &str| Ok((authority.to_owned(), path.to_owned()));
        assert_eq!(parse("http://localhost"), found("localhost:4318", "/v1/metrics"));
        assert_eq!(parse("http://127.0.0.1:99/"), found("127.0.0.1:99", "/v1/metrics"));
        assert_eq!(parse("http://[::1]/a/b"), found("[::1]:4318", "/a/b"));
        for wrong in ["localhost:4318", "https://x", "http://", "http://a b", "http://a\r\nX: y"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
