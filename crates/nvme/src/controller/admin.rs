//! The state of a controller, and the commands of its admin queue.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use super::{ADMIN_QUEUE, EVENTS, IN_CAPSULE, IO_QUEUES, MDTS, QUEUE};
use crate::auth::Parties;
use crate::subsystem::Subsystem;
use crate::wire::property::{self, capabilities};
use crate::wire::{
    CAPSULE, Command, ConnectData, DiscoveryEntry, DiscoveryLog, IdentifyController,
    IdentifyNamespace, Nqn, Status, admin, cns, descriptors, fabrics, feature, log, namespace_list,
};

/// Longest part of a log page at a time.
const LOG: u64 = 64 << 10;

/// Compare, dataset management and write zeroes.
const OPTIONAL: u16 = 1 | 1 << 2 | 1 << 3;

/// What a controller controls.
#[derive(Clone, Debug)]
pub enum Identity {
    /// The disks of a subsystem.
    Disks(Arc<Subsystem>),
    /// The discovery subsystem: the names of subsystems, and where they are.
    Discovery {
        /// The subsystems that the host may use.
        subsystems: Vec<Nqn>,
        /// Where the host has reached the target.
        at: SocketAddr,
    },
}

/// What a controller answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The command has ended.
    Done(Status, u64),
    /// Data for the host; then the command ends with success.
    Data(Vec<u8>),
    /// The command stays outstanding, until an event happens or the host aborts it.
    Held,
    /// The command of this number, which was held, ends as aborted; then this one with success.
    Aborts(u16),
}

impl Answer {
    const OK: Self = Self::Done(Status::SUCCESS, 0);

    fn error(status: Status) -> Self {
        Self::Done(status.do_not_retry(), 0)
    }
}

/// A controller: one association with a host.
#[derive(Debug)]
pub struct Controller {
    number: u16,
    identity: Identity,
    host: Nqn,
    host_id: [u8; 16],
    cc: u32,
    csts: u32,
    keep_alive_ms: u32,
    async_config: u32,
    /// Numbers of the asynchronous event requests that are held.
    held: VecDeque<u16>,
    /// I/O queues that were granted, and those that are connected.
    granted: u16,
    queues: BTreeSet<u16>,
}

impl Controller {
    /// A controller for a host that has connected an admin queue.
    pub fn new(number: u16, identity: Identity, host: Nqn, host_id: [u8; 16]) -> Self {
        Self {
            number,
            identity,
            host,
            host_id,
            cc: 0,
            csts: 0,
            keep_alive_ms: 0,
            async_config: 0,
            held: VecDeque::new(),
            granted: 0,
            queues: BTreeSet::new(),
        }
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The subsystem, unless it is a discovery controller.
    pub fn subsystem(&self) -> Option<&Arc<Subsystem>> {
        match &self.identity {
            Identity::Disks(subsystem) => Some(subsystem),
            Identity::Discovery { .. } => None,
        }
    }

    /// Whether it executes commands.
    pub fn is_ready(&self) -> bool {
        self.csts & property::CSTS_READY != 0
    }

    /// How long the host may be silent, in milliseconds; zero for ever.
    pub fn keep_alive_ms(&self) -> u32 {
        self.keep_alive_ms
    }

    /// Sets how long the host may be silent.
    pub fn set_keep_alive_ms(&mut self, ms: u32) {
        self.keep_alive_ms = ms;
    }

    /// What the host must prove on each of its queues, if it must.
    pub(crate) fn parties(&self) -> Option<Parties> {
        self.subsystem()?.parties(&self.host)
    }

    /// Connects an I/O queue.
    pub fn connect_queue(&mut self, queue: u16, data: &ConnectData) -> Result<(), Status> {
        let is_same = data.host.as_ref() == Some(&self.host) && data.host_id == self.host_id;
        let subsystem = self.subsystem().map(|subsystem| subsystem.nqn());
        if !is_same || subsystem.is_none() || data.subsystem.as_ref() != subsystem {
            return Err(Status::CONNECT_PARAMETERS);
        }
        if !self.is_ready() {
            return Err(Status::SEQUENCE);
        }
        if queue == 0 || queue > self.granted || !self.queues.insert(queue) {
            return Err(Status::CONNECT_PARAMETERS);
        }
        Ok(())
    }

    /// An I/O queue has ended.
    pub fn disconnect_queue(&mut self, queue: u16) {
        self.queues.remove(&queue);
    }

    /// Executes a command of the admin queue other than Connect.
    pub fn handle(&mut self, command: &Command) -> Answer {
        if command.opcode == fabrics::OPCODE {
            return self.fabrics(command);
        }
        if !self.is_ready() {
            return Answer::error(Status::SEQUENCE);
        }
        match command.opcode {
            admin::IDENTIFY => self.identify(command),
            admin::GET_LOG_PAGE => self.log_page(command),
            admin::SET_FEATURES => self.set_feature(command),
            admin::GET_FEATURES => self.feature(command),
            admin::ASYNC_EVENT if self.held.len() >= EVENTS => Answer::error(Status::ASYNC_LIMIT),
            admin::ASYNC_EVENT => {
                self.held.push_back(command.cid);
                Answer::Held
            }
            admin::KEEP_ALIVE => Answer::OK,
            admin::ABORT => self.abort(command),
            _ => Answer::error(Status::INVALID_OPCODE),
        }
    }

    fn fabrics(&mut self, command: &Command) -> Answer {
        let (is_long, offset) = (command.cdw[0] & 7 == 1, command.cdw[1]);
        match command.fabrics_type() {
            fabrics::PROPERTY_GET => match (offset, is_long) {
                (property::CAP, true) => Answer::Done(Status::SUCCESS, capabilities(QUEUE - 1, 15)),
                (property::VS, false) => Answer::Done(Status::SUCCESS, property::VERSION.into()),
                (property::CC, false) => Answer::Done(Status::SUCCESS, self.cc.into()),
                (property::CSTS, false) => Answer::Done(Status::SUCCESS, self.csts.into()),
                _ => Answer::error(Status::INVALID_FIELD),
            },
            fabrics::PROPERTY_SET if offset == property::CC && !is_long => {
                self.configure(command.cdw[2]);
                Answer::OK
            }
            fabrics::PROPERTY_SET => Answer::error(Status::INVALID_FIELD),
            // Connect on a queue that is connected already.
            fabrics::CONNECT => Answer::error(Status::SEQUENCE),
            // Hosts authenticate before they get here, and queues end with their connections.
            _ => Answer::error(Status::INVALID_OPCODE),
        }
    }

    fn configure(&mut self, cc: u32) {
        let was_enabled = self.cc & property::CC_ENABLE != 0;
        let is_enabled = cc & property::CC_ENABLE != 0;
        self.cc = cc;
        match (was_enabled, is_enabled) {
            (false, true) => self.csts = property::CSTS_READY,
            (true, false) => self.csts = 0,
            _ => {}
        }
        if cc & property::CC_SHUTDOWN_MASK != 0 {
            self.csts = property::CSTS_SHUT_DOWN;
        }
    }

    fn identify(&self, command: &Command) -> Answer {
        let Identity::Disks(subsystem) = &self.identity else {
            return match command.cdw[0] as u8 {
                cns::CONTROLLER => Answer::Data(self.identify_controller().emit()),
                _ => Answer::error(Status::INVALID_FIELD),
            };
        };
        match command.cdw[0] as u8 {
            cns::CONTROLLER => Answer::Data(self.identify_controller().emit()),
            cns::NAMESPACE_LIST => {
                Answer::Data(namespace_list(1..=subsystem.count(), command.nsid))
            }
            cns::NAMESPACE => match subsystem.namespace(command.nsid) {
                Some(disk) => Answer::Data(
                    IdentifyNamespace {
                        blocks: disk.blocks(),
                        block_bits: disk.block_size().trailing_zeros() as u8,
                        guid: subsystem.guid(command.nsid),
                        read_only: disk.is_read_only(),
                        is_shared: true,
                    }
                    .emit(),
                ),
                None => Answer::error(Status::INVALID_NAMESPACE),
            },
            cns::DESCRIPTORS => match subsystem.namespace(command.nsid) {
                Some(_) => Answer::Data(descriptors(subsystem.guid(command.nsid))),
                None => Answer::error(Status::INVALID_NAMESPACE),
            },
            _ => Answer::error(Status::INVALID_FIELD),
        }
    }

    fn identify_controller(&self) -> IdentifyController {
        let common = IdentifyController {
            model: "feroce disk".to_owned(),
            firmware: env!("CARGO_PKG_VERSION").to_owned(),
            controller: self.number,
            max_commands: QUEUE,
            events: EVENTS as u8 - 1,
            keep_alive: 10,
            ..IdentifyController::new()
        };
        match &self.identity {
            Identity::Discovery { .. } => IdentifyController {
                serial: "discovery".to_owned(),
                is_discovery: true,
                subsystem: crate::wire::DISCOVERY_NQN.to_owned(),
                ..common
            },
            Identity::Disks(subsystem) => {
                let guid = subsystem.guid(0);
                let serial = guid.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
                IdentifyController {
                    serial,
                    mdts: MDTS,
                    namespaces: subsystem.count(),
                    optional: OPTIONAL,
                    is_shared: true,
                    write_cache: true,
                    subsystem: subsystem.nqn().to_string(),
                    command_capsule: ((CAPSULE + IN_CAPSULE) / 16) as u32,
                    ..common
                }
            }
        }
    }

    fn log_page(&self, command: &Command) -> Answer {
        let page = command.log_page();
        if page.len > LOG {
            return Answer::error(Status::INVALID_FIELD);
        }
        let bytes = match (&self.identity, page.id) {
            (Identity::Discovery { subsystems, at }, log::DISCOVERY) => {
                let entry = |nqn: &Nqn| DiscoveryEntry::rdma(nqn.as_str(), *at, ADMIN_QUEUE);
                let entries = subsystems.iter().map(entry).collect();
                DiscoveryLog { generation: 1, entries }.emit()
            }
            // Nothing has happened that these could tell of.
            (Identity::Disks(_), log::ERRORS | log::FIRMWARE) => Vec::new(),
            (Identity::Disks(subsystem), log::HEALTH) => subsystem.counters().health().emit(),
            (Identity::Disks(_), log::EFFECTS) => effects(),
            _ => return Answer::error(Status::INVALID_LOG_PAGE),
        };
        let start = usize::try_from(page.offset).unwrap_or(usize::MAX);
        let mut part = bytes.get(start..).unwrap_or_default().to_vec();
        part.resize(page.len as usize, 0);
        Answer::Data(part)
    }

    fn set_feature(&mut self, command: &Command) -> Answer {
        let value = command.cdw[1];
        match command.cdw[0] as u8 {
            feature::QUEUES if self.subsystem().is_some() => {
                let asked = (value & 0xffff).min(value >> 16).saturating_add(1);
                self.granted = u16::try_from(asked).unwrap_or(u16::MAX).min(IO_QUEUES);
                Answer::Done(Status::SUCCESS, self.queues_result())
            }
            feature::ASYNC_EVENTS => {
                self.async_config = value;
                Answer::Done(Status::SUCCESS, value.into())
            }
            feature::KEEP_ALIVE => {
                self.keep_alive_ms = value;
                Answer::Done(Status::SUCCESS, value.into())
            }
            _ => Answer::error(Status::INVALID_FIELD),
        }
    }

    fn queues_result(&self) -> u64 {
        let less_one = u64::from(self.granted.max(1) - 1);
        less_one | less_one << 16
    }

    fn feature(&self, command: &Command) -> Answer {
        match command.cdw[0] as u8 {
            feature::QUEUES => Answer::Done(Status::SUCCESS, self.queues_result()),
            feature::ASYNC_EVENTS => Answer::Done(Status::SUCCESS, self.async_config.into()),
            feature::KEEP_ALIVE => Answer::Done(Status::SUCCESS, self.keep_alive_ms.into()),
            _ => Answer::error(Status::INVALID_FIELD),
        }
    }

    fn abort(&mut self, command: &Command) -> Answer {
        let (queue, cid) = (command.cdw[0] & 0xffff, (command.cdw[0] >> 16) as u16);
        let place = self.held.iter().position(|&held| queue == 0 && held == cid);
        match place {
            Some(place) => {
                self.held.remove(place);
                Answer::Aborts(cid)
            }
            // Other commands are too short to be stopped: it is not aborted.
            None => Answer::Done(Status::SUCCESS, 1),
        }
    }
}

/// Which commands there are, and which of them change data.
fn effects() -> Vec<u8> {
    const SUPPORTED: u32 = 1;
    const CHANGES_DATA: u32 = 1 << 1;
    use crate::wire::io;
    let admin = [
        admin::GET_LOG_PAGE,
        admin::IDENTIFY,
        admin::ABORT,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::ASYNC_EVENT,
        admin::KEEP_ALIVE,
    ];
    let reads = [io::FLUSH, io::READ, io::COMPARE];
    let writes = [io::WRITE, io::WRITE_ZEROES, io::DATASET];
    let mut out = vec![0; 4096];
    let mut set = |opcode: u8, base: usize, effect: u32| {
        let at = base + 4 * usize::from(opcode);
        out[at..at + 4].copy_from_slice(&effect.to_le_bytes());
    };
    admin.into_iter().for_each(|opcode| set(opcode, 0, SUPPORTED));
    reads.into_iter().for_each(|opcode| set(opcode, 1024, SUPPORTED));
    writes.into_iter().for_each(|opcode| set(opcode, 1024, SUPPORTED | CHANGES_DATA));
    out
}
