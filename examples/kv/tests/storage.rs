//! The log and the state machine keep what openraft asks of them: its own tests say so.

use feroce::Device;
use feroce_kv::table::Table;
use feroce_kv::{Log, Machine, Types};
use openraft::testing::{StoreBuilder, Suite};
use openraft::{StorageError, StorageIOError};
use tempfile::TempDir;

/// Makes an empty store for each test.
struct Builder;

impl StoreBuilder<Types, Log, Machine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, Log, Machine), StorageError<u64>> {
        build().map_err(|e| StorageIOError::write(openraft::AnyError::error(e)).into())
    }
}

fn build() -> anyhow::Result<(TempDir, Log, Machine)> {
    let folder = tempfile::tempdir()?;
    let log = Log::open(folder.path())?;
    let context = Device::at(["127.0.0.72".parse()?]).open()?;
    let machine = Machine::open(&log, Table::new(&context.alloc_pd()?, 4)?)?;
    Ok((folder, log, machine))
}

#[test]
fn openraft_finds_nothing_wrong() {
    Suite::test_all(Builder).unwrap();
}
