//! What the kernel's host and target (Linux 6.1) say to each other, read and written back.
//!
//! The files hold a message per line: the sender, the queue pair, the kind, the key that a send
//! invalidates, and the bytes, of which `(00*12)` stands for twelve zeros. `<65536>` stands for
//! data that is left out.

use std::collections::BTreeMap;
use std::sync::Arc;

use feroce_nvme::controller::{Answer, Controller, Identity};
use feroce_nvme::wire::{
    CAPSULE, CmReply, CmRequest, Command, Completion, ConnectData, DataRange, DiscoveryLog,
    IdentifyController, IdentifyNamespace, Sgl, SglKind, Status, admin, cns, fabrics, io, log,
    property,
};
use feroce_nvme::{MemoryNamespace, Subsystem};

const SESSION: &str = include_str!("golden/session.txt");
const REFUSED: &str = include_str!("golden/refused.txt");

#[derive(Debug)]
struct Message {
    is_host: bool,
    qp: u32,
    kind: &'static str,
    bytes: Vec<u8>,
}

fn bytes(text: &str) -> Vec<u8> {
    let number = |hex: &str| u8::from_str_radix(hex, 16).expect("a byte");
    let mut out = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(run) = rest.strip_prefix('(') {
            let (run, after) = run.split_once(')').expect("the end of a run");
            let (byte, count) = run.split_once('*').expect("a count");
            out.resize(out.len() + count.parse::<usize>().expect("a number"), number(byte));
            rest = after;
        } else {
            out.push(number(&rest[..2]));
            rest = &rest[2..];
        }
    }
    out
}

/// The messages whose bytes are there.
fn messages(text: &'static str) -> Vec<Message> {
    let parse = |line: &'static str| {
        let words: Vec<&str> = line.split(' ').collect();
        let body = words.last().filter(|body| !body.starts_with('<'))?;
        let (qp, kind) = match words[1] {
            kind @ ("cm-req" | "cm-rep") => (0, kind),
            qp => (qp.parse().expect("a number"), words[2]),
        };
        Some(Message { is_host: words[0] == "host", qp, kind, bytes: bytes(body) })
    };
    text.lines().filter_map(parse).collect()
}

fn commands(text: &'static str) -> Vec<(u32, Command, Vec<u8>)> {
    let sends = messages(text).into_iter().filter(|m| m.is_host && m.kind == "send");
    let parse = |m: Message| (m.qp, Command::parse(&m.bytes).expect("a command"), m.bytes);
    sends.map(parse).collect()
}

#[test]
fn commands_and_completions_come_back_byte_for_byte() {
    let (mut capsules, mut responses) = (0, 0);
    for message in messages(SESSION).into_iter().chain(messages(REFUSED)) {
        match (message.is_host, message.kind) {
            (true, "send") => {
                let command = Command::parse(&message.bytes).expect("a command");
                assert_eq!(command.emit(), message.bytes[..CAPSULE]);
                let again = match command.sgl.kind() {
                    SglKind::Keyed { addr, len, key, invalidate } => {
                        Sgl::keyed(addr, len, key, invalidate)
                    }
                    SglKind::InCapsule { offset: 0, len } => {
                        assert_eq!(message.bytes.len(), CAPSULE + len as usize);
                        Sgl::in_capsule(len)
                    }
                    other => panic!("{other:?}"),
                };
                assert_eq!(again, command.sgl);
                capsules += 1;
            }
            (false, "send" | "send-inv") => {
                let completion = Completion::parse(&message.bytes).expect("a completion");
                assert_eq!(completion.emit(), message.bytes[..]);
                responses += 1;
            }
            (true, "cm-req") => {
                // A header of 36 bytes comes before.
                let request = CmRequest::parse(&message.bytes[36..]).expect("a request");
                assert_eq!(request.emit(), message.bytes[36..36 + CmRequest::LEN]);
                assert_eq!(request.recv_size, request.send_size + 1);
            }
            (false, "cm-rep") => {
                let reply = CmReply::parse(&message.bytes).expect("a reply");
                assert_eq!(reply.emit(), message.bytes[..CmReply::LEN]);
            }
            _ => {}
        }
    }
    // Two asynchronous event requests have no response.
    assert_eq!((capsules, responses), (66, 64));
}

#[test]
fn connects_name_the_host_and_the_subsystem() {
    let reads = messages(SESSION).into_iter().filter(|m| m.is_host && m.kind == "read");
    let data: Vec<ConnectData> = reads.filter_map(|m| ConnectData::parse(&m.bytes)).collect();
    assert_eq!(data.len(), 2);
    assert!(data[0].subsystem.as_ref().is_some_and(|nqn| nqn.is_discovery()));
    let nqn = |nqn: &Option<feroce_nvme::wire::Nqn>| nqn.as_ref().expect("a name").to_string();
    assert_eq!(nqn(&data[1].subsystem), "nqn.2026-11.lab:disk1");
    assert_eq!((data[1].controller, data[1].host_id[0]), (0xffff, 0x11));
    let (_, queue, capsule) = commands(SESSION)
        .into_iter()
        .find(|(_, command, _)| command.opcode == fabrics::OPCODE && command.cdw[0] == 1 << 16)
        .expect("Connect of an I/O queue");
    assert_eq!((queue.fabrics_type(), queue.cdw[1]), (fabrics::CONNECT, 15));
    let inside = ConnectData::parse(&capsule[CAPSULE..]).expect("data in the capsule");
    assert_eq!((inside.controller, &inside.host), (1, &data[1].host));
    assert_eq!(inside.emit(), capsule[CAPSULE..]);
}

/// The target's data that follows the first command that `is` describes.
fn data_after(is: impl Fn(u32, &Command) -> bool) -> Vec<u8> {
    let mut is_next = false;
    for message in messages(SESSION) {
        if message.is_host && message.kind == "send" {
            is_next = is(message.qp, &Command::parse(&message.bytes).expect("a command"));
        } else if is_next && message.kind == "write" {
            return message.bytes;
        }
    }
    panic!("no such data");
}

#[test]
fn what_linux_identifies_is_understood() {
    let identify = |which: u8| {
        move |qp: u32, command: &Command| {
            qp == 18 && command.opcode == admin::IDENTIFY && command.cdw[0] == which.into()
        }
    };
    let controller = IdentifyController::parse(&data_after(identify(cns::CONTROLLER)));
    let (serial, model) = (controller.serial.as_str(), controller.model.as_str());
    assert_eq!((serial, model, controller.version), ("feroce0001", "Linux", property::VERSION));
    assert_eq!(controller.subsystem, "nqn.2026-11.lab:disk1");
    assert_eq!((controller.command_capsule, controller.response_capsule), (260, 1));
    assert_eq!((controller.events, controller.keep_alive), (3, 10));
    assert_eq!(controller.sgls, IdentifyController::new().sgls);
    let namespace = IdentifyNamespace::parse(&data_after(identify(cns::NAMESPACE)));
    assert_eq!((namespace.blocks, namespace.block_bits), (0x2_0000, 9));
    assert_eq!(data_after(identify(cns::NAMESPACE_LIST))[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    let page = data_after(|_, command| {
        command.opcode == admin::GET_LOG_PAGE && command.log_page().len > 1024
    });
    let found = DiscoveryLog::parse(&page);
    assert_eq!((found.generation, found.entries.len()), (2, 2));
    let disk = &found.entries[1];
    assert_eq!(disk.subsystem, "nqn.2026-11.lab:disk1");
    assert_eq!(disk.socket_addr(), "10.78.0.2:4420".parse().ok());
    assert_eq!((disk.transport, disk.subtype, disk.admin_size), (1, 2, 32));
    let again = DiscoveryLog { generation: 2, entries: found.entries.clone() }.emit();
    assert_eq!(DiscoveryLog::parse(&again), found);
}

#[test]
fn refusals_are_understood() {
    let ends = messages(REFUSED).into_iter().filter(|m| m.kind == "send-inv");
    let statuses: Vec<Status> =
        ends.filter_map(|m| Completion::parse(&m.bytes)).map(|c| c.status).collect();
    let expected = [Status::CONNECT_PARAMETERS, Status::CONNECT_HOST].map(Status::do_not_retry);
    assert_eq!(statuses, expected);
}

#[test]
fn the_controller_answers_the_kernels_host_as_the_kernel_does() {
    let nqn: feroce_nvme::wire::Nqn = "nqn.2026-11.lab:disk1".parse().expect("a name");
    let host = || "nqn.2026-11.lab:host".parse().expect("a name");
    let disks = Arc::new(Subsystem::new(nqn.clone()).disk(MemoryNamespace::new(0x2_0000)));
    let at = "10.78.0.2:4420".parse().expect("an address");
    let discovery = Identity::Discovery { subsystems: vec![nqn], at };
    let mut controllers = BTreeMap::from([
        (17, Controller::new(1, discovery, host(), [1; 16])),
        (18, Controller::new(1, Identity::Disks(disks), host(), [1; 16])),
    ]);
    // Completions by queue and command; a number is used again when its command has ended.
    let mut expected: BTreeMap<(u32, u16), Vec<Completion>> = BTreeMap::new();
    let queue_of = |qp: u32| qp;
    for message in messages(SESSION) {
        if !message.is_host && message.kind.starts_with("send") {
            let completion = Completion::parse(&message.bytes).expect("a completion");
            expected.entry((queue_of(message.qp), completion.cid)).or_default().push(completion);
        }
    }
    let mut compared = 0;
    for (qp, command, _) in commands(SESSION) {
        let Some(controller) = controllers.get_mut(&qp) else { continue };
        let theirs = expected.get_mut(&(qp, command.cid)).filter(|all| !all.is_empty());
        let theirs = theirs.map(|all| all.remove(0));
        let is_connect =
            command.opcode == fabrics::OPCODE && command.fabrics_type() == fabrics::CONNECT;
        if is_connect {
            continue;
        }
        let ours = controller.handle(&command);
        match (ours, theirs) {
            (Answer::Held, None) => assert_eq!(command.opcode, admin::ASYNC_EVENT),
            (Answer::Data(data), Some(theirs)) => {
                assert!(theirs.status.is_ok(), "{command:?}");
                let SglKind::Keyed { len, .. } = command.sgl.kind() else { panic!("{command:?}") };
                assert_eq!(data.len(), len as usize, "{command:?}");
            }
            (Answer::Done(status, result), Some(theirs)) => {
                let page = command.log_page().id;
                let is_optional = command.opcode == admin::IDENTIFY && command.cdw[0] == 6
                    || command.opcode == admin::GET_LOG_PAGE && page == 0x0c;
                if is_optional {
                    // The kernel's target has more command sets, and groups of paths.
                    assert!(!status.is_ok());
                    continue;
                }
                assert_eq!(status, theirs.status, "{command:?}");
                let is_capabilities =
                    command.opcode == fabrics::OPCODE && command.cdw[1] == property::CAP;
                let is_queues = command.opcode == admin::SET_FEATURES && command.cdw[0] == 7;
                if !is_capabilities && !is_queues {
                    assert_eq!(result, theirs.result, "{command:?}");
                }
            }
            (ours, theirs) => panic!("{command:?}: {ours:?}, {theirs:?}"),
        }
        compared += 1;
    }
    assert!(compared > 40, "{compared}");
}

#[test]
fn parts_of_commands_come_back() {
    let found: Vec<(u8, u64, u32)> = commands(SESSION)
        .into_iter()
        .filter(|(qp, command, _)| *qp == 19 && matches!(command.opcode, io::READ | io::WRITE))
        .map(|(_, command, _)| {
            assert_eq!(Command { cdw: [0; 6], ..command }.with_rw(command.rw()), command);
            (command.opcode, command.rw().lba, command.rw().blocks)
        })
        .collect();
    assert!(found.contains(&(io::WRITE, 8, 8)) && found.contains(&(io::READ, 256, 128)));
    // The read beyond the end of the disk.
    assert!(found.contains(&(io::READ, 999_999_999, 1)), "{found:?}");
    for (_, command, _) in commands(SESSION) {
        if command.opcode == admin::GET_LOG_PAGE && command.log_page().id == log::DISCOVERY {
            let page = command.log_page();
            assert_eq!(Command::new(0).with_log_page(page).log_page(), page);
        }
    }
    let range = DataRange { lba: 0x1_2345_6789, blocks: 77 };
    assert!(DataRange::parse_all(&range.emit()).eq([range]));
}
