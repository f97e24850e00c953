//! One end of a stream: a queue pair, its memory, and the protocol that connects them.

use core::ffi::c_int;

use feroce::cm::CmId;
use feroce::{
    Access, CompChannel, Context, Cq, Cqe, Data, Errno, Imm, InlineBytes, Mr, Notify, Pd, QpCap,
    Receiver, RecvWr, Remote, Rkey, SendFlags, SendOp, SendWr, Sender, SgeList, TransportKind,
    WcFlags, WcStatus,
};

use crate::protocol::{
    Buffer, Chunk, Grant, Hello, Iomap, Message, Order, Posted, Receiving, Sending, Violation,
};
use crate::settings::Settings;

/// Slots in which the peer announces its free buffers.
const PLACES: u32 = 2;

/// Inline bytes that control messages and mappings need, whatever the program sets for its data.
const LEAST_INLINE: u32 = 64;

/// Bytes of a message that is sent by itself, because immediate data does not exist.
const WORD: usize = 4;

/// Whether and how a stream has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// It has not ended.
    Open,
    /// Both ends have shut it down.
    Disconnected,
    /// With this error.
    Broken(c_int),
}

/// The peer, as its hello describes it.
#[derive(Debug)]
struct PeerHello {
    hello: Hello,
    /// The slot in which the next free buffer is announced to it.
    place: u32,
}

/// One end of a stream.
#[derive(Debug)]
pub(crate) struct Endpoint {
    context: Context,
    cq: Cq,
    sender: Sender,
    receiver: Receiver,
    pub(crate) pd: Pd,
    /// The ring that data is sent from.
    outgoing: Mr,
    /// The ring that the peer writes data to.
    incoming: Mr,
    /// Where the peer announces its buffers, and behind that its mappings.
    places: Mr,
    /// Where messages arrive that are sent by themselves: over iWARP.
    words: Option<Mr>,
    /// Most bytes of data that are posted inline.
    inline: u32,
    pub(crate) sending: Sending,
    pub(crate) receiving: Receiving,
    peer: Option<PeerHello>,
    /// The slot in which the peer announces its next buffer.
    place: u32,
    /// Mappings that the peer has announced.
    pub(crate) mapped: Vec<Iomap>,
    /// The connection is established, so requests may be posted.
    is_up: bool,
    pub(crate) end: End,
    /// The peer may still send.
    pub(crate) is_readable: bool,
    /// We may still send.
    pub(crate) is_writable: bool,
    settings: Settings,
}

impl Endpoint {
    /// Makes the queue pair of an id that has a device, and its memory. Each endpoint has a
    /// protection domain of its own, so that peers of other connections cannot access its memory.
    pub(crate) fn new(id: &CmId, settings: &Settings) -> Result<Self, Errno> {
        let context = id.context().ok_or(Errno::INVALID)?.clone();
        let most = u16::try_from(context.attr().limits.max_qp_wr).unwrap_or(u16::MAX);
        let (send_depth, recv_depth) =
            (settings.send_depth.min(most), settings.recv_depth.min(most));
        let pd = context.alloc_pd()?;
        // Over iWARP a SEND behind each WRITE takes the place of immediate data.
        let has_words = context.attr().transport == TransportKind::Iwarp;
        let requests = u32::from(send_depth) * if has_words { 2 } else { 1 };
        let cq = context.create_cq(requests + u32::from(recv_depth))?;
        let cap = QpCap {
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline: settings.inline.max(LEAST_INLINE),
            ..QpCap::new(requests, recv_depth.into())
        };
        let qp = pd.rc_qp(&cq, &cq, cap).create()?;
        id.use_qp(&qp)?;
        let (_, sender, receiver) = qp.split();
        let receiver = receiver.ok_or(Errno::INVALID)?;
        let shared = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let named = PLACES as usize * Buffer::LEN + usize::from(settings.iomaps) * Iomap::LEN;
        let mut made = Self {
            outgoing: pd.alloc_mr(settings.send_bytes as usize, Access::LOCAL_WRITE)?,
            incoming: pd.alloc_mr(settings.recv_bytes as usize, shared)?,
            places: pd.alloc_mr(named, shared)?,
            words: match has_words {
                true => Some(pd.alloc_mr(usize::from(recv_depth) * WORD, Access::LOCAL_WRITE)?),
                false => None,
            },
            inline: settings.inline,
            sending: Sending::new(settings.send_bytes, send_depth),
            receiving: Receiving::new(settings.recv_bytes, recv_depth),
            peer: None,
            place: 1,
            mapped: vec![Iomap::default(); settings.iomaps.into()],
            is_up: false,
            end: End::Open,
            is_readable: true,
            is_writable: true,
            settings: Settings { send_depth, recv_depth, ..settings.clone() },
            context,
            cq,
            sender,
            receiver,
            pd,
        };
        made.post_receives(&(0..recv_depth).collect::<Vec<_>>());
        match made.end {
            End::Broken(errno) => Err(Errno(errno)),
            _ => Ok(made),
        }
    }

    /// The private data that this end sends with its connection request or reply.
    pub(crate) fn hello(&self) -> Hello {
        let (places, first) = (self.places.remote(0), self.incoming.remote(0));
        Hello {
            order: Order::NATIVE,
            credits: self.settings.recv_depth,
            iomaps: self.settings.iomaps,
            places: Buffer { addr: places.addr, key: places.rkey.0, len: PLACES },
            first: Buffer {
                addr: first.addr,
                key: first.rkey.0,
                len: self.settings.recv_bytes / 2,
            },
        }
    }

    /// Handles the hello of the peer.
    pub(crate) fn on_hello(&mut self, hello: Hello) {
        self.sending.start(hello.credits, hello.first);
        self.peer = Some(PeerHello { hello, place: 1 });
    }

    /// Whether the hello of the peer has arrived.
    pub(crate) fn has_hello(&self) -> bool {
        self.peer.is_some()
    }

    /// Handles the established connection.
    pub(crate) fn open(&mut self) {
        self.is_up = true;
        self.send_grants();
    }

    /// How many mappings the peer has slots for.
    pub(crate) fn peer_iomaps(&self) -> u16 {
        self.peer.as_ref().map_or(0, |peer| peer.hello.iomaps)
    }

    /// Whether the stream has not ended.
    pub(crate) fn is_open(&self) -> bool {
        self.end == End::Open
    }

    /// Ends the stream in order.
    pub(crate) fn disconnected(&mut self) {
        if self.is_open() {
            self.end = End::Disconnected;
        }
        self.is_readable = false;
        self.is_writable = false;
    }

    /// Ends the stream with an error.
    pub(crate) fn break_off(&mut self, errno: c_int) {
        if self.is_open() {
            self.end = End::Broken(errno);
        }
        self.is_readable = false;
        self.is_writable = false;
    }

    /// Whether a receive call returns without waiting.
    pub(crate) fn is_ready_to_read(&self) -> bool {
        self.receiving.has_data() || !self.is_readable
    }

    /// The channel that reports completions.
    pub(crate) fn channel(&self) -> &CompChannel {
        self.cq.channel()
    }

    /// Requests an event on the channel for the next completion.
    pub(crate) fn arm(&self) {
        while self.cq.channel().try_event().is_some() {}
        self.cq.notify(Notify::Next);
    }

    /// Takes completions; returns whether there were any.
    pub(crate) fn progress(&mut self) -> bool {
        if self.context.is_cut_off() {
            // This is a forked child; the connection belongs to its parent.
            self.break_off(libc::ENOTCONN);
            return false;
        }
        if self.peer.is_none() {
            // The first message of the peer may arrive before its connection reply. It peeks in
            // the completion queue until the hello has arrived.
            return false;
        }
        let mut received = Vec::new();
        let mut next = self.cq.poll_one();
        let any = next.is_some();
        while let Some(cqe) = next {
            match Posted::parse(cqe.wr_id) {
                Posted::Receive => {
                    if cqe.status == WcStatus::Success {
                        received.push(cqe.wr_id as u16);
                        self.on_message(&cqe);
                    }
                }
                posted => self.on_sent(posted, cqe.status),
            }
            next = self.cq.take_one();
        }
        if self.is_open() {
            self.post_receives(&received);
            self.send_grants();
        }
        any
    }

    /// Posts receives, each with the slot of its message.
    fn post_receives(&mut self, slots: &[u16]) {
        if slots.is_empty() {
            return;
        }
        let words = self.words.as_ref();
        let receives = slots.iter().map(|slot| {
            let at = usize::from(*slot) * WORD;
            let sges = words.map(|words| SgeList::from(words.sge(at..at + WORD)));
            let wr_id = Posted::Receive.emit() | u64::from(*slot);
            RecvWr { wr_id, sges: sges.unwrap_or(SgeList::EMPTY) }
        });
        if self.receiver.post(receives).is_err() {
            self.break_off(libc::ECONNRESET);
        }
    }

    fn on_message(&mut self, cqe: &Cqe) {
        let word = match &self.words {
            _ if cqe.flags.contains(WcFlags::WITH_IMM) => Some(cqe.imm.0),
            Some(words) if cqe.byte_len as usize == WORD => {
                let mut word = [0; WORD];
                let read = words.read_at(cqe.wr_id as u16 as usize * WORD, &mut word);
                read.is_ok().then(|| u32::from_ne_bytes(word))
            }
            _ => None,
        };
        let message = word.map_or(Message::Other, Message::parse);
        let handled = match message {
            Message::Data(len) => self.receiving.on_data(len),
            Message::Credits(upto) => self.on_credits(upto),
            Message::Iomap(index) => self.on_iomap(index),
            Message::Disconnect => {
                self.disconnected();
                Ok(())
            }
            Message::Shutdown => {
                self.is_readable = false;
                if !self.is_writable {
                    self.disconnected();
                }
                Ok(())
            }
            Message::Other => Ok(()),
        };
        if handled.is_err() {
            self.break_off(libc::EPROTO);
        }
    }

    /// Credits may come with a buffer, which the peer has written into the next slot. The slot is
    /// zeroed, so that the same buffer is not found again.
    fn on_credits(&mut self, upto: u16) -> Result<(), Violation> {
        self.sending.on_credits(upto);
        let at = self.place as usize * Buffer::LEN;
        let mut bytes = [0; Buffer::LEN];
        self.places.read_at(at, &mut bytes).map_err(|_| Violation)?;
        let buffer = Buffer::parse(&bytes, Order::NATIVE);
        if buffer.len == 0 {
            return Ok(());
        }
        self.places.write_at(at, &[0; Buffer::LEN]).map_err(|_| Violation)?;
        self.place = (self.place + 1) % PLACES;
        self.sending.on_buffer(buffer)
    }

    fn on_iomap(&mut self, index: u16) -> Result<(), Violation> {
        self.receiving.on_other();
        let slot = self.mapped.get_mut(usize::from(index)).ok_or(Violation)?;
        let at = PLACES as usize * Buffer::LEN + usize::from(index) * Iomap::LEN;
        let mut bytes = [0; Iomap::LEN];
        self.places.read_at(at, &mut bytes).map_err(|_| Violation)?;
        *slot = Iomap::parse(&bytes, Order::NATIVE);
        Ok(())
    }

    fn on_sent(&mut self, posted: Posted, status: WcStatus) {
        self.sending.on_done(posted);
        match (posted, status) {
            (Posted::Disconnect, _) => self.disconnected(),
            (_, WcStatus::Success) => {}
            (_, WcStatus::RetryExceeded) => self.break_off(libc::ETIMEDOUT),
            (_, WcStatus::Flushed) => self.break_off(libc::ECONNRESET),
            _ => self.break_off(libc::EIO),
        }
    }

    fn post(&mut self, posted: Posted, op: SendOp, data: Data) {
        let result = self.sender.post([SendWr::new(posted.emit(), op, data)]);
        self.judge(posted, result.is_ok());
    }

    /// Posts a WRITE that tells the peer of itself by a message.
    fn post_telling(&mut self, posted: Posted, to: Remote, message: Message, data: Option<Data>) {
        if self.words.is_none() {
            let op = SendOp::WriteImm(to, Imm(message.emit()));
            return self.post(posted, op, data.unwrap_or(Data::EMPTY));
        }
        let write = data.map(|data| {
            let write = SendWr::new(Posted::Ahead.emit(), SendOp::Write(to), data);
            SendWr { flags: SendFlags::empty(), ..write }
        });
        let word = Data::Inline(InlineBytes::new(&message.emit().to_ne_bytes()));
        let send = SendWr::new(posted.emit(), SendOp::Send, word);
        let result = self.sender.post(write.into_iter().chain([send]));
        self.judge(posted, result.is_ok());
    }

    fn judge(&mut self, posted: Posted, is_posted: bool) {
        if !is_posted {
            self.sending.on_done(posted);
            self.break_off(libc::ECONNRESET);
        }
    }

    /// Sends the peer new credits, and announces memory that is free again.
    pub(crate) fn send_grants(&mut self) {
        while self.is_up && self.is_open() && self.sending.has_control() {
            let Some(Grant { message, half }) = self.receiving.grant() else { return };
            let Some(peer) = &mut self.peer else { return };
            let mut to = Remote::default();
            let mut data = None;
            if let Some((offset, len)) = half {
                let free = self.incoming.remote(offset as usize);
                let buffer = Buffer { addr: free.addr, key: free.rkey.0, len };
                data = Some(Data::Inline(InlineBytes::new(&buffer.emit(peer.hello.order))));
                let place = u64::from(peer.place) * Buffer::LEN as u64;
                to.addr = peer.hello.places.addr.wrapping_add(place);
                to.rkey = Rkey(peer.hello.places.key);
                peer.place = (peer.place + 1) % peer.hello.places.len;
            }
            self.sending.begin_control();
            self.post_telling(Posted::Control, to, message, data);
        }
    }

    /// Sends [`Message::Shutdown`] or [`Message::Disconnect`]; false if no control message can be
    /// sent now.
    pub(crate) fn send_end(&mut self, message: Message) -> bool {
        if !self.sending.has_control() {
            return false;
        }
        let posted =
            if message == Message::Disconnect { Posted::Disconnect } else { Posted::Control };
        self.sending.begin_control();
        self.post_telling(posted, Remote::default(), message, None);
        true
    }

    /// Posts an RDMA WRITE of no bytes: the peer's adapter acknowledges it and the peer's program
    /// does not notice. If the peer is dead, it fails, and the stream breaks.
    pub(crate) fn probe(&mut self) {
        if self.is_up && self.is_open() && self.sending.is_done() {
            self.sending.begin_control();
            self.post(Posted::Control, SendOp::Write(Remote::default()), Data::EMPTY);
        }
    }

    /// Sends the first part of `source`, at most `most` bytes; returns how many.
    pub(crate) fn send(&mut self, source: &mut Source<'_>, most: usize) -> usize {
        let Some(chunk) = self.sending.begin(most.min(source.left()), self.inline) else {
            return 0;
        };
        let to = Remote { addr: chunk.addr, rkey: Rkey(chunk.key) };
        let data = self.data_of(&chunk, source);
        self.post_telling(Posted::Data(chunk.len), to, Message::Data(chunk.len), Some(data));
        chunk.len as usize
    }

    /// As [`Endpoint::send`], into mapped memory of the peer.
    pub(crate) fn send_direct(
        &mut self,
        to: Buffer,
        source: &mut Source<'_>,
        most: usize,
    ) -> usize {
        let most = most.min(source.left());
        let Some(chunk) = self.sending.begin_direct(to, most, self.inline) else { return 0 };
        let op = SendOp::Write(Remote { addr: chunk.addr, rkey: Rkey(chunk.key) });
        let data = self.data_of(&chunk, source);
        self.post(Posted::Data(chunk.len), op, data);
        chunk.len as usize
    }

    /// Takes the bytes of a chunk from their source.
    fn data_of(&self, chunk: &Chunk, source: &mut Source<'_>) -> Data {
        match &chunk.places {
            None => {
                let mut bytes = Vec::with_capacity(chunk.len as usize);
                source.take(chunk.len as usize, |_, piece| bytes.extend_from_slice(piece));
                Data::Inline(InlineBytes::new(&bytes))
            }
            Some([first, rest]) => {
                for range in [first, rest] {
                    source.take(range.len(), |at, piece| {
                        // `Sending` returns ranges inside the ring only.
                        let written = self.outgoing.write_at(range.start + at, piece);
                        debug_assert!(written.is_ok(), "{written:?}");
                    });
                }
                let sges = [self.outgoing.sge(first.clone()), self.outgoing.sge(rest.clone())];
                let used = if rest.is_empty() { &sges[..1] } else { &sges[..] };
                Data::Sges(SgeList::new(used))
            }
        }
    }

    /// Announces a mapping to the peer; false if no message can be sent now.
    pub(crate) fn send_iomap(&mut self, index: u16, map: &Iomap) -> bool {
        let Some(peer) = &self.peer else { return false };
        if !self.sending.begin_iomap() {
            return false;
        }
        let places = peer.hello.places;
        let behind = u64::from(places.len) * Buffer::LEN as u64;
        let place = behind + u64::from(index) * Iomap::LEN as u64;
        let to = Remote { addr: places.addr.wrapping_add(place), rkey: Rkey(places.key) };
        let data = Data::Inline(InlineBytes::new(&map.emit(peer.hello.order)));
        self.post_telling(Posted::Iomap, to, Message::Iomap(index), Some(data));
        true
    }

    /// Copies arrived data to `into`; returns how many bytes. With `peeks`, it stays in the ring.
    pub(crate) fn receive(&mut self, into: &mut [&mut [u8]], peeks: bool) -> usize {
        let mut taken = 0;
        for part in into {
            let mut filled = 0;
            while filled < part.len() {
                let skip = if peeks { taken } else { 0 };
                let place = self.receiving.peek(skip, part.len() - filled);
                if place.is_empty() {
                    break;
                }
                let len = place.len();
                // `Receiving` returns ranges inside the ring only.
                let read = self.incoming.read_at(place.start, &mut part[filled..filled + len]);
                debug_assert!(read.is_ok(), "{read:?}");
                filled += len;
                taken += len as u32;
                if !peeks {
                    self.receiving.consume(len as u32);
                }
            }
        }
        self.send_grants();
        taken as usize
    }
}

/// Bytes that a program sends, in one part or several.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    parts: &'a [&'a [u8]],
    /// Bytes of the first part that have been taken.
    at: usize,
}

impl<'a> Source<'a> {
    pub(crate) fn new(parts: &'a [&'a [u8]]) -> Self {
        Self { parts, at: 0 }
    }

    /// How many bytes are left.
    pub(crate) fn left(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum::<usize>() - self.at
    }

    /// Calls `to` with `len` bytes, piece by piece, and with the number of bytes before each.
    fn take(&mut self, len: usize, mut to: impl FnMut(usize, &[u8])) {
        let mut taken = 0;
        while let (Some((first, others)), true) = (self.parts.split_first(), taken < len) {
            let rest = &first[self.at..];
            let piece = &rest[..rest.len().min(len - taken)];
            to(taken, piece);
            taken += piece.len();
            self.at += piece.len();
            if self.at == first.len() {
                self.parts = others;
                self.at = 0;
            }
        }
    }
}
