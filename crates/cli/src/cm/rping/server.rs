//! The server: it reads the client's memory and writes the echo.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::ensure;
use feroce::cm::{CmId, EventKind, Manager};
use feroce::{Access, Data, InlineBytes, Mr, SendOp, SendWr, WcOpcode};
use serde_json::json;

use super::super::end::{End, Ended, expect, is_disconnected, next_event};
use super::super::{Report, Say};
use super::client::shown;
use super::{Advert, Args, MAX_SIZE, Tally, cap, check_len};
use crate::explain::explain;

/// Serves the first client.
pub(super) fn serve_one(args: &Args, listener: &CmId, say: Say) -> Report {
    let mut tally = Tally::default();
    let result = expect(&listener.channel(), EventKind::ConnectRequest)
        .and_then(|request| serve(args, request.id, say, &mut tally));
    Report { record: tally.record("server"), result }
}

/// Serves all clients, each in a thread, until the user interrupts the program.
pub(super) fn serve_all(args: &Args, manager: &Manager, listener: &CmId, say: Say) -> Report {
    let tallies = Mutex::new(Vec::new());
    let events = listener.channel();
    let serve_in_thread = |id: CmId| {
        let mut tally = Tally::default();
        match serve(args, id, say, &mut tally) {
            Err(e) if e.downcast_ref() != Some(&Ended::Interrupted) => {
                say.note(&format!("feroce: a client failed: {}", explain(&e)));
            }
            _ => {}
        }
        tallies.lock().unwrap_or_else(PoisonError::into_inner).push(tally);
    };
    let result = std::thread::scope(|scope| {
        loop {
            let event = next_event(&events)?;
            if event.kind == EventKind::ConnectRequest {
                // The id gets an event channel of its own, so that only its thread receives its
                // events.
                event.id.migrate(&manager.event_channel()?)?;
                scope.spawn(|| serve_in_thread(event.id));
            }
        }
    });
    let tallies = tallies.into_inner().unwrap_or_else(PoisonError::into_inner);
    let total = tallies.iter().fold(Tally::default(), Tally::plus);
    say.line(&format!("{} clients, {}", tallies.len(), total.describe()));
    let mut record = total.record("server");
    record["clients"] = json!(tallies.len());
    Report { record, result }
}

/// Serves one client until it disconnects.
fn serve(args: &Args, id: CmId, say: Say, tally: &mut Tally) -> anyhow::Result<()> {
    let mut server = Server::new(End::new(id, cap(), args.own_qp)?)?;
    server.end.accept()?;
    let started = Instant::now();
    let result = server.answer(args, say, tally);
    tally.time = started.elapsed();
    if is_disconnected(&result) {
        say.note("server DISCONNECT EVENT...");
        return server.end.finish(Ok(()));
    }
    server.end.finish(result)
}

struct Server {
    end: End,
    /// The text that the server reads and writes back.
    text: Mr,
    /// Receive buffer for the client's adverts.
    advert: Mr,
}

impl Server {
    fn new(mut end: End) -> anyhow::Result<Self> {
        let text = end.pd.alloc_mr(MAX_SIZE as usize, Access::LOCAL_WRITE)?;
        let advert = end.pd.alloc_mr(Advert::LEN, Access::LOCAL_WRITE)?;
        end.qp.post_recv([advert.recv(0, 0..Advert::LEN)])?;
        Ok(Self { end, text, advert })
    }

    /// Answers pings until an error, which may be the regular end of the connection.
    fn answer(&mut self, args: &Args, say: Say, tally: &mut Tally) -> anyhow::Result<()> {
        let mut bytes = vec![0; MAX_SIZE as usize];
        loop {
            let source = self.advert()?;
            let bytes = &mut bytes[..source.len as usize];
            self.perform(SendOp::Read(source.remote), WcOpcode::Read, bytes.len())?;
            self.text.read_at(0, bytes)?;
            if args.verbose {
                say.line(&format!("server ping data: {}", shown(bytes)));
            }
            self.go_ahead()?;
            let sink = self.advert()?;
            let until_zero = bytes.iter().position(|byte| *byte == 0);
            let len = until_zero.map_or(bytes.len(), |at| at + 1).min(sink.len as usize);
            self.perform(SendOp::Write(sink.remote), WcOpcode::Write, len)?;
            self.go_ahead()?;
            tally.add(source.len);
        }
    }

    /// Waits for an advert of the client.
    fn advert(&mut self) -> anyhow::Result<Advert> {
        let byte_len = self.wait_for(WcOpcode::Recv)?;
        check_len(byte_len)?;
        let mut bytes = [0; Advert::LEN];
        self.advert.read_at(0, &mut bytes)?;
        self.end.qp.post_recv([self.advert.recv(0, 0..Advert::LEN)])?;
        let advert = Advert::parse(bytes);
        let len = advert.len;
        ensure!(len <= MAX_SIZE, "the client offers {len} bytes: more than {MAX_SIZE} is too long");
        Ok(advert)
    }

    fn perform(&mut self, op: SendOp, opcode: WcOpcode, len: usize) -> anyhow::Result<()> {
        self.end.qp.post_send([SendWr::new(1, op, self.text.data(0..len))])?;
        self.wait_for(opcode).map(drop)
    }

    /// Tells the client to continue; the contents of the message do not matter.
    fn go_ahead(&mut self) -> anyhow::Result<()> {
        let word = Data::Inline(InlineBytes::new(&[0; Advert::LEN]));
        Ok(self.end.qp.post_send([SendWr::new(2, SendOp::Send, word)])?)
    }

    /// Waits for a completion of one kind, skipping those of sends; returns its length.
    fn wait_for(&mut self, opcode: WcOpcode) -> anyhow::Result<u32> {
        loop {
            let cqe = self.end.completion()?;
            if cqe.opcode == opcode {
                return Ok(cqe.byte_len);
            }
        }
    }
}
