//! What the log has been applied to: the values, in memory, and their snapshots, in the database.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::storage::{RaftStateMachine, Snapshot};
use openraft::{
    AnyError, Entry, EntryPayload, LogId, OptionalSend, RaftSnapshotBuilder, SnapshotMeta,
    StorageError, StorageIOError, StoredMembership,
};
use serde::{Deserialize, Serialize};

use crate::log::Log;
use crate::table::Table;
use crate::types::{Applied, Put, Types, Value};

const SNAPSHOT: &str = "snapshot";

/// Clients whose last PUT is remembered. A client that repeats one after so many others have made
/// theirs has it applied twice.
const CLIENTS: usize = 4096;

type Meta = SnapshotMeta<u64, openraft::BasicNode>;

/// The state machine of a node. Clones are the same.
#[derive(Clone, Debug)]
pub struct Machine {
    log: Log,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    state: State,
    table: Table,
}

#[derive(Clone, Default, Debug, Serialize, Deserialize)]
struct State {
    applied: Option<LogId<u64>>,
    membership: StoredMembership<u64, openraft::BasicNode>,
    values: BTreeMap<String, Value>,
    /// The number and the version of the last PUT of each client.
    clients: BTreeMap<u64, (u64, u64)>,
}

impl State {
    /// Applies a PUT, unless the client has made it, or a later one, already: then the result is
    /// the version of that.
    fn put(&mut self, version: u64, put: &Put) -> Option<u64> {
        match self.clients.get(&put.client) {
            Some(&(number, before)) if number >= put.number => return Some(before),
            _ => {}
        }
        self.clients.insert(put.client, (put.number, version));
        if self.clients.len() > CLIENTS {
            let oldest = self.clients.iter().min_by_key(|(_, (_, version))| *version);
            let oldest = oldest.map_or(put.client, |(client, _)| *client);
            self.clients.remove(&oldest);
        }
        self.values.insert(put.key.clone(), (version, put.value.clone()));
        None
    }
}

impl Inner {
    fn apply(&mut self, entry: Entry<Types>) -> Result<Applied, feroce::Error> {
        let index = entry.log_id.index;
        self.state.applied = Some(entry.log_id);
        let version = match entry.payload {
            EntryPayload::Blank => 0,
            EntryPayload::Normal(put) => match self.state.put(index, &put) {
                Some(before) => before,
                None => {
                    // Before the PUT is acknowledged, so that every later READ finds it.
                    self.table.put(&put.key, index, &put.value)?;
                    index
                }
            },
            EntryPayload::Membership(membership) => {
                self.state.membership = StoredMembership::new(Some(entry.log_id), membership);
                0
            }
        };
        Ok(Applied { version })
    }

    /// Takes the state of a snapshot.
    fn restore(&mut self, state: State) -> Result<(), feroce::Error> {
        self.state = state;
        self.table.clear()?;
        for (key, (version, value)) in &self.state.values {
            self.table.put(key, *version, value)?;
        }
        Ok(())
    }
}

impl Machine {
    /// The state of the last snapshot in the database; the table shows it to readers.
    pub fn open(log: &Log, table: Table) -> anyhow::Result<Self> {
        let noted = log.fact(SNAPSHOT).map_err(anyhow::Error::from_boxed)?;
        let snapshot: Option<(Meta, Vec<u8>)> = noted;
        let mut inner = Inner { state: State::default(), table };
        if let Some((_, bytes)) = snapshot {
            inner.restore(postcard::from_bytes(&bytes)?)?;
        }
        Ok(Self { log: log.clone(), inner: Arc::new(Mutex::new(inner)) })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &str) -> Option<Value> {
        self.inner().state.values.get(key).cloned()
    }

    /// Where readers find the table, and its buckets.
    pub(crate) fn table(&self) -> (feroce::Remote, u32) {
        let inner = self.inner();
        (inner.table.remote(), inner.table.buckets())
    }
}

fn snapshot_error(error: impl ToString) -> StorageError<u64> {
    StorageIOError::write_snapshot(None, AnyError::error(error.to_string())).into()
}

impl RaftSnapshotBuilder<Types> for Machine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, StorageError<u64>> {
        let state = self.inner().state.clone();
        let bytes = postcard::to_stdvec(&state).map_err(snapshot_error)?;
        let last = state.applied.map_or_else(String::new, |id| id.to_string());
        let meta = SnapshotMeta {
            last_log_id: state.applied,
            last_membership: state.membership,
            snapshot_id: last,
        };
        let noted = self.log.note(SNAPSHOT, &(&meta, &bytes)).await;
        noted.map_err(snapshot_error)?;
        Ok(Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) })
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Self;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId<u64>>, StoredMembership<u64, openraft::BasicNode>), StorageError<u64>>
    {
        let inner = self.inner();
        Ok((inner.state.applied, inner.state.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Applied>, StorageError<u64>>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut inner = self.inner();
        let mut applied = Vec::new();
        for entry in entries {
            let id = entry.log_id;
            let result = inner.apply(entry);
            applied.push(result.map_err(|e| StorageIOError::apply(id, AnyError::new(&e)))?);
        }
        Ok(applied)
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn begin_receiving_snapshot(
        &mut self,
    ) -> Result<Box<Cursor<Vec<u8>>>, StorageError<u64>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &Meta,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), StorageError<u64>> {
        let bytes = snapshot.into_inner();
        let state: State = postcard::from_bytes(&bytes).map_err(snapshot_error)?;
        let noted = self.log.note(SNAPSHOT, &(meta, &bytes)).await;
        noted.map_err(snapshot_error)?;
        self.inner().restore(state).map_err(snapshot_error)
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, StorageError<u64>> {
        let noted: Option<(Meta, Vec<u8>)> = self.log.fact(SNAPSHOT).map_err(snapshot_error)?;
        let as_snapshot = |(meta, bytes)| Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) };
        Ok(noted.map(as_snapshot))
    }
}
