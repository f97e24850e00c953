//! Events that wait for their consumers.

use std::sync::Arc;

use feroce_cm::ListenId;
use feroce_cm::rdma::{ConnParam, EventKind};

use super::shared::Shared;
use crate::cm::UdParam;

/// An event that no consumer has taken yet. It keeps no id and no device alive.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) kind: EventKind,
    pub(super) id: Arc<Shared>,
    /// The listener of a request, and its name in the connection manager of InfiniBand.
    pub(super) listener: Option<(Arc<Shared>, Option<ListenId>)>,
    pub(super) status: i32,
    pub(super) conn: Option<ConnParam>,
    pub(super) ud: Option<UdParam>,
    pub(super) private_data: Vec<u8>,
}

impl Queued {
    pub(super) fn new(kind: EventKind, id: &Arc<Shared>, status: i32) -> Self {
        Self {
            kind,
            id: Arc::clone(id),
            listener: None,
            status,
            conn: None,
            ud: None,
            private_data: Vec::new(),
        }
    }

    /// Whether it concerns an id, or is a request that arrived through it.
    pub(super) fn concerns(&self, id: &Arc<Shared>) -> bool {
        let asked = self.listener.as_ref().map(|(listener, _)| listener);
        Arc::ptr_eq(&self.id, id) || asked.is_some_and(|asked| Arc::ptr_eq(asked, id))
    }
}
