//! Log and vote of a node, in a database file.

use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::path::Path;
use std::sync::Arc;

use openraft::storage::{LogFlushed, LogState, RaftLogStorage};
use openraft::{
    AnyError, Entry, LogId, OptionalSend, RaftLogId as _, RaftLogReader, StorageError,
    StorageIOError, Vote,
};
use redb::{
    Database, ReadableDatabase as _, ReadableTable as _, TableDefinition, WriteTransaction,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::types::Types;

const ENTRIES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("entries");
const FACTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("facts");
const VOTE: &str = "vote";
const PURGED: &str = "purged";

/// The database of a node. A transaction that has committed survives a crash.
#[derive(Clone, Debug)]
pub struct Log(Arc<Database>);

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn any(error: &Failure) -> AnyError {
    AnyError::error(error)
}

impl Log {
    /// Opens the database in a folder, or makes it. One process can do so at a time.
    pub fn open(folder: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let database = Database::create(folder.join("raft.redb"))?;
        let write = database.begin_write()?;
        write.open_table(ENTRIES)?;
        write.open_table(FACTS)?;
        write.commit()?;
        Ok(Self(Arc::new(database)))
    }

    /// Changes the database and waits until the disk has it. A thread of its own does so.
    async fn change<F>(&self, change: F) -> Result<(), Failure>
    where
        F: FnOnce(&WriteTransaction) -> Result<(), Failure> + Send + 'static,
    {
        let database = Arc::clone(&self.0);
        let changed = tokio::task::spawn_blocking(move || {
            let write = database.begin_write()?;
            change(&write)?;
            Ok::<_, Failure>(write.commit()?)
        });
        changed.await?
    }

    /// Notes a fact.
    pub(crate) async fn note<T: Serialize>(&self, name: &str, fact: &T) -> Result<(), Failure> {
        let (name, bytes) = (name.to_owned(), postcard::to_stdvec(fact)?);
        self.change(move |write| {
            write.open_table(FACTS)?.insert(&*name, &*bytes)?;
            Ok(())
        })
        .await
    }

    /// A fact that was noted.
    pub(crate) fn fact<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Failure> {
        let facts = self.0.begin_read()?.open_table(FACTS)?;
        let bytes = facts.get(name)?;
        Ok(bytes.map(|bytes| postcard::from_bytes(bytes.value())).transpose()?)
    }

    fn entries(&self, range: impl RangeBounds<u64>) -> Result<Vec<Entry<Types>>, Failure> {
        let entries = self.0.begin_read()?.open_table(ENTRIES)?;
        let bounds = (range.start_bound().cloned(), range.end_bound().cloned());
        let found = entries.range::<u64>(bounds)?;
        found.map(|entry| Ok(postcard::from_bytes(entry?.1.value())?)).collect()
    }

    fn last(&self) -> Result<Option<LogId<u64>>, Failure> {
        let entries = self.0.begin_read()?.open_table(ENTRIES)?;
        let Some((_, bytes)) = entries.last()? else { return Ok(None) };
        let entry: Entry<Types> = postcard::from_bytes(bytes.value())?;
        Ok(Some(*entry.get_log_id()))
    }

    /// Removes entries.
    async fn remove(
        &self,
        range: impl RangeBounds<u64> + Send + 'static,
        purged: Option<LogId<u64>>,
    ) -> Result<(), Failure> {
        let purged = purged.map(|id| postcard::to_stdvec(&id)).transpose()?;
        self.change(move |write| {
            let bounds = (range.start_bound().cloned(), range.end_bound().cloned());
            write.open_table(ENTRIES)?.retain_in::<u64, _>(bounds, |_, _| false)?;
            if let Some(purged) = purged {
                write.open_table(FACTS)?.insert(PURGED, &*purged)?;
            }
            Ok(())
        })
        .await
    }
}

fn reading(error: Failure) -> StorageError<u64> {
    StorageIOError::read_logs(any(&error)).into()
}

fn writing(error: Failure) -> StorageError<u64> {
    StorageIOError::write_logs(any(&error)).into()
}

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry<Types>>, StorageError<u64>> {
        self.entries(range).map_err(reading)
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError<u64>> {
        let purged = self.fact(PURGED).map_err(reading)?;
        let last = self.last().map_err(reading)?;
        Ok(LogState { last_purged_log_id: purged, last_log_id: last.or(purged) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<(), StorageError<u64>> {
        let noted = self.note(VOTE, vote).await;
        noted.map_err(|e| StorageIOError::write_vote(any(&e)).into())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>, StorageError<u64>> {
        self.fact(VOTE).map_err(|e| StorageIOError::read_vote(any(&e)).into())
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<Types>,
    ) -> Result<(), StorageError<u64>>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let bytes = |entry: Entry<Types>| Ok((entry.log_id.index, postcard::to_stdvec(&entry)?));
        let entries: Result<Vec<_>, Failure> = entries.into_iter().map(bytes).collect();
        let entries = entries.map_err(writing)?;
        let appended = self.change(move |write| {
            let mut table = write.open_table(ENTRIES)?;
            for (index, bytes) in entries {
                table.insert(index, &*bytes)?;
            }
            Ok(())
        });
        let appended = appended.await;
        let told = appended.as_ref().map(|&()| ()).map_err(|e| io::Error::other(e.to_string()));
        callback.log_io_completed(told);
        appended.map_err(writing)
    }

    async fn truncate(&mut self, log_id: LogId<u64>) -> Result<(), StorageError<u64>> {
        self.remove(log_id.index.., None).await.map_err(writing)
    }

    async fn purge(&mut self, log_id: LogId<u64>) -> Result<(), StorageError<u64>> {
        self.remove(..=log_id.index, Some(log_id)).await.map_err(writing)
    }
}
