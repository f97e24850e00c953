//! Queue pairs that the connection manager connects (`-R`), as iWARP needs.
//!
//! The server listens at a port that it tells the client. Each request carries the index of its
//! queue pair as private data.

use std::net::SocketAddr;

use anyhow::{Context as _, bail, ensure};
use feroce::cm::{CmId, ConnParam, EventChannel, EventKind, Manager, PortSpace};
use feroce::{Context, Qp};

use super::side::{Message, Side};
use super::stop;
use crate::cm::{Target, expect, judge, resolve};

/// How long the server waits for an event before it looks for other news.
const LOOK_MS: u16 = 50;

/// The ids of one end.
#[derive(Debug)]
pub(crate) struct Ids {
    // Dropped first: an id disconnects before its channel goes.
    ids: Vec<CmId>,
    listener: Option<CmId>,
    events: EventChannel,
}

impl Ids {
    /// No id yet.
    pub(crate) fn new(context: &Context) -> anyhow::Result<Self> {
        let events = Manager::with([context.clone()])?.event_channel()?;
        Ok(Self { ids: Vec::new(), listener: None, events })
    }

    /// Listens at an address, and returns the port.
    pub(crate) fn listen(&mut self, at: SocketAddr, qps: usize) -> anyhow::Result<u16> {
        let id = self.events.create_id(PortSpace::Tcp)?;
        id.bind(at).with_context(|| format!("cannot bind to {at}"))?;
        id.listen(u32::try_from(qps)?)?;
        let port = id.local_addr().context("a listener has an address")?.port();
        self.listener = Some(id);
        Ok(port)
    }

    /// Accepts as many connections as there are queue pairs. Returns what the client said on the
    /// side channel meanwhile: it may be done first.
    pub(crate) fn accept(
        &mut self,
        qps: &[Qp],
        side: &mut Side,
    ) -> anyhow::Result<Option<Message>> {
        let mut said = None;
        let (mut is_used, mut established) = (vec![false; qps.len()], 0);
        while established < qps.len() {
            let Some(event) = self.events.wait_event(Some(LOOK_MS))? else {
                ensure!(!stop::requested(), "interrupted");
                if said.is_none() {
                    said = side.try_recv()?;
                }
                continue;
            };
            match event.kind {
                EventKind::ConnectRequest => {
                    let index = event.private_data.first_chunk::<4>().copied();
                    let index =
                        index.map_or(usize::MAX, |bytes| u32::from_be_bytes(bytes) as usize);
                    let Some((qp, used)) = qps.get(index).zip(is_used.get_mut(index)) else {
                        bail!("the client connects a queue pair that does not exist");
                    };
                    ensure!(!std::mem::replace(used, true), "the client connects one twice");
                    event.id.use_qp(qp)?;
                    event.id.accept(&event.id.offered().unwrap_or_default())?;
                    self.ids.push(event.id);
                }
                EventKind::Established => established += 1,
                _ => judge(&event)?,
            }
        }
        Ok(said)
    }

    /// Connects every queue pair to the server.
    pub(crate) fn connect(&mut self, qps: &[Qp], target: Target) -> anyhow::Result<()> {
        for (i, qp) in qps.iter().enumerate() {
            let id = self.events.create_id(PortSpace::Tcp)?;
            resolve(&id, target)?;
            id.use_qp(qp)?;
            let private_data = u32::try_from(i)?.to_be_bytes().to_vec();
            let reads = 16;
            id.connect(&ConnParam {
                private_data,
                responder_resources: reads,
                initiator_depth: reads,
                retry_count: 7,
                rnr_retry_count: 7,
                ..ConnParam::default()
            })?;
            expect(&self.events, EventKind::Established)?;
            self.ids.push(id);
        }
        Ok(())
    }
}
