//! One end of a connection: its queue pair, and waiting for events and completions.

use std::fmt;
use std::io;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use feroce::cm::{CmId, ConnParam, Event, EventChannel, EventKind, RejReason};
use feroce::{
    Access, Cq, Cqe, Data, InlineBytes, Notify, Pd, Qp, QpAttr, QpCap, QpState, Remote, Rkey,
    SendOp, SendWr, TransportKind, WcStatus,
};
use nix::poll::{PollFd, PollFlags, poll};

use super::place::Target;
use crate::stop;

/// Interval at which a wait checks whether the user has interrupted the program, in milliseconds.
pub(super) const NAP_MS: u16 = 100;

/// Empty polls before a wait sleeps.
const SPINS: u32 = 200;

/// How long the peer may be silent before this end probes it.
const SILENCE: Duration = Duration::from_secs(2);

/// Work request id of the probe.
const PROBE: u64 = u64::MAX;

/// Reasons to end a run early that are not failures of either end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// The user interrupted the program.
    Interrupted,
    /// The peer has disconnected.
    Disconnected,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupted => "interrupted",
            Self::Disconnected => "the peer has disconnected",
        })
    }
}

impl std::error::Error for Ended {}

/// Whether the outcome is a regular disconnection by the peer.
pub(super) fn is_disconnected(result: &anyhow::Result<()>) -> bool {
    matches!(result, Err(e) if e.downcast_ref() == Some(&Ended::Disconnected))
}

/// Waits for the next event; fails if the user interrupts the program.
pub(super) fn next_event(events: &EventChannel) -> anyhow::Result<Event> {
    next_event_by(events, None)
}

/// The same, if there is an event before the deadline.
fn next_event_by(events: &EventChannel, deadline: Option<Instant>) -> anyhow::Result<Event> {
    while !stop::requested() {
        let now = Instant::now();
        if deadline.is_some_and(|deadline| deadline <= now) {
            bail!("no answer in the time of --timeout: `feroce doctor HOST` checks the path");
        }
        if let Some(event) = events.wait_event(Some(NAP_MS))? {
            return Ok(event);
        }
    }
    Err(Ended::Interrupted.into())
}

/// Waits for an event of this kind.
pub(crate) fn expect(events: &EventChannel, kind: EventKind) -> anyhow::Result<Event> {
    loop {
        let event = next_event(events)?;
        if event.kind == kind {
            return Ok(event);
        }
        judge(&event)?;
    }
}

/// Returns an error for an event that ends its id, its connection or its device.
pub(crate) fn judge(event: &Event) -> anyhow::Result<()> {
    let peer = || match event.id.peer_addr() {
        Some(peer) => peer.to_string(),
        None => "the peer".to_owned(),
    };
    Err(match event.kind {
        EventKind::Rejected => {
            let reason = RejReason(u16::try_from(event.status).unwrap_or(0));
            let hint = match reason {
                RejReason::INVALID_SERVICE_ID => ": no program listens there; start the server",
                _ => "",
            };
            anyhow!("{} refused: {} ({}){hint}", peer(), reason.name(), reason.0)
        }
        EventKind::Unreachable if event.status > 0 => {
            anyhow!("{} does not offer the service (status {})", peer(), event.status)
        }
        EventKind::Unreachable => {
            let host =
                event.id.peer_addr().map_or_else(|| "HOST".to_owned(), |at| at.ip().to_string());
            anyhow!(
                "{} does not answer: is the machine up, and UDP port 4791 open? (`feroce doctor \
                 {host}` tries it)",
                peer()
            )
        }
        EventKind::AddrError | EventKind::RouteError => {
            let why = io::Error::from_raw_os_error(-event.status);
            anyhow!("no route to {}: {why}", peer())
        }
        EventKind::ConnectError | EventKind::MulticastError => {
            anyhow!("{:?} (status {})", event.kind, event.status)
        }
        EventKind::DeviceRemoval => anyhow!("the device is gone"),
        EventKind::Disconnected => Ended::Disconnected.into(),
        _ => return Ok(()),
    })
}

/// Resolves address and route of an id.
pub(crate) fn resolve(id: &CmId, target: Target) -> anyhow::Result<()> {
    let events = id.channel();
    let cannot = || format!("cannot reach {}", target.to);
    id.resolve_addr(target.from, target.to, 2000).with_context(cannot)?;
    expect(&events, EventKind::AddrResolved).with_context(cannot)?;
    id.resolve_route(2000).with_context(cannot)?;
    expect(&events, EventKind::RouteResolved).map(drop)
}

/// One end of a reliable connection, on an id with an event channel of its own.
#[derive(Debug)]
pub(super) struct End {
    // The first field, because fields drop in order: the id disconnects before the queue pair is
    // destroyed.
    id: CmId,
    events: EventChannel,
    pub(super) qp: Qp,
    pub(super) pd: Pd,
    cq: Cq,
    /// This end modifies the queue pair itself, instead of the id.
    by_hand: bool,
    /// The peer has disconnected.
    is_over: bool,
    /// A probe of the peer is outstanding.
    is_probing: bool,
}

impl End {
    /// Creates a queue pair for an id whose device is known.
    pub(super) fn new(id: CmId, cap: QpCap, by_hand: bool) -> anyhow::Result<Self> {
        let context = id.context().context("the id has no device")?;
        if by_hand && context.attr().transport == TransportKind::Iwarp {
            bail!(
                "-q: over iWARP a queue pair is a connection, and only the connection manager can \
                 bring it up: leave -q out"
            );
        }
        let (pd, cq) =
            (context.alloc_pd()?, context.create_cq(cap.max_send_wr + cap.max_recv_wr + 1)?);
        // One more send, for the probe.
        let cap = QpCap { max_send_wr: cap.max_send_wr + 1, ..cap };
        let mut qp = pd.rc_qp(&cq, &cq, cap).create()?;
        if by_hand {
            qp.modify(&QpAttr::init(Access::empty()))?;
        } else {
            id.use_qp(&qp)?;
        }
        let events = id.channel();
        Ok(Self { id, events, qp, pd, cq, by_hand, is_over: false, is_probing: false })
    }

    /// Connects to the target of the id, and gives up after `limit`.
    pub(super) fn connect_within(
        &mut self,
        param: ConnParam,
        limit: Option<Duration>,
    ) -> anyhow::Result<()> {
        self.ask(param)?;
        self.wait_answer(limit)
    }

    /// Waits for the answer of the server, up to `limit`.
    pub(super) fn wait_answer(&mut self, limit: Option<Duration>) -> anyhow::Result<()> {
        self.wait_connected_by(limit.map(|limit| Instant::now() + limit))
    }

    /// Accepts the connection request of the id with the parameters of the request, and waits for
    /// the connection.
    pub(super) fn accept(&mut self) -> anyhow::Result<()> {
        self.grant()?;
        self.wait_connected()
    }

    /// Requests a connection from the target of the id.
    pub(super) fn ask(&mut self, param: ConnParam) -> anyhow::Result<()> {
        // An id with a queue pair ignores `qpn` and uses its own.
        Ok(self.id.connect(&ConnParam { qpn: self.qp.qpn(), ..param })?)
    }

    /// Accepts the connection request of the id.
    pub(super) fn grant(&mut self) -> anyhow::Result<()> {
        let param = self.id.offered().unwrap_or_default();
        if self.by_hand {
            self.bring_up()?;
        }
        Ok(self.id.accept(&ConnParam { qpn: self.qp.qpn(), ..param })?)
    }

    /// Waits until the connection is established.
    pub(super) fn wait_connected(&mut self) -> anyhow::Result<()> {
        self.wait_connected_by(None)
    }

    fn wait_connected_by(&mut self, deadline: Option<Instant>) -> anyhow::Result<()> {
        loop {
            let event = next_event_by(&self.events, deadline)?;
            match event.kind {
                EventKind::Established => return Ok(()),
                // The peer has accepted. This end brings its queue pair up and then tells the peer
                // that it is ready.
                EventKind::ConnectResponse => {
                    self.bring_up()?;
                    return Ok(self.id.establish()?);
                }
                _ => judge(&event)?,
            }
        }
    }

    /// Moves the events of the id to another channel.
    pub(super) fn migrate(&mut self, events: EventChannel) -> anyhow::Result<()> {
        self.id.migrate(&events)?;
        self.events = events;
        Ok(())
    }

    fn bring_up(&mut self) -> anyhow::Result<()> {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.qp.modify(&self.id.qp_attr(state)?)?;
        }
        Ok(())
    }

    /// Ends the connection after `result`, and returns the first error. After a failure, dropping
    /// the id tells the peer, but this end does not wait for its answer.
    pub(super) fn finish(self, result: anyhow::Result<()>) -> anyhow::Result<()> {
        match &result {
            Err(e) if e.downcast_ref::<Ended>().is_none() => result,
            _ => {
                let ended = self.disconnect();
                result.and(ended)
            }
        }
    }

    /// Disconnects and waits until the connection has ended.
    fn disconnect(mut self) -> anyhow::Result<()> {
        self.start_disconnect()?;
        self.wait_end()
    }

    /// Starts to disconnect.
    pub(super) fn start_disconnect(&mut self) -> anyhow::Result<()> {
        if self.by_hand {
            self.qp.modify(&QpAttr::to(QpState::Err))?;
        }
        Ok(self.id.disconnect()?)
    }

    /// Waits until the connection has ended, or the user interrupts the program.
    pub(super) fn wait_end(&mut self) -> anyhow::Result<()> {
        while !self.is_over {
            match self.events.wait_event(Some(NAP_MS))? {
                Some(event) => self.is_over |= event.kind == EventKind::Disconnected,
                None if stop::requested() => break,
                None => {}
            }
        }
        Ok(())
    }

    /// Waits for the next completion, which must be a success. The wait has no timeout as long as
    /// the peer answers probes.
    pub(super) fn completion(&mut self) -> anyhow::Result<Cqe> {
        let since = Instant::now();
        loop {
            for _ in 0..SPINS {
                if let Some(cqe) = self.take()? {
                    return Ok(cqe);
                }
                std::hint::spin_loop();
            }
            // Completions that arrived before the disconnection have been taken above.
            if self.is_over {
                return Err(Ended::Disconnected.into());
            }
            if stop::requested() {
                return Err(Ended::Interrupted.into());
            }
            if let Some(event) = self.events.try_event() {
                self.is_over |= event.kind == EventKind::Disconnected;
                continue;
            }
            if since.elapsed() > SILENCE && !self.is_probing {
                self.probe()?;
            }
            self.cq.notify(Notify::Next);
            if let Some(cqe) = self.take()? {
                return Ok(cqe);
            }
            self.sleep()?;
        }
    }

    /// Sleeps until the completion channel or the event channel is readable, at most `NAP_MS`.
    fn sleep(&self) -> anyhow::Result<()> {
        let wants = PollFlags::POLLIN;
        let mut fds = [
            PollFd::new(self.cq.channel().as_fd(), wants),
            PollFd::new(self.events.as_fd(), wants),
        ];
        match poll(&mut fds, NAP_MS) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
        // Takes the completion event off the channel; it has ended the sleep.
        self.cq.channel().wait(Some(0))?;
        Ok(())
    }

    /// Probes the peer with a zero-length RDMA WRITE: it needs no memory and no receive, but an
    /// acknowledgement.
    fn probe(&mut self) -> anyhow::Result<()> {
        let nowhere = Remote { addr: 0, rkey: Rkey(0) };
        let nothing = Data::Inline(InlineBytes::new(&[]));
        self.qp.post_send([SendWr::new(PROBE, SendOp::Write(nowhere), nothing)])?;
        self.is_probing = true;
        Ok(())
    }

    /// Whether the connection has ended, or ends in a moment.
    fn has_ended(&mut self) -> anyhow::Result<bool> {
        if !self.is_over
            && let Some(event) = self.events.wait_event(Some(NAP_MS))?
        {
            self.is_over |= event.kind == EventKind::Disconnected;
        }
        Ok(self.is_over)
    }

    fn take(&mut self) -> anyhow::Result<Option<Cqe>> {
        while let Some(cqe) = self.cq.poll_one() {
            match cqe.status {
                WcStatus::Success if cqe.wr_id == PROBE => self.is_probing = false,
                WcStatus::Success => return Ok(Some(cqe)),
                WcStatus::RetryExceeded => bail!(
                    "the peer does not answer any more: has it ended, or is UDP port 4791 filtered?"
                ),
                // The end of an iWARP connection flushes what is posted; its event follows.
                WcStatus::Flushed if self.has_ended()? => {
                    return Err(Ended::Disconnected.into());
                }
                status => bail!("a work request failed: {status} ({})", status as u32),
            }
        }
        Ok(None)
    }
}
