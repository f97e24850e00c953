//! Several paths to one subsystem, each of which connects again when it was lost.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use feroce::cm::Manager;

use super::disk::{RemoteNamespace, Way};
use super::paths::{Path, Paths};
use super::{Host, HostOptions};
use crate::error::HostError;
use crate::wire::Nqn;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);

/// First pause between attempts to connect. It doubles with each failure, 8 times at most.
const PAUSE: Duration = Duration::from_millis(10);

/// Disks of a subsystem over one path or several, which are used in turn. Cheap to clone.
///
/// A command whose connection is lost is executed again, on another path or after the target has
/// come back, so that a program that uses a disk notices nothing but the time that it takes. A
/// command ends with [`Status::PATH`](crate::wire::Status::PATH) once every path has been without
/// a connection for [`HostOptions::patience`], or was refused for good.
///
/// A disk that has another identifier, another size of its blocks or fewer blocks than before is
/// another disk: a path that leads to it is not used.
///
/// As with every multipath host, a target that is slow to notice the end of a connection may
/// execute a command of it after the host has repeated the command on another path. Programs that
/// write a block again before they know that the first write has ended must expect either.
///
/// ```
/// # use feroce::cm::Manager;
/// use feroce_nvme::{HostOptions, Multipath, Namespace as _};
///
/// # async fn example(manager: &Manager) -> Result<(), Box<dyn std::error::Error>> {
/// let paths = ["10.0.0.1:4420".parse()?, "10.1.0.1:4420".parse()?];
/// let nqn = "nqn.2024-01.com.example:disks".parse()?;
/// let options = HostOptions { keep_alive_ms: 5000, ..HostOptions::default() };
/// let (host, running) = Multipath::new(manager, &paths, &nqn, &options, tokio::time::sleep);
/// tokio::spawn(running);
/// let disk = host.namespace(1).await?;
/// disk.write(8, &[7; 512]).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Multipath {
    shared: Arc<Paths>,
}

/// What became of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathInfo {
    /// Where it leads.
    pub to: SocketAddr,
    /// Whether it is connected.
    pub is_connected: bool,
    /// Connections that there have been.
    pub connections: u64,
    /// Why it was not connected when that was tried last.
    pub failure: Option<String>,
}

impl Multipath {
    /// A host that uses the subsystem at all of `paths`. The second result connects, sends
    /// keep-alives, and connects again: spawn it. It ends when every path has ended, because the
    /// target refuses, or because [`HostOptions::patience`] has passed without a connection; its
    /// value is the error of the path that ended last. Also [`Multipath::disconnect`] ends it.
    /// `sleep` waits for a time; the future is
    /// `Send` if that is.
    pub fn new<F, W>(
        manager: &Manager,
        paths: &[SocketAddr],
        nqn: &Nqn,
        options: &HostOptions,
        sleep: F,
    ) -> (Self, impl Future<Output = HostError> + use<F, W>)
    where
        F: Fn(Duration) -> W + Clone,
        W: Future<Output = ()>,
    {
        let shared = Arc::new(Paths::new(paths));
        let all = paths.to_vec();
        let runners: Vec<_> = all
            .into_iter()
            .enumerate()
            .map(|(number, to)| {
                let runner = Runner {
                    running: Running { paths: Arc::clone(&shared), number },
                    manager: manager.clone(),
                    to,
                    nqn: nqn.clone(),
                    options: options.clone(),
                    sleep: sleep.clone(),
                };
                Some(Box::pin(runner.run()))
            })
            .collect();
        let closed = Arc::clone(&shared);
        let run = async move {
            let all = run_all(runners);
            first(all, closed.closed()).await.unwrap_or(HostError::Lost)
        };
        (Self { shared }, run)
    }

    /// A disk by its number, as soon as there is a connection.
    pub async fn namespace(&self, nsid: u32) -> Result<RemoteNamespace, HostError> {
        loop {
            let (number, host) = self.shared.host(&[]).await?;
            match host.identify_namespace(nsid).await {
                Ok(found) => {
                    let known = *self.shared.lock().disks.entry(nsid).or_insert(found);
                    let most = host.longest();
                    let way = Way::Many(Arc::clone(&self.shared));
                    return Ok(RemoteNamespace::new(way, nsid, known, most));
                }
                Err(e) if e.is_of_the_path() => self.shared.give_up(number, &host),
                Err(e) => return Err(e),
            }
        }
    }

    /// Numbers of the disks, as soon as there is a connection.
    pub async fn namespaces(&self) -> Result<Vec<u32>, HostError> {
        loop {
            let (number, host) = self.shared.host(&[]).await?;
            match host.namespaces().await {
                Err(e) if e.is_of_the_path() => self.shared.give_up(number, &host),
                found => return found,
            }
        }
    }

    /// Ends all connections, and the future that makes them. Commands under way fail.
    pub fn disconnect(&self) {
        self.shared.close();
    }

    /// The paths, in the order in which they were given.
    pub fn paths(&self) -> Vec<PathInfo> {
        let info = |path: &Path| PathInfo {
            to: path.to,
            is_connected: path.host.is_some(),
            connections: path.connections,
            failure: path.failure.clone(),
        };
        self.shared.lock().paths.iter().map(info).collect()
    }
}

/// Ends a path when nothing connects it any more.
#[derive(Debug)]
struct Running {
    paths: Arc<Paths>,
    number: usize,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.paths.change(self.number, |path| (path.host, path.is_over) = (None, true));
    }
}

/// Keeps one path connected.
struct Runner<F> {
    running: Running,
    manager: Manager,
    to: SocketAddr,
    nqn: Nqn,
    options: HostOptions,
    sleep: F,
}

impl<F, W> Runner<F>
where
    F: Fn(Duration) -> W,
    W: Future<Output = ()>,
{
    /// Connects, again and again; the result says why it does not do so any more.
    async fn run(self) -> HostError {
        let Running { paths, number } = &self.running;
        // Attempts that failed in a row, and the pauses between them.
        let (mut failures, mut paused) = (0_u32, Duration::ZERO);
        loop {
            let error = match self.connect().await {
                Ok(host) => {
                    let host = Arc::new(host);
                    paths.change(*number, |path| {
                        path.host = Some(Arc::clone(&host));
                        path.connections += 1;
                        path.failure = None;
                    });
                    self.keep_alive(&host).await;
                    host.abandon();
                    (failures, paused) = (0, Duration::ZERO);
                    HostError::Lost
                }
                Err(e) => e,
            };
            paths.change(*number, |path| {
                path.host = None;
                path.failure = Some(error.to_string());
            });
            if error.is_final() || paused >= self.options.patience {
                return error;
            }
            let pause = PAUSE * (1 << failures.min(8));
            (failures, paused) = (failures + 1, paused.saturating_add(pause));
            (self.sleep)(pause).await;
        }
    }

    async fn connect(&self) -> Result<Host, HostError> {
        let connect = Host::connect(&self.manager, self.to, &self.nqn, &self.options);
        let connected = async {
            let host = connect.await?;
            self.running.paths.check_all(&host).await?;
            Ok(host)
        };
        let late = Err(HostError::Target("it has not answered for 10 seconds"));
        first(connected, (self.sleep)(CONNECT)).await.unwrap_or(late)
    }

    /// Sends keep-alives, until the connection is lost.
    async fn keep_alive(&self, host: &Host) {
        if self.options.keep_alive_ms == 0 {
            return host.lost().await;
        }
        let half = Duration::from_millis(u64::from(self.options.keep_alive_ms) / 2);
        loop {
            if first(host.lost(), (self.sleep)(half)).await.is_some() {
                return;
            }
            // A target that does not answer in time has ended the association on its side.
            if !matches!(first(host.keep_alive(), (self.sleep)(half)).await, Some(Ok(()))) {
                return;
            }
        }
    }
}

/// The result of a task, or none if `limit` is over first.
async fn first<T>(task: impl Future<Output = T>, limit: impl Future<Output = ()>) -> Option<T> {
    let (mut task, mut limit) = (pin!(task), pin!(limit));
    poll_fn(|cx| match task.as_mut().poll(cx) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => limit.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// Runs all, and returns the result of the one that ends last.
async fn run_all<R: Future<Output = HostError>>(
    mut runners: Vec<Option<Pin<Box<R>>>>,
) -> HostError {
    let mut last = HostError::Lost;
    poll_fn(|cx| {
        for place in &mut runners {
            let Some(runner) = place else { continue };
            if let Poll::Ready(error) = runner.as_mut().poll(cx) {
                *place = None;
                last = error;
            }
        }
        if runners.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    last
}
