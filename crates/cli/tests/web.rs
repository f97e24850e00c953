//! `feroce web`, asked over a socket as a browser and Prometheus ask, and by a browser.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

fn feroce(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_feroce"));
    command.args(args).env_remove("FEROCE_CONFIG").env_remove("FEROCE_FAULT");
    command.stdin(Stdio::null());
    command
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server of `feroce rping`, which has a device open.
fn rping(address: &str) -> Running {
    rping_with(address, None)
}

/// The same with faults.
fn rping_with(address: &str, fault: Option<&str>) -> Running {
    let mut command = feroce(&["rping", "-s", "-P", "-a", address]);
    command.envs(fault.map(|fault| ("FEROCE_FAULT", fault)));
    let mut child = command.stderr(Stdio::piped()).spawn().expect("feroce starts");
    let mut line = String::new();
    BufReader::new(child.stderr.as_mut().expect("piped")).read_line(&mut line).expect("readable");
    assert!(line.contains("listening"), "{line}");
    Running(child)
}

/// A server of the page.
struct Web {
    _process: Running,
    url: String,
    port: u16,
    token: String,
}

impl Web {
    fn start(args: &[&str]) -> Self {
        let mut command = feroce(&["--json", "web"]);
        let mut child = command.args(args).stdout(Stdio::piped()).spawn().expect("feroce starts");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("a line");
        let process = Running(child);
        let url = serde_json::from_str::<Value>(&line).expect("JSON")["url"].clone();
        let url = url.as_str().expect("an address").to_owned();
        let rest = url.strip_prefix("http://127.0.0.1:").expect("the loopback address");
        let (port, token) = rest.split_once('/').expect("a path");
        let token = token.strip_suffix('/').expect("a folder").to_owned();
        let port = port.parse().expect("a port");
        Self { _process: process, url, port, token }
    }

    /// Sends bytes, and returns the whole answer.
    fn say(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.write_all(bytes).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        answer
    }

    /// The status and the body of what is found at a path.
    fn get(&self, path: &str, headers: &str) -> (u16, String) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
        let answer = self.say(request.as_bytes());
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
        (status, body.to_owned())
    }

    fn page(&self, name: &str) -> String {
        let (status, body) = self.get(&format!("/{}/{name}", self.token), "");
        assert_eq!(status, 200, "{name}: {body}");
        body
    }
}

fn temporary(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("feroce-web-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

#[test]
fn who_knows_the_address_sees_the_devices_and_nobody_else() {
    let server = rping("127.96.1.1");
    let pid = server.0.id();
    let web = Web::start(&[&pid.to_string()]);
    assert_eq!(web.token.len(), 32);
    assert!(web.page("").contains("<script type=\"module\" src=\"page.js\">"));
    for asset in
        ["page.js", "charts.js", "fabric.js", "faults.js", "ladder.js", "page.css", "icon.svg"]
    {
        assert!(!web.page(asset).is_empty(), "{asset}");
    }
    let client = feroce(&["rping", "-c", "-a", "127.96.1.1", "-C", "20"]).output();
    assert!(client.expect("feroce starts").status.success());
    let seen: Value = serde_json::from_str(&web.page("look.json")).expect("JSON");
    let devices = seen["devices"].as_array().expect("a list");
    assert!(devices.iter().all(|device| device["pid"] == pid), "{devices:?}");
    let requests: u64 = devices.iter().filter_map(|d| d["totals"]["requests"].as_u64()).sum();
    assert!(requests >= 60, "{requests}: {devices:?}");
    assert_eq!(seen["silent"], serde_json::json!([]));

    for path in ["/", "/look.json", "/metrics", "//look.json", "/0/look.json"] {
        let (status, body) = web.get(path, "");
        assert_eq!(status, 403, "{path}: {body}");
        assert!(!body.contains(&web.token) && body.contains("token"), "{body}");
    }
    let (status, _) = web.get(&format!("/{}/../../etc/passwd", web.token), "");
    assert_eq!(status, 404);
}

#[test]
fn prometheus_reads_the_metrics_with_the_token_of_a_file() {
    let server = rping("127.96.1.2");
    let pid = server.0.id().to_string();
    let folder = temporary("token");
    let file = folder.join("token");
    let file_name = file.to_str().expect("plain");
    let web = Web::start(&["--token-file", file_name, &pid]);
    let token = std::fs::read_to_string(&file).expect("it was made");
    assert_eq!(token.trim(), web.token);
    assert_eq!(std::fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);

    let headers = format!("Authorization: Bearer {}\r\nAccept: text/plain\r\n", web.token);
    let (status, text) = web.get("/metrics", &headers);
    assert_eq!(status, 200, "{text}");
    let device = format!("pid=\"{pid}\",program=\"feroce\",device=\"feroce@127.96.1.2\"");
    let listens = format!("feroce_connections{{{device},state=\"listening\"}} 1");
    assert!(text.lines().any(|line| line == listens), "{text}");
    let open = "Accept: application/openmetrics-text; version=1.0.0\r\n";
    let (_, text) = web.get(&format!("/{}/metrics", web.token), open);
    assert!(text.ends_with("# EOF\n"), "{text}");

    let again = Web::start(&["--token-file", file_name]);
    assert_eq!(again.token, web.token, "the address stays");
    let everybody = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(&file, everybody).expect("our file");
    let refused = feroce(&["web", "--token-file", file_name]).output().expect("feroce starts");
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && errors.contains("chmod 600"), "{errors}");
    std::fs::remove_dir_all(folder).expect("our folder");
}

#[test]
fn bad_clients_are_refused_and_others_are_served_meanwhile() {
    let web = Web::start(&[]);
    // These say nothing, or never come to an end, while the others are served.
    let idle: Vec<TcpStream> =
        (0..8).map(|_| TcpStream::connect(("127.0.0.1", web.port)).expect("it listens")).collect();
    let mut half = TcpStream::connect(("127.0.0.1", web.port)).expect("it listens");
    half.write_all(b"GET / HT").expect("it reads");
    let status = |answer: &str| answer.split(' ').nth(1).unwrap_or_default().to_owned();
    assert_eq!(status(&web.say(b"\x16\x03\x01\x02\x00\x01\x00\xff\xff\r\n\r\n")), "400");
    assert_eq!(status(&web.say(b"PUT / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello")), "405");
    assert_eq!(status(&web.say(b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello")), "403");
    let long = [b"GET /".as_slice(), &[b'a'; 16 << 10]].concat();
    assert_eq!(status(&web.say(&long)), "431");
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(200));
    assert_eq!(status(&web.say(many.as_bytes())), "431");
    let head = web.say(format!("HEAD /{}/ HTTP/1.1\r\n\r\n", web.token).as_bytes());
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(head.contains("Content-Security-Policy: default-src 'self'"), "{head}");
    half.shutdown(Shutdown::Both).expect("our socket");
    // Beyond the limit there is an answer too.
    let crowd: Vec<TcpStream> =
        (0..64).map(|_| TcpStream::connect(("127.0.0.1", web.port)).expect("it listens")).collect();
    let mut last = crowd.last().expect("64 of them");
    let mut answer = String::new();
    last.read_to_string(&mut answer).expect("text");
    assert_eq!(status(&answer), "503");
    drop((idle, crowd));
}

#[test]
fn the_last_packets_of_a_queue_pair_are_shown_while_a_client_asks_for_them() {
    let server = rping("127.96.1.4");
    let client = feroce(&["rping", "-c", "-a", "127.96.1.4", "-C", "1000000000"]);
    let _client = Running({ client }.spawn().expect("feroce starts"));
    let pid = server.0.id();
    let web = Web::start(&[&pid.to_string()]);
    let ask = |query: &str| -> Value {
        serde_json::from_str(&web.page(&format!("look.json{query}"))).expect("JSON")
    };
    let connected = || {
        let seen = ask("");
        assert_eq!(seen["packets"], Value::Null, "nothing was asked for");
        let devices = seen["devices"].as_array().expect("a list").clone();
        devices.into_iter().find_map(|device| {
            let qps = device["qps"].as_array().expect("a list");
            let qp = qps.iter().find(|qp| qp["peer"].is_object() && qp["state"] == "RTS")?;
            let name = device["device"].as_str().expect("a name").replace('@', "%40");
            Some(format!("?pid={pid}&device={name}&qpn={}", qp["qpn"]))
        })
    };
    let query = std::iter::repeat_with(connected).flatten().next().expect("it connects");
    let steps = |seen: &Value| seen["packets"]["steps"].as_array().expect("a list").clone();
    let first = ask(&query);
    assert!(steps(&first).is_empty(), "nothing was recorded before: {first}");
    let has_both = |steps: &Vec<Value>| {
        let has = |is_sent: bool| steps.iter().any(|step| step["is_sent"] == is_sent);
        has(true) && has(false)
    };
    let seen = std::iter::repeat_with(|| steps(&ask(&query))).find(has_both).expect("packets");
    assert!(seen.len() <= 256, "{}", seen.len());
    let is_send = |step: &Value| step["label"].as_str().is_some_and(|l| l.starts_with("SEND Only"));
    assert!(seen.iter().any(is_send), "{seen:?}");
    for wrong in ["?pid=1&device=x&qpn=1", &format!("?pid={pid}&device=x&qpn=1")] {
        let refusal = ask(wrong)["packets"]["refusal"].as_str().map(str::to_owned);
        assert_eq!(refusal.as_deref(), Some("the queue pair does not exist any more"), "{wrong}");
    }
}

/// A collector: takes a request, answers it, and returns its head and what it says.
#[cfg(feature = "otlp")]
fn collect(listener: &std::net::TcpListener, status: &str) -> (String, Value) {
    let (mut stream, _) = listener.accept().expect("a client");
    let mut reader = BufReader::new(stream.try_clone().expect("a copy"));
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).expect("text") > 0, "{head}");
    }
    let len =
        head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).expect("a length");
    let mut body = vec![0; len.parse().expect("a number")];
    reader.read_exact(&mut body).expect("all of it");
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\n{{}}");
    stream.write_all(answer.as_bytes()).expect("it reads");
    (head, serde_json::from_slice(&body).expect("JSON"))
}

#[test]
#[cfg(feature = "otlp")]
fn a_collector_gets_the_metrics_as_opentelemetry_writes_them() {
    let server = rping("127.96.1.7");
    let pid = server.0.id().to_string();
    let client = feroce(&["rping", "-c", "-a", "127.96.1.7", "-C", "20"]).output();
    assert!(client.expect("feroce starts").status.success());
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("its address"));
    let _web = Web::start(&["--otlp", &url, "--otlp-interval", "0.1", &pid]);
    collect(&listener, "503 Service Unavailable");
    // It goes on although the collector has refused.
    let (head, request) = collect(&listener, "200 OK");
    assert!(head.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("\r\nContent-Type: application/json\r\n"), "{head}");
    let resource = &request["resourceMetrics"][0];
    let name = &resource["resource"]["attributes"][0];
    let expected =
        serde_json::json!({ "key": "service.name", "value": { "stringValue": "feroce" } });
    assert_eq!(*name, expected);
    let metrics = resource["scopeMetrics"][0]["metrics"].as_array().expect("a list");
    let metric = |name: &str| metrics.iter().find(|m| m["name"] == name).expect(name);
    let requests = &metric("feroce_requests")["sum"];
    assert_eq!(
        (&requests["isMonotonic"], &requests["aggregationTemporality"]),
        (&true.into(), &2.into())
    );
    // 64-bit numbers are text.
    let number = |value: &Value| value.as_str().expect("text").parse::<u64>().expect("a number");
    let points = requests["dataPoints"].as_array().expect("a list");
    let all: u64 = points.iter().map(|point| number(&point["asInt"])).sum();
    assert!(all >= 60, "{requests}");
    let attributes = points[0]["attributes"].as_array().expect("a list");
    let process = serde_json::json!({ "key": "pid", "value": { "stringValue": pid } });
    assert!(attributes.contains(&process), "{attributes:?}");
    assert!(number(&points[0]["timeUnixNano"]) > number(&points[0]["startTimeUnixNano"]));
    let round_trip = &metric("feroce_longest_round_trip_seconds")["gauge"]["dataPoints"][0];
    assert!(round_trip["asDouble"].is_f64(), "{round_trip}");
    assert_eq!(metric("feroce_request_bytes")["unit"], "By");
}

/// Sends a request to change something, and returns the status and what is said.
fn post(web: &Web, path: &str) -> (u16, String) {
    let request = format!("POST /{}/{path} HTTP/1.1\r\nContent-Length: 0\r\n\r\n", web.token);
    let answer = web.say(request.as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head.split(' ').nth(1).expect("a status").parse().expect("a number"), body.to_owned())
}

#[test]
fn faults_are_switched_in_a_running_device_where_that_is_allowed() {
    let server = rping_with("127.96.1.5", Some("off"));
    let pid = server.0.id().to_string();
    let change = |fault: &str| format!("fault?pid={pid}&device=feroce%40127.96.1.5&fault={fault}");
    let fault_of = |web: &Web, pid: &str| {
        let seen: Value = serde_json::from_str(&web.page("look.json")).expect("JSON");
        let devices = seen["devices"].as_array().expect("a list");
        let pid: u32 = pid.parse().expect("a number");
        let device = devices.iter().find(|device| device["pid"] == pid).expect("it is open");
        (device["fault"].clone(), device["link"]["fault_lost"].clone(), seen["control"].clone())
    };
    let ping = || {
        let client = feroce(&["rping", "-c", "-a", "127.96.1.5", "-C", "200"]).output();
        assert!(client.expect("feroce starts").status.success());
    };

    let web = Web::start(&[&pid]);
    let (status, why) = post(&web, &change("loss=10%25"));
    assert_eq!(status, 403, "{why}");
    assert!(why.contains("feroce web --control"), "{why}");
    assert_eq!(fault_of(&web, &pid), ("off".into(), 0.into(), false.into()), "nothing happened");

    let plain = rping("127.96.1.6");
    let plain_pid = plain.0.id().to_string();
    let web = Web::start(&["--control", &pid, &plain_pid]);
    ping();
    assert_eq!(fault_of(&web, &pid), ("off".into(), 0.into(), true.into()), "none is lost yet");
    let (status, said) = post(&web, &change("loss=10%25,seed=3"));
    assert_eq!((status, said.as_str()), (200, r#"{"fault":"loss=10%,seed=3"}"#));
    ping();
    let (fault, lost, _) = fault_of(&web, &pid);
    assert_eq!(fault, "loss=10%,seed=3");
    assert!(lost.as_u64() > Some(0), "{lost}");
    let shown = feroce(&["ps", &pid]).output().expect("feroce starts");
    let shown = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.contains("    faults loss=10%,seed=3\n"), "{shown}");
    assert_eq!(post(&web, &change("off")).0, 200);
    let lost = fault_of(&web, &pid).1;
    ping();
    assert_eq!(fault_of(&web, &pid), ("off".into(), lost, true.into()), "none is lost any more");

    let plain_change = format!("fault?pid={plain_pid}&device=feroce%40127.96.1.6&fault=loss=1%25");
    let (status, why) = post(&web, &plain_change);
    assert!(status == 409 && why.contains("FEROCE_FAULT=off"), "{status} {why}");
    assert_eq!(fault_of(&web, &plain_pid).0, Value::Null);
    for (path, status, part) in [
        (change("bogus=1"), 400, "there are loss, dup"),
        (change("cut=1%25"), 409, "TCP connections"),
        ("fault?pid=1".to_owned(), 400, "expected ?pid="),
        ("fault?pid=1&device=x&fault=off".to_owned(), 404, "not open any more"),
        ("look.json".to_owned(), 404, "nothing to change"),
    ] {
        let (got, why) = post(&web, &path);
        assert!(got == status && why.contains(part), "{path}: {got} {why}");
    }
}

#[test]
fn faults_of_iwarp_connections_are_switched_where_tcp_does_not_repair_them() {
    let mut command = feroce(&["--transport", "iwarp", "rping", "-s", "-P", "-a", "127.96.1.8"]);
    let mut child =
        command.env("FEROCE_FAULT", "off").stderr(Stdio::piped()).spawn().expect("feroce starts");
    let mut line = String::new();
    BufReader::new(child.stderr.as_mut().expect("piped")).read_line(&mut line).expect("readable");
    let server = Running(child);
    assert!(line.contains("listening"), "{line}");
    let pid = server.0.id().to_string();
    let web = Web::start(&["--control", &pid]);
    let change = |fault: &str| {
        let path = format!("fault?pid={pid}&device=feroce%40127.96.1.8&fault={fault}");
        post(&web, &path)
    };
    // Counted when the server has ended the connection: nothing of it arrives later.
    let held = || loop {
        let seen: Value = serde_json::from_str(&web.page("look.json")).expect("JSON");
        let device = &seen["devices"][0];
        if device["qps"].as_array().expect("a list").is_empty() {
            break device["link"]["fault_held"].as_u64().expect("a number");
        }
    };
    let ping = || {
        let args = ["--transport", "iwarp", "rping", "-c", "-a", "127.96.1.8", "-C", "10"];
        let client = feroce(&args).output().expect("feroce starts");
        assert!(client.status.success(), "{}", String::from_utf8_lossy(&client.stderr));
    };
    ping();
    assert_eq!(held(), 0, "nothing is delayed yet");
    assert_eq!(change("delay=1ms"), (200, r#"{"fault":"delay=1ms"}"#.to_owned()));
    ping();
    let delayed = held();
    assert!(delayed >= 10, "{delayed}");
    assert_eq!(change("off").0, 200);
    ping();
    assert_eq!(held(), delayed, "nothing is delayed any more");
    let (status, why) = change("loss=1%25");
    assert!(status == 409 && why.contains("TCP repairs"), "{status} {why}");
}

/// The first of some programs that is there.
fn browser() -> Option<&'static str> {
    let found = ["chromium-headless-shell", "chromium"].into_iter().find(|name| {
        let version = Command::new(name).arg("--version").stderr(Stdio::null()).output();
        version.is_ok_and(|output| output.status.success())
    });
    if found.is_none() {
        let package = "chromium-headless-shell";
        assert!(std::env::var_os("CI").is_none(), "in CI there must be {package}");
        eprintln!("SKIPPED: there is no Chromium here (apt-get install {package})");
    }
    found
}

/// The page as a browser has built it, if there is a browser.
pub(crate) fn dump(url: &str, name: &str) -> Option<String> {
    let folder = temporary(name);
    let mut command = Command::new(browser()?);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", folder.display())).env("HOME", &folder);
    // Time of the page, which stands still while it waits for an answer.
    command.arg("--virtual-time-budget=5000").stderr(Stdio::null());
    let output = command.arg(url).output().expect("it is here");
    std::fs::remove_dir_all(folder).expect("our folder");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_browser_draws_the_page() {
    if browser().is_none() {
        return;
    }
    let server = rping("127.96.1.3");
    let client = feroce(&["rping", "-c", "-a", "127.96.1.3", "-C", "1000000000"]);
    let client = Running({ client }.spawn().expect("feroce starts"));
    let pids = [server.0.id().to_string(), client.0.id().to_string()];
    // Seen by the page as soon as both have a connected queue pair.
    let web = Web::start(&[&pids[0], &pids[1]]);
    let is_connected = |seen: &Value| {
        let devices = seen["devices"].as_array().into_iter().flatten();
        let qps = devices.flat_map(|device| device["qps"].as_array().expect("a list"));
        qps.filter(|qp| qp["peer"].is_object() && qp["state"] == "RTS").count() == 2
    };
    let mut seen: Value = Value::Null;
    while !is_connected(&seen) {
        seen = serde_json::from_str(&web.page("look.json")).expect("JSON");
    }
    let devices = seen["devices"].as_array().expect("a list").iter();
    let device = devices.max_by_key(|device| device["pid"] == server.0.id()).expect("two");
    let qps = device["qps"].as_array().expect("a list");
    let qp = qps.iter().find(|qp| qp["peer"].is_object()).expect("it is connected");
    let (name, qpn) = (device["device"].as_str().expect("a name"), &qp["qpn"]);

    let page = dump(&format!("{}#{}/{qpn}/{name}", web.url, pids[0]), "browser");
    let page = page.expect("there is a browser");
    for pid in &pids {
        assert!(page.contains(&format!(">feroce {pid}</text>")), "no node of {pid}:\n{page}");
        assert!(page.contains(&format!("<td class=\"\">{pid} feroce</td>")), "{page}");
    }
    assert!(page.contains("<path class=\"flow"), "no flow:\n{page}");
    assert_eq!(page.matches("<polyline class=\"line-").count(), 6, "six lines:\n{page}");
    assert!(page.contains("<td class=\"state-good\">RTS</td>"), "{page}");
    assert!(page.contains("<g class=\"step request\">"), "no request:\n{page}");
    assert!(page.contains("<g class=\"step answer\">"), "no answer:\n{page}");
    assert!(page.contains("role=\"status\" hidden=\"\""), "something is wrong:\n{page}");
}
