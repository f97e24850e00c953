//! The client: it measures.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::Context as _;
use feroce::cm::{CmId, ConnParam, EventChannel, EventKind, Manager, PortSpace};
use feroce::{Qp, QpCap};

use super::super::end::{judge, next_event};
use super::super::place::Target;
use super::Args;
use super::steps::{Step, Steps};

/// Runs every step for every connection.
pub(super) fn call(
    args: &Args,
    manager: &Manager,
    target: Target,
    steps: &mut Steps,
) -> anyhow::Result<()> {
    let events = manager.event_channel()?;
    let mut meter = Meter { steps, events: &events };
    let ids = meter
        .make(Step::CreateId, 0..args.connections, |_| Ok(events.create_id(PortSpace::Tcp)?))?;
    if let Some(from) = target.from {
        meter.make(Step::Bind, &ids, |id| Ok(id.bind(from)?))?;
    }
    let all = ids.len();
    meter.start(Step::ResolveAddr, &ids, all, EventKind::AddrResolved, |id| {
        Ok(id.resolve_addr(target.from, target.to, args.timeout)?)
    })?;
    meter.start(Step::ResolveRoute, &ids, all, EventKind::RouteResolved, |id| {
        Ok(id.resolve_route(args.timeout)?)
    })?;
    // The queue pairs never carry data, so they can share one PD and one CQ.
    let context = ids[0].context().context("the id has no device")?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(1)?);
    let qps = meter.make(Step::CreateQp, &ids, |id| -> anyhow::Result<Qp> {
        let qp = pd.rc_qp(&cq, &cq, QpCap::new(1, 1)).create()?;
        id.use_qp(&qp)?;
        Ok(qp)
    })?;
    let param = ConnParam { responder_resources: 1, initiator_depth: 1, ..<_>::default() };
    let param = ConnParam { retry_count: args.retries, ..param };
    let window = args.window as usize;
    meter
        .start(Step::Connect, &ids, window, EventKind::Established, |id| Ok(id.connect(&param)?))?;
    meter.start(Step::Disconnect, &ids, window, EventKind::Disconnected, |id| {
        Ok(id.disconnect()?)
    })?;
    meter.make(Step::Destroy, ids.into_iter().zip(qps), |both| {
        drop(both);
        Ok(())
    })?;
    Ok(())
}

struct Meter<'a> {
    steps: &'a mut Steps,
    events: &'a EventChannel,
}

impl Meter<'_> {
    /// Runs a step that completes when its call returns.
    fn make<T, R>(
        &mut self,
        step: Step,
        of: impl IntoIterator<Item = T>,
        f: impl Fn(T) -> anyhow::Result<R>,
    ) -> anyhow::Result<Vec<R>> {
        let started = Instant::now();
        let mut made = Vec::new();
        for item in of {
            let since = Instant::now();
            made.push(f(item)?);
            self.steps.add(step, since);
        }
        self.steps.finish(step, started);
        Ok(made)
    }

    /// Runs a step that completes with an event, for `window` connections at a time.
    fn start(
        &mut self,
        step: Step,
        ids: &[CmId],
        window: usize,
        kind: EventKind,
        f: impl Fn(&CmId) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let started = Instant::now();
        let mut waiting = HashMap::new();
        let result = ids.iter().map(Some).chain([None]).try_for_each(|id| {
            if let Some(id) = id {
                waiting.insert(id.number(), Instant::now());
                f(id)?;
            }
            let most = if id.is_some() { window - 1 } else { 0 };
            while waiting.len() > most {
                self.take(step, kind, &mut waiting)?;
            }
            Ok(())
        });
        self.steps.finish(step, started);
        result
    }

    fn take(
        &mut self,
        step: Step,
        kind: EventKind,
        waiting: &mut HashMap<u64, Instant>,
    ) -> anyhow::Result<()> {
        let event = next_event(self.events)?;
        if event.kind != kind {
            return judge(&event);
        }
        if let Some(since) = waiting.remove(&event.id.number()) {
            self.steps.add(step, since);
        }
        Ok(())
    }
}
