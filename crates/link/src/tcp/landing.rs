//! Bytes that go straight to memory of the caller.

use std::io;

use super::{StreamId, TcpEvent, TcpLink};

impl TcpLink {
    /// Before the stream is read, [`TcpEvent::Where`] asks for memory that its next bytes go to,
    /// until no memory is given or bytes arrive that go elsewhere.
    pub fn ask_where(&mut self, stream: StreamId) {
        if let Some(open) = self.streams.get_mut(&stream.0) {
            open.asks_where = true;
        }
    }

    /// Reads a stream; bytes that the caller has a place for go there, which counts as an event.
    /// Returns how many others are in the buffer; none: the stream has ended.
    pub(super) fn land(
        &mut self,
        id: u64,
        count: &mut usize,
        sink: &mut dyn FnMut(TcpEvent<'_>),
    ) -> io::Result<Option<usize>> {
        let Some(open) = self.streams.get_mut(&id) else { return Ok(None) };
        let stream = StreamId(id);
        sink(TcpEvent::Where { stream, scatter: &mut self.scatter });
        let (is_lent, room) = (!self.scatter.is_empty(), self.scatter.len() + self.scatter.behind);
        let got = open.receive(&mut self.scatter, &mut self.buffer);
        let all = got.as_ref().map_or(0, |len| len.unwrap_or(0));
        let landed = all.min(self.scatter.len());
        open.asks_where = is_lent && all == landed;
        if is_lent {
            // The rights to memory end here: a deregistration does not wait for the next bytes.
            self.scatter.clear();
            sink(TcpEvent::Landed { stream, len: landed });
        }
        if landed == 0 {
            return got;
        }
        *count += 1;
        self.talking = Some(id);
        self.has_more |= all == room;
        self.counters.landed += landed as u64;
        // If there are no others, that is not the end of the stream.
        Ok(Some(all - landed).filter(|others| *others > 0))
    }
}
