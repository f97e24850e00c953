//! The netlink interface of the RDMA subsystem: its messages alone, its sockets in a C program, and
//! `rdma` of iproute2, whose output has the keys that it has on the kernel's Soft-RoCE driver.

// The library is one of C and has no unit tests; these modules touch nothing but bytes.
#[allow(dead_code, reason = "only what the tests look at is read")]
#[path = "../src/netlink/facts.rs"]
mod facts;
#[allow(dead_code, reason = "only what the tests look at is read")]
#[path = "../src/netlink/message.rs"]
mod message;
#[path = "../src/netlink/nldev.rs"]
mod nldev;
#[path = "../src/netlink/numbers.rs"]
mod numbers;
#[path = "../src/netlink/objects.rs"]
mod objects;

use crate::common;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use message::{Attributes, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
use numbers::{attribute, command};
use serde_json::Value;

const PORTID: u32 = 4242;
const SEQ: u32 = 77;

/// A request of the device client, with attributes that hold numbers.
fn request(command: u16, flags: u16, attributes: &[(u16, u32)]) -> Vec<u8> {
    let len = 16 + 8 * attributes.len() as u32;
    let mut bytes = len.to_ne_bytes().to_vec();
    bytes.extend((5 << 10 | command).to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    bytes.extend(SEQ.to_ne_bytes());
    bytes.extend(0_u32.to_ne_bytes());
    for (kind, number) in attributes {
        bytes.extend(8_u16.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(number.to_ne_bytes());
    }
    bytes
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn kind_of(message: &[u8]) -> u16 {
    u16::from_ne_bytes([message[4], message[5]])
}

/// The error number in an acknowledgement.
fn status(message: &[u8]) -> i32 {
    assert_eq!(kind_of(message), 2);
    word(message, 16).cast_signed()
}

/// Two devices, of which the first has a queue pair and many memory regions.
fn devices() -> Vec<facts::Device> {
    let mr = |number| facts::Mr { number, lkey: number << 8, rkey: 0, len: 64, pd: 3 };
    let peer = Some(facts::Peer { qpn: 18, rq_psn: 5 });
    let qp = facts::Qp { number: 17, pd: 3, kind: 2, state: 3, sq_psn: 4, peer };
    let first = facts::Device {
        name: "one".into(),
        qps: vec![qp],
        mrs: (0..1000).map(mr).collect(),
        counters: vec![("sent_pkts", 9)],
        pid: 321,
        ..facts::Device::default()
    };
    vec![first, facts::Device { index: 1, name: "two".into(), ..facts::Device::default() }]
}

fn answer(request: &[u8]) -> Vec<Vec<u8>> {
    let answers = nldev::answer(request, PORTID, devices);
    for answer in &answers {
        assert_eq!(word(answer, 0) as usize, answer.len(), "the length is that of the message");
        assert!(answer.len() <= 4096, "programs read into a page");
        assert_eq!((word(answer, 8), word(answer, 12)), (SEQ, PORTID));
    }
    answers
}

/// The attribute of a message or a nest.
fn find(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    Attributes(attributes).find(|(found, _)| *found == kind).map(|(_, contents)| contents)
}

#[test]
fn devices_are_listed_and_the_list_ends() {
    let answers = answer(&request(command::GET, NLM_F_DUMP | NLM_F_ACK, &[]));
    let [one, two, done] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(find(&one[16..], attribute::DEV_NAME), Some(&b"one\0"[..]));
    assert_eq!(find(&two[16..], attribute::DEV_INDEX), Some(&1_u32.to_ne_bytes()[..]));
    assert_eq!((kind_of(done), word(done, 16)), (3, 0));
}

#[test]
fn one_object_is_found_by_its_number() {
    let ask = |attributes: &[(u16, u32)]| answer(&request(command::RES_QP_GET, 0, attributes));
    let named =
        |qpn| [(attribute::DEV_INDEX, 0), (attribute::PORT_INDEX, 1), (attribute::RES_LQPN, qpn)];
    let found = ask(&named(17));
    let number = |kind| find(&found[0][16..], kind).map(|contents| word(contents, 0));
    assert_eq!(number(attribute::RES_LQPN), Some(17));
    assert_eq!(number(attribute::RES_RQPN), Some(18));
    assert_eq!(number(attribute::RES_PID), Some(321));
    // As the kernel refuses: a queue pair belongs to a port, which must be named.
    assert_eq!(status(&ask(&named(16))[0]), -libc::ENOENT);
    assert_eq!(status(&ask(&named(17)[..1])[0]), -libc::EINVAL);
    assert_eq!(status(&ask(&[(attribute::DEV_INDEX, 9)])[0]), -libc::EINVAL);
}

#[test]
fn a_long_list_comes_in_parts() {
    let answers = answer(&request(command::RES_MR_GET, NLM_F_DUMP, &[(attribute::DEV_INDEX, 0)]));
    let (done, parts) = answers.split_last().expect("an answer");
    assert_eq!(kind_of(done), 3);
    assert!(parts.len() > 1);
    let count = |part: &Vec<u8>| {
        let table = find(&part[16..], attribute::RES_MR).expect("a table");
        Attributes(table).filter(|(kind, _)| *kind == attribute::RES_MR_ENTRY).count()
    };
    assert_eq!(parts.iter().map(count).sum::<usize>(), 1000);
}

#[test]
fn what_is_not_supported_is_refused() {
    // Renaming a device; a command that does not exist; another client of the subsystem.
    assert_eq!(status(&answer(&request(2, 0, &[]))[0]), -libc::EOPNOTSUPP);
    assert_eq!(status(&answer(&request(77, 0, &[]))[0]), -libc::EINVAL);
    let mut other = request(command::GET, 0, &[]);
    other[5] = 2 << 2;
    assert_eq!(status(&answer(&other)[0]), -libc::EINVAL);
    // Not a request at all: an acknowledgement, if it wants one.
    let mut noise = request(command::GET, NLM_F_ACK, &[]);
    noise[6] &= 0xfe;
    assert_eq!(status(&answer(&noise)[0]), 0);
}

/// Numbers that follow from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn garbage_is_answered_with_little() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..20_000 {
        // Bytes of any kind; or a request that something has happened to.
        let mut bytes: Vec<u8> = (0..random.next() % 96).map(|_| random.next() as u8).collect();
        if round % 2 == 0 {
            let (command, flags) = (random.next() as u16 % 40, random.next() as u16);
            let attributes = [(random.next() as u16 % 100, random.next() as u32 % 20); 3];
            let whole = request(command, flags, &attributes);
            bytes.splice(..0, whole);
            for _ in 0..random.next() % 4 {
                let at = random.next() as usize % bytes.len();
                bytes[at] = random.next() as u8;
            }
        }
        let answers = nldev::answer(&bytes, PORTID, devices);
        // A request has 16 bytes at least, and the longest list here comes in 20 parts or so.
        assert!(answers.len() <= bytes.len() / 16 * 30, "{bytes:?}");
        assert!(answers.iter().all(|answer| word(answer, 0) as usize == answer.len()));
    }
}

#[test]
fn commands_and_attributes_are_those_of_the_header() {
    let mut assertions = "#include <rdma/rdma_netlink.h>\n".to_owned();
    let mut count = 0;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/netlink/numbers.rs");
    let source = fs::read_to_string(source).expect("the source");
    let mut family = "";
    for line in source.lines() {
        family = match line {
            "pub(crate) mod command {" => "RDMA_NLDEV_CMD_",
            "pub(crate) mod attribute {" => "RDMA_NLDEV_ATTR_",
            "}" => "",
            _ => family,
        };
        let constant = line.strip_prefix("    pub(crate) const ").filter(|_| !family.is_empty());
        let Some((name, value)) =
            constant.and_then(|rest| rest.strip_suffix(';')?.split_once(": u16 = "))
        else {
            continue;
        };
        let theirs = match name.strip_prefix("SYS_") {
            _ if name == "LAST" => continue,
            Some(name) if family.ends_with("ATTR_") && name != "IMAGE_GUID" => {
                format!("RDMA_NLDEV_SYS_ATTR_{name}")
            }
            _ => format!("{family}{name}"),
        };
        assertions += &format!("_Static_assert({theirs} == {value}, \"{name}\");\n");
        count += 1;
    }
    assert!(count > 60, "{count}");
    let path = common::scratch("netlink-header").join("header.c");
    fs::write(&path, assertions).expect("written");
    common::gcc(&["-fsyntax-only", path.to_str().expect("text")]);
}

/// Compiles a file of `tests/c` for one test.
fn compiled(name: &str, test: &str, options: &[&str]) -> Option<PathBuf> {
    common::headers()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"));
    let program = common::scratch(&format!("netlink-{test}")).join(name);
    let paths = [source.to_str()?, "-o", program.to_str()?];
    common::gcc(&[&["-Wall", "-Werror", "-O1"], &paths[..], options].concat())?;
    Some(program)
}

#[test]
fn sockets_are_like_the_kernels() {
    let Some(program) = compiled("netlink", "sockets", &[]) else { return };
    let mut command = Command::new("timeout");
    command.arg("60").arg(program).env("LD_PRELOAD", common::library());
    command.env("FEROCE_ADDRESS", "127.121.0.1");
    let output = command.output().expect("timeout is part of coreutils");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{}\n{errors}", output.status);
}

/// For a library that makes objects.
const SHARED: &[&str] = &["-shared", "-fPIC"];

/// What `rdma` of iproute2 prints, in a process that has preloaded one more library, perhaps.
fn rdma(args: &str, address: Option<&str>, preload: Option<&Path>, more: u32) -> Option<String> {
    let mut preloaded = common::library().as_os_str().to_owned();
    if let Some(library) = preload {
        preloaded.push(":");
        preloaded.push(library);
    }
    let mut command = Command::new("rdma");
    command.args(args.split(' ')).env("LD_PRELOAD", preloaded);
    command.env("FEROCE_DEVICE_NAME", "mlx5_0").env_remove("FEROCE_ADDRESS");
    command.envs(address.map(|address| ("FEROCE_ADDRESS", address)));
    command.env("MORE", more.to_string());
    let output = common::output(&mut command, "iproute2")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "rdma {args}: {errors}");
    Some(String::from_utf8(output.stdout).expect("text"))
}

#[test]
fn a_fresh_process_sees_the_links() {
    let show = |args| rdma(args, None, None, 0);
    let Some(text) = show("-j link show") else { return };
    let links: Value = serde_json::from_str(&text).expect("JSON");
    let link = &links[0];
    // As on Soft-RoCE, but for names and numbers.
    let netdev = link["netdev"].as_str().expect("an interface");
    let index = fs::read_to_string(format!("/sys/class/net/{netdev}/ifindex")).expect("its number");
    let index: u32 = index.trim().parse().expect("a number");
    let like = serde_json::json!({
        "ifindex": 0, "ifname": "mlx5_0", "port": 1, "state": "ACTIVE",
        "physical_state": "LINK_UP", "netdev": netdev, "netdev_index": index,
    });
    assert_eq!(*link, like, "{text}");
    let text = show("link show mlx5_0/1").expect("rdma");
    let like = format!("link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev {netdev}");
    assert_eq!(text.trim(), like);
    let text = show("dev show mlx5_0").expect("rdma");
    assert!(text.starts_with("0: mlx5_0: node_type ca "), "{text}");
    let text = show("system show").expect("rdma");
    assert_eq!(text.trim(), "netns shared copy-on-fork on");
    let text = show("-j resource show qp").expect("rdma");
    assert_eq!(text.trim(), "[]");
}

/// What `rdma` prints on the kernel's Soft-RoCE driver (Linux 6.1, iproute2 6.1), for an object
/// that this library has as well: a command and its JSON in each line.
const KERNEL: &str = include_str!("rdma-on-soft-roce.txt");

/// The keys of an object.
fn keys(object: &Value) -> BTreeSet<&str> {
    object.as_object().expect("an object").keys().map(String::as_str).collect()
}

/// What `rdma` prints as JSON in a process with objects.
fn objects(args: &str, library: &Path, more: u32) -> Option<Vec<Value>> {
    let text = rdma(&format!("-j {args}"), Some("127.121.0.2"), Some(library), more)?;
    match serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}")) {
        Value::Array(objects) => Some(objects),
        other => panic!("{other}"),
    }
}

#[test]
fn objects_are_shown_as_on_soft_roce() {
    let Some(library) = compiled("resources", "shown", SHARED) else { return };
    for (args, kernel) in KERNEL.lines().filter_map(|line| line.split_once(": ")) {
        let Some(ours) = objects(args, &library, 0) else { return };
        let kernel: Value = serde_json::from_str(kernel).expect("recorded JSON");
        let is_alike = |ours: &&Value| ours["type"] == kernel["type"];
        let ours = ours.iter().find(is_alike).unwrap_or_else(|| panic!("rdma {args}: {ours:?}"));
        assert_eq!(keys(ours), keys(&kernel), "rdma {args}: {ours:?}");
        for (key, value) in kernel.as_object().expect("an object") {
            // What names states and types must be the same; numbers and names are ours.
            if ["state", "physical_state", "type", "ps", "path-mig-state"].contains(&key.as_str()) {
                assert_eq!(&ours[key], value, "rdma {args}");
            }
        }
    }
    let show = |args: &str| objects(args, &library, 0).expect("rdma");
    let summary = &show("resource show")[0];
    // The connection manager has a context and a domain of its own.
    for (kind, count) in [("pd", 2), ("cq", 1), ("qp", 2), ("cm_id", 1), ("mr", 1), ("srq", 1)] {
        assert_eq!(summary[kind], count, "{summary}");
    }
    let qps = show("resource show qp");
    let rc = qps.iter().find(|qp| qp["type"] == "RC").expect("a queue pair");
    assert_eq!((&rc["lqpn"], &rc["comm"]), (&rc["rqpn"], &"rdma".into()), "{qps:?}");
    // One by its number, which is the same in each process.
    let pds = show("resource show pd pdn 0");
    assert_eq!((pds.len(), &pds[0]["users"]), (1, &4.into()), "{pds:?}");
    let ids = show("resource show cm_id");
    let at = ids[0]["src-addr"].as_str().expect("an address");
    assert!(at.starts_with("127.121.0.2:") && !at.ends_with(":0"), "{at}");
    assert_eq!(show("resource show cq")[0]["users"], 4);
    assert_eq!(show("resource show srq")[0]["type"], "BASIC");
}

#[test]
fn statistics_are_those_of_the_adapter() {
    const KERNEL: &str = "sent_pkts rcvd_pkts duplicate_request out_of_seq_request rcvd_rnr_err \
        send_rnr_err rcvd_seq_err ack_deferred retry_exceeded_err retry_rnr_exceeded_err \
        completer_retry_err send_err link_downed rdma_sends rdma_recvs ifname port";
    let Some(library) = compiled("resources", "statistics", SHARED) else { return };
    for args in ["statistic show", "statistic"] {
        let Some(ours) = objects(args, &library, 0) else { return };
        let missing: Vec<_> =
            KERNEL.split_whitespace().filter(|key| !keys(&ours[0]).contains(key)).collect();
        assert_eq!(missing, [""; 0], "{ours:?}");
        // One message, and its acknowledgement.
        assert_eq!((&ours[0]["rdma_sends"], &ours[0]["rdma_recvs"]), (&1.into(), &1.into()));
        assert!(ours[0]["sent_pkts"].as_u64() >= Some(2), "{ours:?}");
    }
}

#[test]
fn lists_longer_than_the_receive_queue_are_complete() {
    let Some(library) = compiled("resources", "long", SHARED) else { return };
    let Some(mrs) = objects("resource show mr", &library, 6000) else { return };
    let numbers: BTreeSet<_> = mrs.iter().map(|mr| mr["mrn"].as_u64()).collect();
    assert_eq!((mrs.len(), numbers.len()), (6001, 6001));
}
