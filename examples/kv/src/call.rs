//! Calls between nodes, and from clients to nodes, over connections that are made again.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use feroce::Device;
use feroce::cm::{Manager, Timing};
use feroce_rpc::{Client, Error, Limits, Reconnecting};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Limits of all connections.
pub(crate) const LIMITS: Limits = Limits { window: 16, eager: 8 << 10, longest: 1 << 20 };

/// A connection manager at an address of this host. A node that is killed while another connects
/// to it does not answer; the manager gives up after about a second, so that the next attempt meets
/// the node that was started again. With the defaults, which are those of Linux, it takes a minute
/// and a half.
pub fn manager(ip: IpAddr) -> Result<Manager, feroce::Error> {
    let timing = Timing { response_timeout: 16, packet_life_time: 14, max_retries: 2 };
    Manager::with_timing([Device::at([ip]).open()?], timing)
}

/// Another node, to which there is a connection most of the time.
#[derive(Debug)]
pub(crate) struct Peer {
    client: Reconnecting,
    connecting: JoinHandle<Error>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.connecting.abort();
    }
}

impl Peer {
    pub(crate) fn new(manager: &Manager, at: SocketAddr) -> Self {
        let wait = |failures: u32| sleep(Duration::from_millis(10 << failures.min(5)));
        let (client, running) = Reconnecting::new(manager, at, LIMITS, wait);
        Self { client, connecting: tokio::spawn(running) }
    }

    /// The connection, as soon as there is one.
    pub(crate) async fn client(&self) -> Result<Client, CallError> {
        Ok(self.client.client().await?)
    }

    /// Calls a method.
    pub(crate) async fn call<A: DeserializeOwned>(
        &self,
        method: u32,
        request: &impl Serialize,
        within: Duration,
    ) -> Result<A, CallError> {
        let call = async { call(&self.client().await?, method, request, within).await };
        timeout(within, call).await.map_err(|_| CallError::TimedOut)?
    }
}

/// Calls a method on a connection. The server drops a call that is too late.
pub(crate) async fn call<A: DeserializeOwned>(
    client: &Client,
    method: u32,
    request: &impl Serialize,
    within: Duration,
) -> Result<A, CallError> {
    let bytes = postcard::to_stdvec(request)?;
    let request = client.request(method, &bytes)?;
    let reply = client.call(request.timeout(within)).await?;
    Ok(postcard::from_bytes(&reply)?)
}

/// Why a call has no answer.
#[derive(Debug)]
pub(crate) enum CallError {
    TimedOut,
    Rpc(Error),
    Encoding(postcard::Error),
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TimedOut => write!(f, "the node did not answer in time"),
            Self::Rpc(e) => write!(f, "{e}"),
            Self::Encoding(e) => write!(f, "message of a node: {e}"),
        }
    }
}

impl std::error::Error for CallError {}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self::Rpc(error)
    }
}

impl From<postcard::Error> for CallError {
    fn from(error: postcard::Error) -> Self {
        Self::Encoding(error)
    }
}
