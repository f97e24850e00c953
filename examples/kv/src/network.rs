//! openraft's network: its messages as calls of `feroce-rpc`.

use std::collections::BTreeMap;
use std::sync::Arc;

use feroce::cm::Manager;
use openraft::error::{
    InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable,
};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{AnyError, BasicNode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::call::{CallError, Peer};
use crate::types::{Types, method};

/// Makes connections to the other nodes, one to each.
#[derive(Debug)]
pub(crate) struct Network {
    manager: Manager,
    peers: BTreeMap<u64, Arc<Peer>>,
}

impl Network {
    pub(crate) fn new(manager: Manager) -> Self {
        Self { manager, peers: BTreeMap::new() }
    }
}

/// A node as openraft sees it; `None` if its address is none.
#[derive(Debug)]
pub(crate) struct Target {
    id: u64,
    peer: Option<Arc<Peer>>,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Target;

    async fn new_client(&mut self, id: u64, node: &BasicNode) -> Target {
        if let Ok(at) = node.addr.parse() {
            self.peers.entry(id).or_insert_with(|| Arc::new(Peer::new(&self.manager, at)));
        }
        Target { id, peer: self.peers.get(&id).cloned() }
    }
}

type Rpc<T, E = openraft::error::Infallible> =
    Result<T, RPCError<u64, BasicNode, RaftError<u64, E>>>;

impl Target {
    async fn call<T, E>(&self, method: u32, rpc: impl Serialize, option: RPCOption) -> Rpc<T, E>
    where
        T: DeserializeOwned,
        E: DeserializeOwned + std::error::Error,
    {
        let Some(peer) = &self.peer else {
            let error = AnyError::error(format!("node {} has no address", self.id));
            return Err(Unreachable::from(error).into());
        };
        match peer.call::<Result<T, RaftError<u64, E>>>(method, &rpc, option.hard_ttl()).await {
            Ok(answer) => answer.map_err(|e| RemoteError::new(self.id, e).into()),
            // Connecting takes its time; openraft waits as well.
            Err(e @ CallError::TimedOut) => Err(Unreachable::new(&e).into()),
            Err(e) => Err(NetworkError::new(&e).into()),
        }
    }
}

impl RaftNetwork<Types> for Target {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Rpc<AppendEntriesResponse<u64>> {
        self.call(method::APPEND, rpc, option).await
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<Types>,
        option: RPCOption,
    ) -> Rpc<InstallSnapshotResponse<u64>, InstallSnapshotError> {
        self.call(method::SNAPSHOT, rpc, option).await
    }

    async fn vote(&mut self, rpc: VoteRequest<u64>, option: RPCOption) -> Rpc<VoteResponse<u64>> {
        self.call(method::VOTE, rpc, option).await
    }
}
