//! The client: it offers memory to the server.

use std::time::Instant;

use anyhow::ensure;
use feroce::cm::{ConnParam, Manager, PortSpace};
use feroce::{Access, Data, InlineBytes, Mr, SendOp, SendWr, WcOpcode};

use super::super::Say;
use super::super::end::{End, resolve};
use super::super::place::Target;
use super::{Advert, Args, Tally, cap, check_len};

/// The letters of a ping: from `A` to `z`, repeated.
const LETTERS: std::ops::RangeInclusive<u8> = b'A'..=b'z';

/// Connects, pings and disconnects.
pub(super) fn call(
    args: &Args,
    manager: &Manager,
    target: Target,
    say: Say,
    tally: &mut Tally,
) -> anyhow::Result<()> {
    let id = manager.create_id(PortSpace::Tcp)?;
    resolve(&id, target)?;
    let mut client = Client::new(args, End::new(id, cap(), args.own_qp)?)?;
    let param = ConnParam { responder_resources: 1, initiator_depth: 1, ..ConnParam::default() };
    client.end.connect_within(param, args.patience.limit())?;
    let started = Instant::now();
    let result = client.ping(args, say, tally);
    tally.time = started.elapsed();
    let result = client.end.finish(result);
    say.note("client DISCONNECT EVENT...");
    result
}

struct Client {
    end: End,
    /// The text that the server reads.
    text: Mr,
    /// The buffer into which the server writes the echo.
    echo: Mr,
    /// Receive buffer for the server's SEND.
    word: Mr,
}

impl Client {
    fn new(args: &Args, mut end: End) -> anyhow::Result<Self> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let size = args.size as usize;
        let (text, echo) = (end.pd.alloc_mr(size, access)?, end.pd.alloc_mr(size, access)?);
        let word = end.pd.alloc_mr(Advert::LEN, Access::LOCAL_WRITE)?;
        end.qp.post_recv([word.recv(0, 0..Advert::LEN)])?;
        Ok(Self { end, text, echo, word })
    }

    fn ping(&mut self, args: &Args, say: Say, tally: &mut Tally) -> anyhow::Result<()> {
        let mut seen = vec![0; args.size as usize];
        for number in (0..).take_while(|number| args.count == 0 || *number < args.count) {
            let text = text_of(number, args.size as usize);
            self.text.write_at(0, &text)?;
            self.offer(Advert::of(&self.text, args.size))?;
            self.offer(Advert::of(&self.echo, args.size))?;
            tally.add(args.size);
            if args.validate || args.verbose {
                self.echo.read_at(0, &mut seen)?;
            }
            ensure!(!args.validate || seen == text, "ping {number} came back changed");
            if args.verbose {
                say.line(&format!("ping data: {}", shown(&seen)));
            }
        }
        Ok(())
    }

    /// Advertises memory to the server and waits until the server has used it.
    fn offer(&mut self, advert: Advert) -> anyhow::Result<()> {
        let data = Data::Inline(InlineBytes::new(&advert.emit()));
        self.end.qp.post_send([SendWr::new(1, SendOp::Send, data)])?;
        loop {
            let cqe = self.end.completion()?;
            if cqe.opcode == WcOpcode::Recv {
                check_len(cqe.byte_len)?;
                self.end.qp.post_recv([self.word.recv(0, 0..Advert::LEN)])?;
                return Ok(());
            }
        }
    }
}

/// The text of a ping: its number, then letters; the first letter advances by one with every ping.
fn text_of(number: u32, size: usize) -> Vec<u8> {
    let mut text = format!("rdma-ping-{number}: ").into_bytes();
    let letters = LETTERS.cycle().skip(number as usize % LETTERS.len());
    text.extend(letters.take(size.saturating_sub(text.len())));
    text.truncate(size);
    text[size - 1] = 0;
    text
}

/// The text up to its terminating zero.
pub(super) fn shown(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_of_rping() {
        assert_eq!(shown(&text_of(0, 32)), "rdma-ping-0: ABCDEFGHIJKLMNOPQR");
        assert_eq!(shown(&text_of(2, 32)), "rdma-ping-2: CDEFGHIJKLMNOPQRST");
        assert_eq!(shown(&text_of(57, 32)), "rdma-ping-57: zABCDEFGHIJKLMNOP");
        assert_eq!(shown(&text_of(58, 32)), "rdma-ping-58: ABCDEFGHIJKLMNOPQ");
    }
}
