//! Associations: a controller and the connections of its queues.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use feroce::cm::CmId;
use feroce::{Context, Instant};

use super::lock;
use crate::controller::{Controller, Identity};
use crate::subsystem::Subsystem;
use crate::wire::{ANY_CONTROLLER, Command, ConnectData, Nqn, Status};

/// Result of a Connect that failed: the offset of the field of its data that is wrong. Bit 16 says
/// that it is the data.
const WRONG_CONTROLLER: u64 = 1 << 16 | 16;
const WRONG_SUBSYSTEM: u64 = 1 << 16 | 256;
const WRONG_HOST: u64 = 1 << 16 | 512;

/// Milliseconds that hosts have more than they asked for, since their clocks and networks differ.
const GRACE_MS: u64 = 1000;

/// What all queues of a target share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) subsystems: Vec<Arc<Subsystem>>,
    pub(super) controllers: Mutex<BTreeMap<u16, Arc<Association>>>,
    /// Number of the controller that was made last.
    pub(super) next: Mutex<u16>,
}

/// A controller and its connections.
#[derive(Debug)]
pub(super) struct Association {
    pub(super) controller: Mutex<Controller>,
    /// Those of its queues, by their number.
    connections: Mutex<Vec<(u16, CmId)>>,
    context: Context,
    /// When the host was heard last.
    heard: Mutex<Instant>,
}

/// Why a Connect failed: the status, and which field is wrong.
pub(super) type Refusal = (Status, u64);

/// A queue that wants to become part of an association.
#[derive(Debug)]
pub(super) struct Asking<'a> {
    /// The connection.
    pub(super) id: &'a CmId,
    /// Its device.
    pub(super) context: &'a Context,
    /// The queue that the connection was made for.
    pub(super) queue: u16,
    /// Its entries.
    pub(super) size: u16,
    /// Where the host has reached the target.
    pub(super) at: SocketAddr,
}

impl Association {
    /// Notes a sign of life.
    pub(super) fn hear(&self) {
        *lock(&self.heard) = self.context.now();
    }

    /// Ends every connection.
    pub(super) fn end(&self) {
        let connections = std::mem::take(&mut *lock(&self.connections));
        // An error means that it has ended already.
        connections.iter().for_each(|(_, id)| drop(id.disconnect()));
    }

    fn is_silent(&self) -> bool {
        let limit_ms = u64::from(lock(&self.controller).keep_alive_ms());
        let silent_ns = self.context.now().nanos_since(*lock(&self.heard));
        limit_ms != 0 && silent_ns > (limit_ms + GRACE_MS) * 1_000_000
    }
}

impl Shared {
    /// Executes Connect.
    pub(super) fn connect(
        &self,
        asking: &Asking<'_>,
        command: &Command,
        data: &ConnectData,
    ) -> Result<Arc<Association>, Refusal> {
        let refuse = |status: Status, field| Err((status.do_not_retry(), field));
        // Format, queue, and size of the queue less one.
        let (format, queue) = (command.cdw[0] & 0xffff, (command.cdw[0] >> 16) as u16);
        let size = command.cdw[1] & 0xffff;
        if format != 0 {
            return refuse(Status::CONNECT_FORMAT, 40);
        }
        if queue != asking.queue {
            return refuse(Status::CONNECT_PARAMETERS, 42);
        }
        if size == 0 || size >= asking.size.into() {
            return refuse(Status::CONNECT_PARAMETERS, 44);
        }
        if queue != 0 {
            return self.connect_queue(asking, queue, data);
        }
        if data.controller != ANY_CONTROLLER {
            return refuse(Status::CONNECT_PARAMETERS, WRONG_CONTROLLER);
        }
        let Some(host) = &data.host else {
            return refuse(Status::CONNECT_PARAMETERS, WRONG_HOST);
        };
        let identity = self.identity(data.subsystem.as_ref(), host, asking.at)?;
        let mut controllers = lock(&self.controllers);
        let Some(number) = self.free_number(&controllers) else {
            return refuse(Status::CONNECT_BUSY, 0);
        };
        let mut controller = Controller::new(number, identity, host.clone(), data.host_id);
        controller.set_keep_alive_ms(command.cdw[2]);
        let association = Arc::new(Association {
            controller: Mutex::new(controller),
            connections: Mutex::new(vec![(0, asking.id.clone())]),
            context: asking.context.clone(),
            heard: Mutex::new(asking.context.now()),
        });
        controllers.insert(number, Arc::clone(&association));
        Ok(association)
    }

    /// What a host gets under a name.
    fn identity(&self, nqn: Option<&Nqn>, host: &Nqn, at: SocketAddr) -> Result<Identity, Refusal> {
        if nqn.is_some_and(Nqn::is_discovery) {
            let allowed = self.subsystems.iter().filter(|subsystem| subsystem.allows(host));
            let subsystems = allowed.map(|subsystem| subsystem.nqn().clone()).collect();
            return Ok(Identity::Discovery { subsystems, at });
        }
        let found = self.subsystems.iter().find(|subsystem| Some(subsystem.nqn()) == nqn);
        match found {
            Some(subsystem) if subsystem.allows(host) => Ok(Identity::Disks(Arc::clone(subsystem))),
            Some(_) => Err((Status::CONNECT_HOST.do_not_retry(), WRONG_HOST)),
            None => Err((Status::CONNECT_PARAMETERS.do_not_retry(), WRONG_SUBSYSTEM)),
        }
    }

    fn connect_queue(
        &self,
        asking: &Asking<'_>,
        queue: u16,
        data: &ConnectData,
    ) -> Result<Arc<Association>, Refusal> {
        let found = lock(&self.controllers).get(&data.controller).cloned();
        let wrong = (Status::CONNECT_PARAMETERS.do_not_retry(), WRONG_CONTROLLER);
        let association = found.ok_or(wrong)?;
        let connected = lock(&association.controller).connect_queue(queue, data);
        connected.map_err(|status| (status.do_not_retry(), 0))?;
        lock(&association.connections).push((queue, asking.id.clone()));
        Ok(association)
    }

    /// A number for a controller. Numbers are not used again at once, so that a late command of an
    /// old association does not meet a new one.
    fn free_number(&self, controllers: &BTreeMap<u16, Arc<Association>>) -> Option<u16> {
        let mut next = lock(&self.next);
        // 0xfff0 and above have other meanings.
        for _ in 0..0xffef_u16 {
            *next = if *next >= 0xffef { 1 } else { *next + 1 };
            if !controllers.contains_key(&next) {
                return Some(*next);
            }
        }
        None
    }

    /// A queue has ended: an admin queue takes the controller with it.
    pub(super) fn leave(&self, association: &Association, queue: u16) {
        let mut controller = lock(&association.controller);
        let number = controller.number();
        controller.disconnect_queue(queue);
        drop(controller);
        lock(&association.connections).retain(|(number, _)| *number != queue);
        if queue == 0 {
            lock(&self.controllers).remove(&number);
            association.end();
        }
    }

    /// Ends the associations of hosts that are silent.
    pub(super) fn expire(&self) {
        let all: Vec<Arc<Association>> = lock(&self.controllers).values().cloned().collect();
        all.iter().filter(|association| association.is_silent()).for_each(|a| a.end());
    }
}
