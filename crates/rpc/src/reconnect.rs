//! A client that connects again.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::{fmt, future};

use feroce::cm::Manager;

use crate::client::Client;
use crate::error::Error;
use crate::limits::Limits;
use crate::message::{Reply, Request};

/// Calls a server, and connects again when the connection has ended. Cheap to clone.
///
/// A call waits while there is no connection. A call that is under way when the connection ends
/// fails with [`Error::Disconnected`] and is not repeated, because the server may have executed it:
/// only the caller knows whether that may happen twice.
///
/// ```
/// # use std::time::Duration;
/// # use feroce::cm::Manager;
/// use feroce_rpc::{Limits, Reconnecting, Request};
///
/// # async fn example(manager: &Manager) -> Result<(), Box<dyn std::error::Error>> {
/// let at = "10.0.0.2:4000".parse()?;
/// // How long to wait after so many failures in a row.
/// let wait = |failures: u32| tokio::time::sleep(Duration::from_millis(10 << failures.min(8)));
/// let (client, running) = Reconnecting::new(manager, at, Limits::default(), wait);
/// tokio::spawn(running);
/// let reply = client.call(Request::new(1, b"hello")).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Reconnecting {
    shared: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    client: Option<Client>,
    waiting: Vec<Waker>,
    /// Nothing connects any more.
    is_over: bool,
    /// Connections that there have been.
    count: u64,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("client", &self.client).finish_non_exhaustive()
    }
}

fn lock(shared: &Mutex<State>) -> MutexGuard<'_, State> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn change(shared: &Mutex<State>, change: impl FnOnce(&mut State)) {
    let mut state = lock(shared);
    change(&mut state);
    let waiting = std::mem::take(&mut state.waiting);
    drop(state);
    waiting.into_iter().for_each(Waker::wake);
}

/// Ends the waiting of calls when nothing connects any more.
struct Running(Arc<Mutex<State>>);

impl Drop for Running {
    fn drop(&mut self) {
        change(&self.0, |state| (state.client, state.is_over) = (None, true));
    }
}

impl Reconnecting {
    /// A client for the server at `to`. The second result connects, runs the connection, and
    /// connects again: spawn it. It ends with an error that another attempt would not change: the
    /// listener there is no server of this protocol and version. After `n` failures in a row, it
    /// waits for `wait(n)`. It is `Send` if that is.
    pub fn new<F, W>(
        manager: &Manager,
        to: SocketAddr,
        limits: Limits,
        wait: F,
    ) -> (Self, impl Future<Output = Error> + use<F, W>)
    where
        F: Fn(u32) -> W,
        W: Future<Output = ()>,
    {
        let shared: Arc<Mutex<State>> = Arc::default();
        let running = Running(Arc::clone(&shared));
        let manager = manager.clone();
        let run = async move {
            let mut failures = 0;
            loop {
                match Client::connect(&manager, to, limits).await {
                    Ok((client, connection)) => {
                        failures = 0;
                        change(&running.0, |state| {
                            state.client = Some(client);
                            state.count += 1;
                        });
                        connection.await;
                        change(&running.0, |state| state.client = None);
                    }
                    Err(e) if is_final(&e) => return e,
                    Err(_) => {}
                }
                failures += 1;
                wait(failures).await;
            }
        };
        (Self { shared }, run)
    }

    /// The connection, as soon as there is one.
    pub async fn client(&self) -> Result<Client, Error> {
        future::poll_fn(|cx| {
            let mut state = lock(&self.shared);
            if let Some(client) = &state.client {
                return Poll::Ready(Ok(client.clone()));
            }
            if state.is_over {
                return Poll::Ready(Err(Error::Disconnected));
            }
            if !state.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Calls the server, as soon as there is a connection. See [`Client::call`].
    pub async fn call(&self, request: Request) -> Result<Reply, Error> {
        self.client().await?.call(request).await
    }

    /// Connections that there have been.
    pub fn connections(&self) -> u64 {
        lock(&self.shared).count
    }
}

/// Whether another attempt would fail the same way.
fn is_final(error: &Error) -> bool {
    use crate::error::Rejection;
    matches!(error, Error::NotAServer | Error::Rejected(Rejection::Version))
}
