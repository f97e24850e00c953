//! The state that the engine's lock protects.

use std::any::Any;
use std::sync::{Arc, Weak};

use feroce_engine::{AsyncEvent, Engine, Event};
use feroce_train::{Framing, GidEntry, Instant};
use feroce_wire::Gid;

use super::agent::Agent;
use super::revocation::Looks;
use super::shards::Established;
use super::{Dispatch, Driver};
use crate::subnet_port::SubnetState;

/// How long acknowledgements wait for the answer of a consumer: one that answers at once posts
/// within this time, and a system call, which the wait may save, takes about as long.
const ANSWER_NS: u64 = 3_000;

/// What the engine's lock protects.
pub(crate) struct State {
    pub(crate) engine: Engine,
    pub(crate) dispatch: Dispatch,
    /// Connection management, once a consumer uses it.
    pub(super) agent: Option<Box<dyn Agent>>,
    /// Whether the interface can carry packets.
    pub(crate) is_up: bool,
    /// The port, if it is one of an InfiniBand fabric.
    pub(crate) subnet: Option<Arc<SubnetState>>,
    /// When to check the revocations that the engine waits for.
    pub(super) revocations: Looks,
    /// The first shard of the device, unless this is it.
    pub(super) first: Option<Weak<Driver>>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("engine", &self.engine).finish_non_exhaustive()
    }
}

impl State {
    /// Lets queue pairs continue whose revocations are complete. Returns whether there were any.
    #[inline]
    pub(super) fn look_at_revocations(&mut self, now: Instant) -> bool {
        self.revocations.look(&mut self.engine, now)
    }

    /// The agent, if there is one and it is of this type.
    pub(crate) fn agent<A: Agent>(&self) -> Option<&A> {
        let agent: &dyn Any = self.agent.as_deref()?;
        agent.downcast_ref()
    }

    /// The agent, if there is one and it is of this type.
    pub(crate) fn agent_mut<A: Agent>(&mut self) -> Option<&mut A> {
        let agent: &mut dyn Any = self.agent.as_deref_mut()?;
        agent.downcast_mut()
    }

    /// The agent, if it is of this type, and the engine.
    pub(crate) fn agent_and_engine<A: Agent>(&mut self) -> Option<(&mut A, &mut Engine)> {
        let agent: &mut dyn Any = self.agent.as_deref_mut()?;
        Some((agent.downcast_mut()?, &mut self.engine))
    }

    /// Sets the agent of the device.
    pub(crate) fn set_agent(&mut self, agent: impl Agent) {
        self.agent = Some(Box::new(agent));
    }

    /// Lets connection management work. Returns whether it has more to do.
    #[inline]
    pub(super) fn drive_agent(&mut self, now: Instant) -> bool {
        self.agent.as_mut().is_some_and(|agent| agent.drive(&mut self.engine, now))
    }

    /// Whether acknowledgements may wait, or keep waiting, for the answer of a consumer.
    #[inline]
    pub(super) fn may_acks_wait(&self, now: Instant) -> bool {
        self.engine.acks_held_since().is_none_or(|since| now.nanos_since(since) < ANSWER_NS)
    }

    /// Whether a timer of connection management has expired.
    #[inline]
    pub(super) fn is_agent_due(&self, now: Instant) -> bool {
        let due = self.agent.as_ref().and_then(|agent| agent.poll_timeout());
        due.is_some_and(|at| at <= now)
    }

    /// Delivers the events of the engine. Returns whether connection management has work now.
    pub(super) fn tell(&mut self) -> bool {
        let mut told = false;
        while let Some(event) = self.engine.poll_event() {
            told |= self.tell_agent(event);
            self.dispatch.deliver(event);
        }
        told
    }

    /// Passes an event to connection management, if it concerns it. Returns whether connection
    /// management has work now.
    fn tell_agent(&mut self, event: Event) -> bool {
        if let (Some(first), Event::Async(AsyncEvent::CommEstablished(qpn))) = (&self.first, event)
        {
            let first = Weak::clone(first);
            self.dispatch.wakes().add(Arc::new(Established { first, qpn }));
        }
        let Some(agent) = &mut self.agent else { return false };
        match event {
            Event::Async(AsyncEvent::CommEstablished(qpn)) => agent.on_established(qpn),
            Event::Async(AsyncEvent::GidChange { .. }) => agent.on_addresses(self.engine.gids()),
            _ => return false,
        }
        true
    }

    /// The addresses of the port, each once.
    pub(super) fn addresses(&self) -> Vec<Gid> {
        let others = |entry: &&GidEntry| entry.framing != Framing::RoceV1;
        self.engine.gids().iter().filter(others).map(|entry| entry.gid).collect()
    }

    /// When a thread must drive the engine again, if nothing else happens.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let agent = self.agent.as_ref().and_then(|agent| agent.poll_timeout());
        let revocations = self.revocations.deadline(&self.engine);
        [self.engine.poll_timeout(), agent, revocations].into_iter().flatten().min()
    }
}
