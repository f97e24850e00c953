//! A node of the store.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use feroce_rpc::{Answer, Incoming, Server, ServerOptions, Status};
use openraft::error::{CheckIsLeaderError, ClientWriteError, ForwardToLeader, RaftError};
use openraft::{BasicNode, Config, Raft, SnapshotPolicy};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Peers;
use crate::call::{LIMITS, manager};
use crate::log::Log;
use crate::network::Network;
use crate::state::Machine;
use crate::table::Table;
use crate::types::{Lease, Put, ToClient, Types, Value, method};

/// The node has given out a lease and votes for no other meanwhile.
const PROMISED: Status = Status::Handler(1);
/// openraft has stopped: the disk has failed.
const STOPPED: Status = Status::Handler(2);

/// How a node runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its number.
    pub id: u64,
    /// All nodes, this one among them.
    pub peers: Peers,
    /// The folder with its log.
    pub data: PathBuf,
    /// How long a follower votes for no other node after it has heard of the leader. Leases of
    /// clients last half as long.
    pub lease: Duration,
    /// Entries of the log between two snapshots.
    pub snapshot_after: u64,
    /// Buckets of the table that clients read.
    pub buckets: u32,
}

impl Options {
    fn at(&self) -> anyhow::Result<SocketAddr> {
        let at = self.peers.get(&self.id).copied();
        at.with_context(|| format!("node {} is not among the peers: add it with --peer", self.id))
    }

    fn config(&self) -> anyhow::Result<Config> {
        let ms = u64::try_from(self.lease.as_millis())?;
        let config = Config {
            cluster_name: "kv".into(),
            heartbeat_interval: ms / 8,
            election_timeout_min: ms / 2,
            election_timeout_max: ms,
            install_snapshot_timeout: ms,
            max_payload_entries: 256,
            snapshot_max_chunk_size: 256 << 10,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(self.snapshot_after),
            max_in_snapshot_log_to_keep: self.snapshot_after / 2,
            ..Config::default()
        };
        Ok(config.validate()?)
    }
}

/// What the handlers of calls share.
struct Node {
    id: u64,
    raft: Raft<Types>,
    machine: Machine,
    /// How long a lease lasts.
    lease: Duration,
    /// Until when this node votes for no other.
    promised: Mutex<Option<Instant>>,
}

/// Runs a node, until its disk or its listener fails.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let at = options.at()?;
    let manager = manager(at.ip())?;
    let limits = ServerOptions { limits: LIMITS, connections: 64, ..ServerOptions::default() };
    let server = Server::bind(&manager, at, limits)?;
    let log = Log::open(&options.data)?;
    let machine = Machine::open(&log, Table::new(server.pd(), options.buckets)?)?;
    let config = Arc::new(options.config()?);
    let network = Network::new(manager);
    let raft = Raft::new(options.id, config, network, log, machine.clone()).await?;
    if !raft.is_initialized().await? {
        // Every node does so, with the same members.
        let node = |at: &SocketAddr| BasicNode::new(at);
        let members = options.peers.iter().map(|(id, at)| (*id, node(at)));
        raft.initialize(members.collect::<std::collections::BTreeMap<_, _>>()).await?;
    }
    let lease = options.lease / 2;
    let node = Node { id: options.id, raft, machine, lease, promised: Mutex::default() };
    let node = Arc::new(node);
    let service = tower::service_fn(move |call: Incoming| {
        let node = Arc::clone(&node);
        async move { node.answer(call).await }
    });
    println!("node {} serves at {at}", options.id);
    Ok(server.serve(service).await?)
}

fn parse<T: DeserializeOwned>(call: &Incoming) -> Result<T, Status> {
    postcard::from_bytes(call).map_err(|_| Status::BadRequest)
}

fn emit(answer: &impl Serialize) -> Result<Answer, Status> {
    postcard::to_stdvec(answer).map(Answer::Copied).map_err(|_| STOPPED)
}

fn instead(forward: &ForwardToLeader<u64, BasicNode>) -> Option<u64> {
    forward.leader_id
}

impl Node {
    async fn answer(&self, call: Incoming) -> Result<Answer, Status> {
        match call.method {
            method::APPEND => emit(&self.raft.append_entries(parse(&call)?).await),
            method::SNAPSHOT => emit(&self.raft.install_snapshot(parse(&call)?).await),
            method::VOTE => {
                let request = parse(&call)?;
                if self.is_bound() {
                    return Err(PROMISED);
                }
                emit(&self.raft.vote(request).await)
            }
            method::PUT => emit(&self.put(parse(&call)?).await?),
            method::GET => emit(&self.get(parse(&call)?).await?),
            method::LEASE => emit(&self.lease().await?),
            _ => Err(Status::UnknownMethod),
        }
    }

    async fn put(&self, put: Put) -> Result<ToClient<u64>, Status> {
        if !put.fits() {
            return Ok(ToClient::TooLong);
        }
        match self.raft.client_write(put).await {
            Ok(written) => Ok(ToClient::Done(written.data.version)),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward))) => {
                Ok(ToClient::AskInstead(instead(&forward)))
            }
            Err(RaftError::APIError(_)) => Ok(ToClient::AskInstead(None)),
            Err(RaftError::Fatal(_)) => Err(STOPPED),
        }
    }

    /// Has a majority confirm that this node is the leader, and waits until it has applied what was
    /// committed before. Otherwise says which node may be the leader.
    async fn lead(&self) -> Result<Result<(), Option<u64>>, Status> {
        match self.raft.ensure_linearizable().await {
            Ok(_) => Ok(Ok(())),
            Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(forward))) => {
                Ok(Err(instead(&forward)))
            }
            Err(RaftError::APIError(_)) => Ok(Err(None)),
            Err(RaftError::Fatal(_)) => Err(STOPPED),
        }
    }

    async fn get(&self, key: String) -> Result<ToClient<Option<Value>>, Status> {
        Ok(match self.lead().await? {
            Err(leader) => ToClient::AskInstead(leader),
            Ok(()) => ToClient::Done(self.machine.get(&key)),
        })
    }

    /// Gives out a lease. A follower refuses votes by itself after it has confirmed the leader, but
    /// openraft's leader votes for a candidate whose log is as good as its own; so it is bound
    /// here, from before it asks the others.
    async fn lease(&self) -> Result<ToClient<Lease>, Status> {
        match self.raft.current_leader().await {
            Some(leader) if leader == self.id => self.bind(),
            other => return Ok(ToClient::AskInstead(other)),
        }
        if let Err(leader) = self.lead().await? {
            return Ok(ToClient::AskInstead(leader));
        }
        let (table, buckets) = self.machine.table();
        let lasts_us = u64::try_from(self.lease.as_micros()).unwrap_or(u64::MAX);
        Ok(ToClient::Done(Lease { addr: table.addr, rkey: table.rkey.0, buckets, lasts_us }))
    }

    fn bind(&self) {
        let mut promised = self.promised.lock().unwrap_or_else(PoisonError::into_inner);
        *promised = Some(Instant::now() + self.lease);
    }

    fn is_bound(&self) -> bool {
        let promised = self.promised.lock().unwrap_or_else(PoisonError::into_inner);
        promised.is_some_and(|until| Instant::now() < until)
    }
}
