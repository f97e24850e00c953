//! The two ends of calls, over any pattern.

use std::net::SocketAddr;

use feroce::cm::{Manager, Request};

use super::channel::Channel;
use super::error::PatternError;
use super::pattern::Pattern;
use super::{hybrid, inline, read_fetch, send, write_imm, write_poll, write_send};

/// Looks at memory or a queue between looks at what costs more: the clock, and events.
const LOOKS: u32 = 256;

/// Calls a server, one call at a time.
#[derive(Debug)]
pub struct Caller {
    channel: Channel,
    reply: Vec<u8>,
}

impl Caller {
    /// Connects to an [`Answerer`], for requests and replies of at most `longest` bytes.
    pub fn connect(
        manager: &Manager,
        to: SocketAddr,
        pattern: Pattern,
        longest: usize,
    ) -> Result<Self, PatternError> {
        let channel = Channel::connect(manager, to, pattern, longest)?;
        Ok(Self { channel, reply: Vec::new() })
    }

    /// Sends a request, and polls until the reply is there.
    pub fn call(&mut self, request: &[u8]) -> Result<&[u8], PatternError> {
        let channel = &mut self.channel;
        match channel.pattern() {
            Pattern::ReadFetch => read_fetch::send_request(channel, request)?,
            pattern => send_by(pattern, channel, request)?,
        }
        let since = channel.now();
        let mut looks = 0_u32;
        while !try_reply(channel, &mut self.reply)? {
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) {
                channel.check(Some(since))?;
            }
        }
        Ok(&self.reply)
    }
}

/// Answers the calls of one client.
#[derive(Debug)]
pub struct Answerer {
    channel: Channel,
}

impl Answerer {
    /// Accepts a [`Caller`]; it says by which pattern, and how long messages may be.
    pub fn accept(request: Request) -> Result<Self, PatternError> {
        Ok(Self { channel: Channel::accept(request)? })
    }

    /// The pattern that the caller has chosen.
    pub fn pattern(&self) -> Pattern {
        self.channel.pattern()
    }

    /// Answers calls until the client is gone, or `stop` says so: `handler` appends the reply to an
    /// empty vector. Returns how many calls there were.
    pub fn serve(
        &mut self,
        mut handler: impl FnMut(&[u8], &mut Vec<u8>),
        stop: impl Fn() -> bool,
    ) -> Result<u64, PatternError> {
        let (mut request, mut reply) = (Vec::new(), Vec::new());
        let mut calls = 0;
        let mut looks = 0_u32;
        loop {
            match self.turn(&mut handler, &mut request, &mut reply) {
                Ok(true) => calls += 1,
                Ok(false) => {
                    looks = looks.wrapping_add(1);
                    if looks.is_multiple_of(LOOKS) {
                        match self.channel.check(None) {
                            Err(PatternError::Disconnected) => return Ok(calls),
                            checked => checked?,
                        }
                        if stop() {
                            return Ok(calls);
                        }
                    }
                }
                Err(PatternError::Disconnected) => return Ok(calls),
                Err(e) => return Err(e),
            }
        }
    }

    /// Answers a call, if there is one.
    fn turn(
        &mut self,
        handler: &mut impl FnMut(&[u8], &mut Vec<u8>),
        request: &mut Vec<u8>,
        reply: &mut Vec<u8>,
    ) -> Result<bool, PatternError> {
        let channel = &mut self.channel;
        let pattern = channel.pattern();
        let has_come = match pattern {
            Pattern::ReadFetch => read_fetch::try_recv_request(channel, request)?,
            _ => try_recv_by(pattern, channel, request)?,
        };
        if has_come {
            reply.clear();
            handler(request, reply);
            match pattern {
                Pattern::ReadFetch => read_fetch::publish(channel, reply)?,
                _ => send_by(pattern, channel, reply)?,
            }
        }
        Ok(has_come)
    }
}

fn try_reply(channel: &mut Channel, into: &mut Vec<u8>) -> Result<bool, PatternError> {
    match channel.pattern() {
        Pattern::ReadFetch => read_fetch::try_fetch(channel, into),
        pattern => try_recv_by(pattern, channel, into),
    }
}

/// Sends by a pattern whose two directions are alike.
fn send_by(pattern: Pattern, channel: &mut Channel, message: &[u8]) -> Result<(), PatternError> {
    match pattern {
        Pattern::Send => send::send(channel, message),
        Pattern::Inline => inline::send(channel, message),
        Pattern::WritePoll | Pattern::ReadFetch => write_poll::send(channel, message),
        Pattern::WriteImm => write_imm::send(channel, message),
        Pattern::WriteSend => write_send::send(channel, message),
        Pattern::Hybrid => hybrid::send(channel, message),
    }
}

fn try_recv_by(
    pattern: Pattern,
    channel: &mut Channel,
    into: &mut Vec<u8>,
) -> Result<bool, PatternError> {
    match pattern {
        Pattern::Send => send::try_recv(channel, into),
        Pattern::Inline => inline::try_recv(channel, into),
        Pattern::WritePoll | Pattern::ReadFetch => write_poll::try_recv(channel, into),
        Pattern::WriteImm => write_imm::try_recv(channel, into),
        Pattern::WriteSend => write_send::try_recv(channel, into),
        Pattern::Hybrid => hybrid::try_recv(channel, into),
    }
}
