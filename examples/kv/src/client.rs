//! A client of the store.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use feroce::cm::Manager;
use feroce::{Pool, Remote, Rkey};
use tokio::task::coop::consume_budget;
use tokio::time::{sleep, timeout};

use crate::Peers;
use crate::call::{CallError, Peer, call};
use crate::table::{BUCKET, Found, bucket_of, find};
use crate::types::{Lease, Put, ToClient, Value, method};

/// How long a node may take to answer before another is asked.
const PATIENCE: Duration = Duration::from_millis(700);
/// How long a client waits before it asks the nodes again after none has been the leader.
const PAUSE: Duration = Duration::from_millis(20);
/// How often an entry that is being written is read before its value is asked for by a call.
const READS: u32 = 3;

/// Reads and writes values; does one thing at a time.
#[derive(Debug)]
pub struct Client {
    /// Distinguishes it from other clients.
    id: u64,
    /// PUTs so far.
    puts: u64,
    peers: BTreeMap<u64, Peer>,
    /// The node that was the leader last.
    leader: u64,
    lease: Option<Held>,
    counts: Counts,
}

/// How GETs were answered.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// By a READ alone.
    pub reads: u64,
    /// By a call, because the table did not have the value.
    pub calls: u64,
    /// Leases that the leader has given.
    pub leases: u64,
}

/// A lease and what is needed to use it.
#[derive(Debug)]
struct Held {
    client: feroce_rpc::Client,
    pool: Pool,
    table: Lease,
    until: Instant,
}

/// The store does not take a key or a value as long as this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLong;

impl std::fmt::Display for TooLong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (key, value) = (crate::MAX_KEY, crate::MAX_VALUE);
        write!(f, "too long: a key has at most {key} bytes, a value {value}")
    }
}

impl std::error::Error for TooLong {}

impl Client {
    /// A client of these nodes. It belongs to a tokio runtime.
    pub fn new(manager: &Manager, peers: &Peers) -> Self {
        let connected = peers.iter().map(|(id, at)| (*id, Peer::new(manager, *at))).collect();
        Self {
            id: fastrand::u64(..),
            puts: 0,
            peers: connected,
            leader: peers.keys().next().copied().unwrap_or_default(),
            lease: None,
            counts: Counts::default(),
        }
    }

    /// How GETs were answered so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The node that was the leader when it answered last.
    pub fn leader(&self) -> u64 {
        self.leader
    }

    /// Writes a value, and returns its version. It asks until a leader has acknowledged it; drop
    /// the future to give up, after which the value may or may not be written, unless a later PUT
    /// of this client is acknowledged before: then it is not written any more.
    pub async fn put(&mut self, key: &str, value: &[u8]) -> Result<u64, TooLong> {
        self.puts += 1;
        let (client, number) = (self.id, self.puts);
        let put = Put { client, number, key: key.into(), value: value.into() };
        loop {
            match self.ask(method::PUT, &put).await {
                Some(ToClient::Done(version)) => return Ok(version),
                Some(ToClient::TooLong) => return Err(TooLong),
                other => self.ask_another(other.as_ref()).await,
            }
        }
    }

    /// Reads a value and its version: the last that was acknowledged before this was called, or a
    /// later one. It asks until there is a leader; drop the future to give up.
    ///
    /// While the client has a lease, this is one READ of the leader's memory.
    pub async fn get(&mut self, key: &str) -> Option<Value> {
        let mut torn = 0;
        loop {
            // A READ within this host may be done at once, again and again; other tasks run too.
            consume_budget().await;
            match self.read(key).await {
                Some(Found::Value(version, value)) => return Some((version, value)),
                Some(Found::Absent) => return None,
                Some(Found::Torn) if torn < READS => torn += 1,
                Some(Found::Torn | Found::Elsewhere) => return self.get_by_call(key).await,
                // The connection, or the lease, has ended.
                None => self.lease = None,
            }
        }
    }

    /// One READ under a lease, which it asks for if there is none; `None` if the connection, or the
    /// lease, has ended meanwhile.
    async fn read(&mut self, key: &str) -> Option<Found> {
        if self.lease.as_ref().is_none_or(|held| Instant::now() >= held.until) {
            self.lease = Some(self.renew().await);
        }
        let held = self.lease.as_ref()?;
        let at = u64::from(bucket_of(key, held.table.buckets)) * BUCKET as u64;
        let from = Remote { addr: held.table.addr + at, rkey: Rkey(held.table.rkey) };
        let read = held.client.read(from, held.pool.take().await, BUCKET);
        let bucket = timeout(PATIENCE, read).await.ok()?.ok()?;
        // What was read counts if nothing was acknowledged elsewhere before it was read.
        let is_current = Instant::now() < held.until;
        let found = is_current.then(|| find(&bucket[..BUCKET], key))?;
        self.counts.reads += u64::from(matches!(found, Found::Value(..) | Found::Absent));
        Some(found)
    }

    async fn get_by_call(&mut self, key: &str) -> Option<Value> {
        loop {
            match self.ask(method::GET, &key).await {
                Some(ToClient::Done(value)) => {
                    self.counts.calls += 1;
                    return value;
                }
                other => self.ask_another(other.as_ref()).await,
            }
        }
    }

    /// Asks for a lease until a leader gives one.
    async fn renew(&mut self) -> Held {
        loop {
            // The lease counts from before the leader has heard of it.
            let begun = Instant::now();
            let asked = timeout(PATIENCE, self.ask_for_lease()).await.ok().and_then(Result::ok);
            match asked {
                Some((ToClient::Done(table), client)) => {
                    let Ok(pool) = Pool::new(client.pd(), 2, BUCKET) else { continue };
                    let until = begun + Duration::from_micros(table.lasts_us);
                    self.counts.leases += 1;
                    return Held { client, pool, table, until };
                }
                other => self.ask_another(other.map(|(answer, _)| answer).as_ref()).await,
            }
        }
    }

    /// The answer, and the connection that it came over: its table is read over the same one.
    async fn ask_for_lease(&self) -> Result<(ToClient<Lease>, feroce_rpc::Client), CallError> {
        let peer = self.peers.get(&self.leader).ok_or(CallError::TimedOut)?;
        let client = peer.client().await?;
        Ok((call(&client, method::LEASE, &(), PATIENCE).await?, client))
    }

    /// Calls the node that was the leader last; `None` if it does not answer.
    async fn ask<T: serde::de::DeserializeOwned>(
        &self,
        method: u32,
        request: &impl serde::Serialize,
    ) -> Option<ToClient<T>> {
        self.peers.get(&self.leader)?.call(method, request, PATIENCE).await.ok()
    }

    /// Another node is asked next: the one that this one has named, or the one behind it.
    async fn ask_another<T>(&mut self, answer: Option<&ToClient<T>>) {
        let next = || {
            let mut behind = self.peers.range(self.leader + 1..);
            behind.next().or_else(|| self.peers.iter().next()).map(|(id, _)| *id)
        };
        let named = match answer {
            Some(ToClient::AskInstead(leader)) => leader.filter(|id| *id != self.leader),
            _ => None,
        };
        if named.is_none() {
            sleep(PAUSE).await;
        }
        self.leader = named.or_else(next).unwrap_or(self.leader);
    }
}
