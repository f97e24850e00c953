//! The commands of `rdma/rdma_netlink.h` that ask about devices, and their answers.
//!
//! The attributes of an answer, their order and the errors are those of the kernel (Linux 6.1),
//! since tools count on both. Numbers of objects are given by this library; keys of memory regions
//! are shown, because they are the process's own.

use super::facts::Device;
use super::message::{Message, NLM_F_ACK, Request, Requests};
use super::numbers::attribute::*;
use super::numbers::command;
use super::objects::{CM_IDS, CONTEXTS, CQS, Kind, MRS, PDS, PORT, QPS, SRQS};

/// The number of the kernel's client behind these commands, and where it stands in a type.
const RDMA_NL_NLDEV: u16 = 5;
const CLIENT_SHIFT: u32 = 10;

/// `RDMA_NODE_IB_CA`.
const CHANNEL_ADAPTER: u8 = 1;

/// How long a part of an answer may be before the next one is begun. Programs read into a page, and
/// the longest entry, of a shared receive queue, has 430 bytes.
const PART: usize = 3400;

/// Why the kernel would refuse a command, as in `errno.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    NotFound = 2,
    Invalid = 22,
    Unsupported = 95,
}

/// Answers what a program sent from the socket with the address `portid`; each element is a message
/// of its own. `devices` is asked once.
pub(crate) fn answer(sent: &[u8], portid: u32, devices: impl Fn() -> Vec<Device>) -> Vec<Vec<u8>> {
    let mut answers = Vec::new();
    for request in Requests(sent).take(MOST_TOGETHER) {
        let outcome = if request.is_request() {
            respond(&request, portid, &devices, &mut answers)
        } else {
            Ok(())
        };
        let is_over = outcome.is_ok() && request.is_request() && request.is_dump();
        let status = outcome.map_or_else(|refusal| -(refusal as i32), |()| 0);
        if is_over {
            answers.push(Message::done(&request, portid));
        } else if status != 0 || request.flags & NLM_F_ACK != 0 {
            answers.push(Message::outcome(&request, portid, status));
        }
    }
    answers
}

/// Requests in one message of a program; tools send one.
const MOST_TOGETHER: usize = 64;

/// What one command leads to.
fn respond(
    request: &Request<'_>,
    portid: u32,
    devices: impl Fn() -> Vec<Device>,
    answers: &mut Vec<Vec<u8>>,
) -> Result<(), Refusal> {
    let command = request.kind & ((1 << CLIENT_SHIFT) - 1);
    if request.kind >> CLIENT_SHIFT != RDMA_NL_NLDEV || command > command::LAST {
        return Err(Refusal::Invalid);
    }
    let all = devices();
    let mut scribe = Scribe { request, portid, answers };
    match command {
        command::GET if request.is_dump() => {
            all.iter().for_each(|device| scribe.one(command, |m| about_device(m, device)));
        }
        command::GET => {
            let device = device(request, &all)?;
            scribe.one(command, |m| about_device(m, device));
        }
        command::PORT_GET => {
            let device = port(request, &all)?;
            // The kernel names the other command here.
            scribe.one(command::GET, |m| about_port(m, device));
        }
        command::SYS_GET => scribe.one(command, |m| {
            // Devices belong to no namespace, and children may fork: see `ibv_fork_init`.
            m.u8(SYS_NETNS_MODE, 1);
            m.u8(SYS_COPY_ON_FORK, 1);
        }),
        command::RES_GET => {
            let chosen =
                if request.is_dump() { &all[..] } else { &[device(request, &all)?.clone()] };
            chosen.iter().for_each(|device| scribe.one(command, |m| summary(m, device)));
        }
        command::STAT_GET | command::STAT_GET_STATUS => {
            let device = port(request, &all)?;
            if request.number(STAT_RES).is_some() {
                // No counters are bound to objects.
                return if request.is_dump() { Ok(()) } else { Err(Refusal::Unsupported) };
            }
            scribe.one(command, |m| statistics(m, device, command == command::STAT_GET));
        }
        command::RES_QP_GET => scribe.resources(command, &QPS, &all)?,
        command::RES_CM_ID_GET => scribe.resources(command, &CM_IDS, &all)?,
        command::RES_CQ_GET => scribe.resources(command, &CQS, &all)?,
        command::RES_MR_GET => scribe.resources(command, &MRS, &all)?,
        command::RES_PD_GET => scribe.resources(command, &PDS, &all)?,
        command::RES_CTX_GET => scribe.resources(command, &CONTEXTS, &all)?,
        command::RES_SRQ_GET => scribe.resources(command, &SRQS, &all)?,
        _ => return Err(Refusal::Unsupported),
    }
    Ok(())
}

/// The device that a request names.
fn device<'a>(request: &Request<'_>, all: &'a [Device]) -> Result<&'a Device, Refusal> {
    let index = request.number(DEV_INDEX).ok_or(Refusal::Invalid)?;
    all.iter().find(|device| device.index == index).ok_or(Refusal::Invalid)
}

/// The device whose port a request names; a request for everything may leave the port open.
fn port<'a>(request: &Request<'_>, all: &'a [Device]) -> Result<&'a Device, Refusal> {
    let device = device(request, all)?;
    match request.number(PORT_INDEX) {
        Some(PORT) => Ok(device),
        None if request.is_dump() => Ok(device),
        _ => Err(Refusal::Invalid),
    }
}

/// Writes the answers to a request.
struct Scribe<'a> {
    request: &'a Request<'a>,
    portid: u32,
    answers: &'a mut Vec<Vec<u8>>,
}

impl Scribe<'_> {
    /// A message of its own.
    fn one(&mut self, command: u16, contents: impl FnOnce(&mut Message)) {
        let kind = RDMA_NL_NLDEV << CLIENT_SHIFT | command;
        let mut message = Message::answer(self.request, self.portid, kind);
        contents(&mut message);
        self.answers.push(message.finish());
    }

    /// All objects of a kind that a device has, or the one that the request names.
    fn resources<T>(
        &mut self,
        command: u16,
        kind: &Kind<T>,
        all: &[Device],
    ) -> Result<(), Refusal> {
        let (request, attributes) = (self.request, &kind.attributes);
        if !request.is_dump() {
            let device = if kind.has_port { port(request, all) } else { device(request, all) }?;
            let number = request.number(attributes.number).ok_or(Refusal::Invalid)?;
            let mut found = (kind.of)(device).iter();
            let found = found.find(|object| (kind.number_of)(object) == number);
            let object = found.ok_or(Refusal::NotFound)?;
            self.one(command, |m| {
                name(m, device);
                kind.describe(m, device, object);
            });
            return Ok(());
        }
        let device = port(request, all)?;
        let mut rest = (kind.of)(device);
        while !rest.is_empty() {
            let mut taken = 0;
            self.one(command, |m| {
                name(m, device);
                m.nest(attributes.table, |m| {
                    for object in rest {
                        m.nest(attributes.entry, |m| kind.describe(m, device, object));
                        taken += 1;
                        if m.len() > PART {
                            break;
                        }
                    }
                });
            });
            rest = &rest[taken..];
        }
        Ok(())
    }
}

/// What every answer begins with.
fn name(m: &mut Message, device: &Device) {
    m.u32(DEV_INDEX, device.index);
    m.text(DEV_NAME, &device.name);
}

/// What an answer about a port begins with.
fn name_port(m: &mut Message, device: &Device) {
    name(m, device);
    m.u32(PORT_INDEX, PORT);
}

fn about_device(m: &mut Message, device: &Device) {
    name_port(m, device);
    m.u64(CAP_FLAGS, device.caps);
    m.text(FW_VERSION, &device.fw_ver);
    m.u64(NODE_GUID, device.guid);
    m.u64(SYS_IMAGE_GUID, device.sys_image_guid);
    m.u8(DEV_NODE_TYPE, CHANNEL_ADAPTER);
    m.u8(DEV_DIM, 0);
    m.text(DEV_PROTOCOL, "roce");
}

fn about_port(m: &mut Message, device: &Device) {
    name_port(m, device);
    m.u8(PORT_STATE, device.state);
    m.u8(PORT_PHYS_STATE, device.phys_state);
    if let Some((index, interface)) = &device.interface {
        m.u32(NDEV_INDEX, *index);
        m.text(NDEV_NAME, interface);
    }
}

/// How many objects of each kind there are.
fn summary(m: &mut Message, device: &Device) {
    name(m, device);
    let counts = [
        ("pd", device.pds.len()),
        ("cq", device.cqs.len()),
        ("qp", device.qps.len()),
        ("cm_id", device.cm_ids.len()),
        ("mr", device.mrs.len()),
        ("ctx", device.contexts.len()),
        ("srq", device.srqs.len()),
    ];
    m.nest(RES_SUMMARY, |m| {
        for (name, count) in counts {
            m.nest(RES_SUMMARY_ENTRY, |m| {
                m.text(RES_SUMMARY_ENTRY_NAME, name);
                m.u64(RES_SUMMARY_ENTRY_CURR, count as u64);
            });
        }
    });
}

/// The counters of a port with their values, or with their numbers. None can be turned off.
fn statistics(m: &mut Message, device: &Device, values: bool) {
    name_port(m, device);
    m.nest(STAT_HWCOUNTERS, |m| {
        for (number, (name, value)) in (0..).zip(&device.counters) {
            m.nest(STAT_HWCOUNTER_ENTRY, |m| {
                m.text(STAT_HWCOUNTER_ENTRY_NAME, name);
                if values {
                    m.u64(STAT_HWCOUNTER_ENTRY_VALUE, *value);
                } else {
                    m.u32(STAT_HWCOUNTER_INDEX, number);
                }
            });
        }
    });
}
