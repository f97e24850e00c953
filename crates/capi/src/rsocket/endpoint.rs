//! A queue pair with the memory of a stream, and the protocol between them.

use core::ffi::c_int;

use feroce::cm::CmId;
use feroce::{
    Access, CompChannel, Context, Cq, Cqe, Data, Imm, InlineBytes, Mr, Notify, Pd, QpCap, Receiver,
    RecvWr, Remote, Rkey, SendOp, SendWr, Sender, SgeList, WcFlags, WcStatus,
};

use super::protocol::{
    Buffer, Chunk, Grant, Hello, Iomap, Message, Order, Posted, Receiving, Sending, Violation,
};
use super::settings::Settings;
use crate::errno::Errno;

/// Places in which the peer names its buffers.
const PLACES: u32 = 2;

/// Room for control messages and mappings, whatever a program says of its own data.
const LEAST_INLINE: u32 = 64;

/// Whether and how it has come to an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// It has not.
    Open,
    /// As both sides wanted.
    Disconnected,
    /// With an error.
    Broken(c_int),
}

/// The peer, as it introduced itself.
#[derive(Debug)]
struct Peer {
    hello: Hello,
    /// The place in which it is told of the next buffer.
    place: u32,
}

/// One end of a stream.
#[derive(Debug)]
pub(crate) struct Endpoint {
    context: Context,
    cq: Cq,
    sender: Sender,
    receiver: Receiver,
    pub(super) pd: Pd,
    /// Where data leaves from.
    outgoing: Mr,
    /// Where the peer writes its data to.
    incoming: Mr,
    /// Where the peer names its buffers, and behind that its mappings.
    places: Mr,
    /// Most bytes of data that are posted with a request.
    inline: u32,
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    peer: Option<Peer>,
    /// The place in which the peer names its next buffer.
    place: u32,
    /// Mappings that the peer has told us of.
    pub(super) mapped: Vec<Iomap>,
    /// The peer may be written to.
    is_up: bool,
    pub(super) end: End,
    /// The peer may still send.
    pub(super) is_readable: bool,
    /// We may still send.
    pub(super) is_writable: bool,
    settings: Settings,
}

impl Endpoint {
    /// Makes the queue pair of an id that knows its device, and everything around it. Nothing is
    /// shared with other connections, so that their peers cannot reach this one's memory.
    pub(crate) fn new(id: &CmId, settings: &Settings) -> Result<Self, Errno> {
        let context = id.context().ok_or(Errno::INVALID)?.clone();
        let most = u16::try_from(context.attr().limits.max_qp_wr).unwrap_or(u16::MAX);
        let (send_depth, recv_depth) =
            (settings.send_depth.min(most), settings.recv_depth.min(most));
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(u32::from(send_depth) + u32::from(recv_depth))?;
        let cap = QpCap {
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline: settings.inline.max(LEAST_INLINE),
            ..QpCap::new(send_depth.into(), recv_depth.into())
        };
        let qp = pd.rc_qp(&cq, &cq, cap).signal_all().create()?;
        id.use_qp(&qp)?;
        let (_, sender, receiver) = qp.split();
        let receiver = receiver.ok_or(Errno::INVALID)?;
        let shared = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let named = PLACES as usize * Buffer::LEN + usize::from(settings.iomaps) * Iomap::LEN;
        let mut made = Self {
            outgoing: pd.alloc_mr(settings.send_bytes as usize, Access::LOCAL_WRITE)?,
            incoming: pd.alloc_mr(settings.recv_bytes as usize, shared)?,
            places: pd.alloc_mr(named, shared)?,
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
        made.post_receives(recv_depth.into());
        match made.end {
            End::Broken(errno) => Err(Errno(errno)),
            _ => Ok(made),
        }
    }

    /// What the peer is told first.
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

    /// The peer has introduced itself.
    pub(crate) fn meet(&mut self, hello: Hello) {
        self.sending.start(hello.credits, hello.first);
        self.peer = Some(Peer { hello, place: 1 });
    }

    /// Whether the peer has introduced itself.
    pub(crate) fn has_met(&self) -> bool {
        self.peer.is_some()
    }

    /// The peer is ready.
    pub(crate) fn open(&mut self) {
        self.is_up = true;
        self.give();
    }

    /// How many mappings the peer has place for.
    pub(crate) fn peer_iomaps(&self) -> u16 {
        self.peer.as_ref().map_or(0, |peer| peer.hello.iomaps)
    }

    /// Whether it has not come to an end.
    pub(crate) fn is_open(&self) -> bool {
        self.end == End::Open
    }

    /// Both sides are done.
    pub(crate) fn disconnected(&mut self) {
        if self.is_open() {
            self.end = End::Disconnected;
        }
        self.is_readable = false;
        self.is_writable = false;
    }

    /// It cannot go on.
    pub(crate) fn break_off(&mut self, errno: c_int) {
        if self.is_open() {
            self.end = End::Broken(errno);
        }
        self.is_readable = false;
        self.is_writable = false;
    }

    /// Whether a reader need not wait.
    pub(crate) fn is_ready_to_read(&self) -> bool {
        self.receiving.has_data() || !self.is_readable
    }

    /// Where it is told that something has completed.
    pub(crate) fn channel(&self) -> &CompChannel {
        self.cq.channel()
    }

    /// Asks to be told of the next completion.
    pub(crate) fn arm(&self) {
        while self.cq.channel().try_event().is_some() {}
        self.cq.notify(Notify::Next);
    }

    /// Takes what has completed. True if there was something.
    pub(crate) fn progress(&mut self) -> bool {
        if self.context.is_cut_off() {
            // A child of the process that has the connection.
            self.break_off(libc::ENOTCONN);
            return false;
        }
        if self.peer.is_none() {
            // It may be faster with its first message than the word that it has accepted.
            return false;
        }
        let mut received = 0;
        let mut next = self.cq.poll_one();
        let any = next.is_some();
        while let Some(cqe) = next {
            match Posted::parse(cqe.wr_id) {
                Posted::Receive => {
                    if cqe.status == WcStatus::Success {
                        received += 1;
                        self.on_message(&cqe);
                    }
                }
                posted => self.on_sent(posted, cqe.status),
            }
            next = self.cq.take_one();
        }
        if self.is_open() {
            self.post_receives(received);
            self.give();
        }
        any
    }

    fn post_receives(&mut self, count: usize) {
        let wr = RecvWr { wr_id: Posted::Receive.emit(), sges: SgeList::EMPTY };
        if count > 0 && self.receiver.post(std::iter::repeat_n(wr, count)).is_err() {
            self.break_off(libc::ECONNRESET);
        }
    }

    fn on_message(&mut self, cqe: &Cqe) {
        let is_told = cqe.flags.contains(WcFlags::WITH_IMM);
        let message = if is_told { Message::parse(cqe.imm.0) } else { Message::Other };
        let fine = match message {
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
        if fine.is_err() {
            self.break_off(libc::EPROTO);
        }
    }

    /// Credits may come with a buffer: then it is in the place whose turn it is. The place is
    /// emptied, so that the same buffer is not found again.
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
        if self.sender.post([SendWr::new(posted.emit(), op, data)]).is_err() {
            self.sending.on_done(posted);
            self.break_off(libc::ECONNRESET);
        }
    }

    /// Gives the peer what it is due: credits, and memory that is free again.
    pub(crate) fn give(&mut self) {
        while self.is_up && self.is_open() && self.sending.has_control() {
            let Some(Grant { message, half }) = self.receiving.grant() else { return };
            let Some(peer) = &mut self.peer else { return };
            let mut to = Remote::default();
            let mut data = Data::EMPTY;
            if let Some((offset, len)) = half {
                let free = self.incoming.remote(offset as usize);
                let buffer = Buffer { addr: free.addr, key: free.rkey.0, len };
                data = Data::Inline(InlineBytes::new(&buffer.emit(peer.hello.order)));
                let place = u64::from(peer.place) * Buffer::LEN as u64;
                to.addr = peer.hello.places.addr.wrapping_add(place);
                to.rkey = Rkey(peer.hello.places.key);
                peer.place = (peer.place + 1) % peer.hello.places.len;
            }
            self.sending.begin_control();
            self.post(Posted::Control, SendOp::WriteImm(to, Imm(message.emit())), data);
        }
    }

    /// Tells the peer that this end sends no more, or does nothing any more. False if it cannot
    /// be told now.
    pub(crate) fn say_goodbye(&mut self, message: Message) -> bool {
        if !self.sending.has_control() {
            return false;
        }
        let posted =
            if message == Message::Disconnect { Posted::Disconnect } else { Posted::Control };
        self.sending.begin_control();
        let op = SendOp::WriteImm(Remote::default(), Imm(message.emit()));
        self.post(posted, op, Data::EMPTY);
        true
    }

    /// Writes nothing to nowhere: the peer does not notice, but must acknowledge it. So whoever
    /// lost its peer learns of it.
    pub(crate) fn probe(&mut self) {
        if self.is_up && self.is_open() && self.sending.is_done() {
            self.sending.begin_control();
            self.post(Posted::Control, SendOp::Write(Remote::default()), Data::EMPTY);
        }
    }

    /// Sends a part of what `source` has, at most `most` bytes of it; says how many.
    pub(crate) fn send(&mut self, source: &mut Source<'_>, most: usize) -> usize {
        let Some(chunk) = self.sending.begin(most.min(source.left()), self.inline) else {
            return 0;
        };
        let to = Remote { addr: chunk.addr, rkey: Rkey(chunk.key) };
        let op = SendOp::WriteImm(to, Imm(Message::Data(chunk.len).emit()));
        self.post_chunk(&chunk, op, source);
        chunk.len as usize
    }

    /// The same, into mapped memory of the peer.
    pub(crate) fn send_direct(
        &mut self,
        to: Buffer,
        source: &mut Source<'_>,
        most: usize,
    ) -> usize {
        let most = most.min(source.left());
        let Some(chunk) = self.sending.begin_direct(to, most, self.inline) else { return 0 };
        let op = SendOp::Write(Remote { addr: chunk.addr, rkey: Rkey(chunk.key) });
        self.post_chunk(&chunk, op, source);
        chunk.len as usize
    }

    fn post_chunk(&mut self, chunk: &Chunk, op: SendOp, source: &mut Source<'_>) {
        let data = match &chunk.places {
            None => {
                let mut bytes = Vec::with_capacity(chunk.len as usize);
                source.take(chunk.len as usize, |_, piece| bytes.extend_from_slice(piece));
                Data::Inline(InlineBytes::new(&bytes))
            }
            Some([first, rest]) => {
                for range in [first, rest] {
                    source.take(range.len(), |at, piece| {
                        // The protocol gives out places inside the ring only.
                        let written = self.outgoing.write_at(range.start + at, piece);
                        debug_assert!(written.is_ok(), "{written:?}");
                    });
                }
                let sges = [self.outgoing.sge(first.clone()), self.outgoing.sge(rest.clone())];
                let used = if rest.is_empty() { &sges[..1] } else { &sges[..] };
                Data::Sges(SgeList::new(used))
            }
        };
        self.post(Posted::Data(chunk.len), op, data);
    }

    /// Tells the peer of a mapping. False if it cannot be told now.
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
        self.post(Posted::Iomap, SendOp::WriteImm(to, Imm(Message::Iomap(index).emit())), data);
        true
    }

    /// Copies out what has arrived; says how many bytes. With `stays`, it can be read again.
    pub(crate) fn receive(&mut self, into: &mut [&mut [u8]], stays: bool) -> usize {
        let mut taken = 0;
        for part in into {
            let mut filled = 0;
            while filled < part.len() {
                let skip = if stays { taken } else { 0 };
                let place = self.receiving.peek(skip, part.len() - filled);
                if place.is_empty() {
                    break;
                }
                let len = place.len();
                // What the protocol says has arrived is inside the ring.
                let read = self.incoming.read_at(place.start, &mut part[filled..filled + len]);
                debug_assert!(read.is_ok(), "{read:?}");
                filled += len;
                taken += len as u32;
                if !stays {
                    self.receiving.consume(len as u32);
                }
            }
        }
        self.give();
        taken as usize
    }
}

/// Bytes of a program, in one piece or several.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    parts: &'a [&'a [u8]],
    /// Bytes of the first part that are gone.
    at: usize,
}

impl<'a> Source<'a> {
    pub(crate) fn new(parts: &'a [&'a [u8]]) -> Self {
        Self { parts, at: 0 }
    }

    /// How many are left.
    pub(crate) fn left(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum::<usize>() - self.at
    }

    /// Gives `len` bytes to `to`, piece by piece, with the number of bytes before each.
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
