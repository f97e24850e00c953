//! What every pattern uses: a connection, and memory that both ends lay out alike.
//!
//! ```text
//! outgoing   incoming   receive 0   receive 1
//! ```
//!
//! Each part is a head of 64 bytes and the longest message. In the head, bytes 0 to 3 are a flag
//! and bytes 60 to 63 the length, in front of the message.

use std::net::SocketAddr;
use std::ops::Range;

use feroce::cm::{ConnParam, Connection, Connector, EventKind, Manager, Request};
use feroce::{
    Access, Cqe, Data, InlineBytes, Instant, Mr, Pd, QpCap, Remote, Rkey, SendFlags, SendOp,
    SendWr, WcStatus,
};

use super::error::PatternError;
use super::pattern::Pattern;

/// Bytes in front of a message.
pub(super) const HEAD: usize = 64;
/// Longest message that is sent inline.
pub(super) const INLINE: usize = 256;
/// What private data begins with; the last byte is the version.
const MAGIC: [u8; 5] = *b"fPAT\x01";
/// Longest message that ends may agree on.
const LONGEST: usize = 1 << 30;
/// Receives that are posted. The peer has one message under way, and its next may come before the
/// first receive is posted again.
const RECEIVES: usize = 2;
/// Messages that may be posted and not complete; each is two requests at most.
const MOST_OPEN: u32 = 16;
/// How long the adapter of a peer may be silent.
const PATIENCE_NS: u64 = 10_000_000_000;

/// One end of a connection, and the memory of its messages.
#[derive(Debug)]
pub struct Channel {
    connection: Connection,
    memory: Mr,
    /// The peer's memory.
    peer: Remote,
    pattern: Pattern,
    longest: usize,
    /// Messages so far.
    pub(super) sent: u32,
    pub(super) received: u32,
    /// Signalled requests that are not complete.
    open: u32,
    is_over: bool,
}

fn slot(longest: usize) -> usize {
    HEAD + longest.next_multiple_of(64)
}

fn memory(pd: &Pd, longest: usize) -> Result<Mr, PatternError> {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    Ok(pd.alloc_mr((2 + RECEIVES) * slot(longest), access)?)
}

fn cap() -> QpCap {
    QpCap { max_inline: INLINE as u32, ..QpCap::new(64, 16) }
}

impl Channel {
    /// Connects to a [`Listener`](feroce::cm::Listener) for messages of at most `longest` bytes.
    pub fn connect(
        manager: &Manager,
        to: SocketAddr,
        pattern: Pattern,
        longest: usize,
    ) -> Result<Self, PatternError> {
        let len = u32::try_from(longest).unwrap_or(u32::MAX).to_be_bytes();
        let hello = [&MAGIC[..], &[pattern.code()], &len].concat();
        let param = ConnParam { private_data: hello, ..ConnParam::default() };
        let mut connecting = Connector::new(manager).param(param).cap(cap()).prepare(to)?;
        let memory = memory(connecting.pd(), longest)?;
        connecting.post_recv((0..RECEIVES).map(|i| receive(&memory, longest, i)))?;
        let connection = connecting.connect()?;
        Self::new(connection, memory, pattern, longest).meet()
    }

    /// Accepts the request of a peer that has connected with [`Channel::connect`].
    pub fn accept(request: Request) -> Result<Self, PatternError> {
        let hello = request.private_data().strip_prefix(&MAGIC).ok_or(PatternError::NotAPeer)?;
        let (&code, rest) = hello.split_first().ok_or(PatternError::NotAPeer)?;
        let pattern = Pattern::from_code(code).ok_or(PatternError::NotAPeer)?;
        let len = rest.first_chunk().ok_or(PatternError::NotAPeer)?;
        let longest = u32::from_be_bytes(*len) as usize;
        if longest > LONGEST {
            return Err(PatternError::TooLong { len: longest, longest: LONGEST });
        }
        let mut accepting = request.cap(cap()).prepare()?;
        let memory = memory(accepting.pd(), longest)?;
        accepting.post_recv((0..RECEIVES).map(|i| receive(&memory, longest, i)))?;
        Self::new(accepting.accept()?, memory, pattern, longest).meet()
    }

    fn new(connection: Connection, memory: Mr, pattern: Pattern, longest: usize) -> Self {
        let (peer, is_over) = (Remote::default(), false);
        let (sent, received, open) = (0, 0, 0);
        Self { connection, memory, peer, pattern, longest, sent, received, open, is_over }
    }

    /// Tells the peer where our memory is, and hears where its memory is.
    fn meet(mut self) -> Result<Self, PatternError> {
        let here = self.memory.remote(0);
        let bytes = [&here.addr.to_be_bytes()[..], &here.rkey.0.to_be_bytes()].concat();
        self.post([self.inline_wr(SendOp::Send, &bytes)])?;
        let since = self.now();
        let cqe = loop {
            match self.completion()? {
                Some(cqe) => break cqe,
                None => self.check(Some(since))?,
            }
        };
        let mut told = [0; 12];
        let range = self.receive_range(&cqe);
        if range.len() != told.len() {
            return Err(PatternError::NotAPeer);
        }
        self.memory.read_at(range.start, &mut told)?;
        let (addr, rkey) = told.split_at(8);
        self.peer = Remote {
            addr: addr.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes)),
            rkey: Rkey(rkey.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))),
        };
        self.post_again(&cqe)?;
        self.settle()?;
        Ok(self)
    }

    /// The pattern that the ends have agreed on.
    pub fn pattern(&self) -> Pattern {
        self.pattern
    }

    /// The longest message.
    pub fn longest(&self) -> usize {
        self.longest
    }

    pub(super) fn now(&self) -> Instant {
        self.connection.pd().context().now()
    }

    pub(super) fn fits(&self, len: usize) -> Result<(), PatternError> {
        let longest = self.longest;
        if len > longest { Err(PatternError::TooLong { len, longest }) } else { Ok(()) }
    }

    /// Copies a message to where the adapter sends it from, when it has done with the last one.
    pub(super) fn stage(&mut self, message: &[u8]) -> Result<(), PatternError> {
        self.fits(message.len())?;
        self.settle()?;
        let len = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
        self.memory.write_at(HEAD - 4, &len)?;
        self.memory.write_at(HEAD, message)?;
        Ok(())
    }

    /// Bytes of the outgoing part, where [`Channel::stage`] has put the message at [`HEAD`].
    pub(super) fn outgoing(&self, range: Range<usize>) -> Data {
        self.memory.data(range)
    }

    /// Writes into the outgoing part.
    pub(super) fn write_outgoing(&self, at: usize, bytes: &[u8]) -> Result<(), PatternError> {
        Ok(self.memory.write_at(at, bytes)?)
    }

    /// A place in the incoming part of the peer.
    pub(super) fn peer_incoming(&self, at: usize) -> Remote {
        self.peer_at(slot(self.longest) + at)
    }

    /// A place in the outgoing part of the peer.
    pub(super) fn peer_at(&self, at: usize) -> Remote {
        Remote { addr: self.peer.addr.wrapping_add(at as u64), ..self.peer }
    }

    /// Bytes of the incoming part, as the target of a READ.
    pub(super) fn incoming(&self, range: Range<usize>) -> Data {
        let base = slot(self.longest);
        self.memory.data(base + range.start..base + range.end)
    }

    /// Reads the incoming part.
    pub(super) fn read_incoming(&self, at: usize, out: &mut [u8]) -> Result<(), PatternError> {
        Ok(self.memory.read_at(slot(self.longest) + at, out)?)
    }

    /// Copies a message out of the incoming part.
    pub(super) fn take_incoming(&self, len: usize, into: &mut Vec<u8>) -> Result<(), PatternError> {
        self.fits(len)?;
        into.resize(len, 0);
        self.read_incoming(HEAD, into)
    }

    /// Copies the message of a receive.
    pub(super) fn take_received(&self, cqe: &Cqe, into: &mut Vec<u8>) -> Result<(), PatternError> {
        let range = self.receive_range(cqe);
        into.resize(range.len(), 0);
        Ok(self.memory.read_at(range.start, into)?)
    }

    fn receive_range(&self, cqe: &Cqe) -> Range<usize> {
        let base = (2 + cqe.wr_id as usize) * slot(self.longest);
        base..base + cqe.byte_len as usize
    }

    /// Posts the receive of a completion again.
    pub(super) fn post_again(&mut self, cqe: &Cqe) -> Result<(), PatternError> {
        let receive = receive(&self.memory, self.longest, cqe.wr_id as usize);
        Ok(self.connection.post_recv([receive])?)
    }

    /// A request whose bytes are in it. It is signalled.
    pub(super) fn inline_wr(&self, op: SendOp, bytes: &[u8]) -> SendWr {
        SendWr::new(0, op, Data::Inline(InlineBytes::new(bytes)))
    }

    /// Posts the requests of one message with one doorbell. The last one is signalled: requests of
    /// a queue pair complete in order, so its completion is that of all.
    pub(super) fn post<const N: usize>(
        &mut self,
        mut wrs: [SendWr; N],
    ) -> Result<(), PatternError> {
        // Completions are taken before the queue of them is full, also if every reply is there at
        // the first look.
        self.await_open(MOST_OPEN)?;
        for (i, wr) in wrs.iter_mut().enumerate() {
            wr.flags = if i + 1 == N { SendFlags::SIGNALED } else { SendFlags::empty() };
        }
        self.connection.post_send(wrs)?;
        self.open += 1;
        Ok(())
    }

    /// Takes completions of requests, and drives the adapter.
    pub(super) fn progress(&mut self) -> Result<(), PatternError> {
        if let Some(cqe) = self.connection.send_cq().poll_one() {
            if cqe.status != WcStatus::Success {
                return Err(self.failed(cqe.status));
            }
            self.open = self.open.saturating_sub(1);
        }
        Ok(())
    }

    /// Waits until the adapter has done with everything that was posted.
    pub(super) fn settle(&mut self) -> Result<(), PatternError> {
        self.await_open(0)
    }

    /// Waits until no more than `most` signalled requests are open.
    fn await_open(&mut self, most: u32) -> Result<(), PatternError> {
        if self.open <= most {
            return Ok(());
        }
        let since = self.now();
        while self.open > most {
            self.progress()?;
            if self.open > most {
                self.check(Some(since))?;
            }
        }
        Ok(())
    }

    /// The completion of a receive, if there is one.
    pub(super) fn completion(&mut self) -> Result<Option<Cqe>, PatternError> {
        let Some(cqe) = self.connection.recv_cq().poll_one() else {
            if self.open > 0 {
                self.progress()?;
            }
            return Ok(None);
        };
        match cqe.status {
            WcStatus::Success => Ok(Some(cqe)),
            status => Err(self.failed(status)),
        }
    }

    fn failed(&self, status: WcStatus) -> PatternError {
        // The end of the connection flushes what is posted.
        if status == WcStatus::Flushed {
            PatternError::Disconnected
        } else {
            PatternError::Failed(status)
        }
    }

    /// Looks for the end of the connection, which memory does not tell; `since` is when a wait that
    /// may not last for ever has begun.
    pub(super) fn check(&mut self, since: Option<Instant>) -> Result<(), PatternError> {
        use EventKind::{ConnectError, DeviceRemoval, Disconnected, Unreachable};
        while let Some(event) = self.connection.id().channel().try_event() {
            let ends = [Disconnected, Unreachable, ConnectError, DeviceRemoval];
            self.is_over |= ends.contains(&event.kind);
        }
        if self.is_over {
            return Err(PatternError::Disconnected);
        }
        match since {
            Some(since) if self.now() >= since.plus_nanos(PATIENCE_NS) => Err(PatternError::Silent),
            _ => Ok(()),
        }
    }
}

fn receive(memory: &Mr, longest: usize, i: usize) -> feroce::RecvWr {
    let (slot, base) = (slot(longest), (2 + i) * slot(longest));
    memory.recv(i as u64, base..base + slot)
}
