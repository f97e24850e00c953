//! The handshake: startup frames, and what two ends agree on by them (RFC 5044 7, RFC 6581).
//!
//! ```text
//!   initiator                         responder
//!   Initiator::new  -- request -->    Responder::handle
//!                                       -> Request: private data, what the peer can do
//!   Initiator::handle <-- reply --    Request::accept or Request::reject
//!     -> Reply, StreamSetup             -> StreamSetup
//! ```
//!
//! Time limits are the driver's: Linux waits 10 s for a reply and 5 s for a request.

use alloc::vec::Vec;
use core::fmt;

use feroce_wire::iwarp::fpdu::{CRC_LEN, LENGTH_LEN, MAX_ULPDU};
use feroce_wire::iwarp::mpa::{
    Enhanced, MAX_PRIVATE_DATA, MAX_READS, Role, Rtr, Startup, StartupError,
};
use feroce_wire::iwarp::terminate::Cause;

use super::setup::{Begin, ReadyToReceive, StreamSetup};

/// A ULPDU may have so many bytes even if TCP segments are shorter: it has room for every header.
const MIN_ULPDU: usize = 64;

/// What an end can do and wants.
///
/// ```
/// # use feroce_engine::iwarp::HandshakeConfig;
/// let trusting = HandshakeConfig { crc: false, ..HandshakeConfig::default() };
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HandshakeConfig {
    /// Ask for CRCs. They are used if one of the ends asks for them.
    pub crc: bool,
    /// Highest revision of MPA: 1, or 2 for the enhanced setup.
    pub revision: u8,
    /// READ requests of the peer that may be under way.
    pub ird: u16,
    /// READ requests to the peer that may be under way.
    pub ord: u16,
    /// Either end may send first. Otherwise the initiator has to.
    pub peer_to_peer: bool,
    /// Longest ULPDU to send.
    pub max_ulpdu: usize,
    /// FPDUs may be longer than a TCP segment (RFC 5044 4.1 recommends that they are not).
    pub long_fpdus: bool,
}

impl Default for HandshakeConfig {
    fn default() -> Self {
        let (revision, ird, ord, max_ulpdu) = (2, 128, 128, 1442);
        Self { crc: true, revision, ird, ord, peer_to_peer: true, max_ulpdu, long_fpdus: false }
    }
}

impl HandshakeConfig {
    /// The same for a connection whose TCP segments carry `mss` bytes.
    #[must_use]
    pub fn with_mss(self, mss: usize) -> Self {
        let overhead = LENGTH_LEN + CRC_LEN;
        let most = match self.long_fpdus {
            true => MAX_ULPDU,
            false => (mss & !3).saturating_sub(overhead).clamp(MIN_ULPDU, MAX_ULPDU),
        };
        Self { max_ulpdu: self.max_ulpdu.min(most), ..self }
    }

    /// Bytes of private data that a consumer can send with this configuration.
    pub const fn max_private_data(&self) -> usize {
        if self.revision >= 2 { MAX_PRIVATE_DATA - Enhanced::LEN } else { MAX_PRIVATE_DATA }
    }
}

/// Why two ends do not come together.
#[non_exhaustive]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandshakeError {
    /// The private data is longer than a frame can carry.
    PrivateDataTooLong {
        /// Bytes that would fit.
        most: usize,
    },
    /// What the peer sent is no startup frame.
    NotMpa(StartupError),
    /// A revision of MPA that this end does not speak.
    Revision(u8),
    /// The frame announces an enhanced setup and has none.
    NoSetup,
    /// The reply wants more READs under way than the request has offered.
    TooManyReads {
        /// What it wants.
        wanted: u16,
    },
    /// The ends have no ready-to-receive message in common.
    NoReadyToReceive,
}

impl HandshakeError {
    /// What a TERMINATE would say, if the initiator sends one before it closes the stream.
    pub const fn cause(&self) -> Cause {
        match self {
            Self::TooManyReads { .. } => Cause::MPA_READS,
            Self::NoReadyToReceive => Cause::MPA_RTR,
            Self::PrivateDataTooLong { .. }
            | Self::NotMpa(_)
            | Self::Revision(_)
            | Self::NoSetup => Cause::MPA_STARTUP,
        }
    }
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PrivateDataTooLong { most } => {
                write!(f, "the private data is too long: {most} bytes at most fit")
            }
            Self::NotMpa(error) => write!(f, "the peer does not speak iWARP: {error}"),
            Self::Revision(revision) => {
                write!(f, "the peer speaks revision {revision} of MPA, which is not known")
            }
            Self::NoSetup => f.write_str("the peer announces an enhanced setup and sends none"),
            Self::TooManyReads { wanted } => {
                write!(f, "the peer wants {wanted} READs under way, more than were offered")
            }
            Self::NoReadyToReceive => {
                f.write_str("the peer knows no ready-to-receive message that this end knows")
            }
        }
    }
}

impl core::error::Error for HandshakeError {}

/// The messages that this end can send and take as the first; the first that both know is used.
const READY: [(ReadyToReceive, Rtr); 3] = [
    (ReadyToReceive::Write, Rtr::WRITE),
    (ReadyToReceive::Read, Rtr::READ),
    (ReadyToReceive::Send, Rtr::SEND),
];

/// What an initiator offers: not a SEND, which other implementations count as a receive.
const OFFERED: Rtr = Rtr::WRITE.union(Rtr::READ);

fn choose(common: Rtr) -> Option<(ReadyToReceive, Rtr)> {
    READY.into_iter().find(|(_, kind)| common.contains(*kind))
}

fn frame(
    startup: Startup,
    enhanced: Option<Enhanced>,
    private_data: &[u8],
) -> Result<Vec<u8>, HandshakeError> {
    let mut setup = [0; Enhanced::LEN];
    let setup: &[u8] = match enhanced {
        Some(enhanced) => {
            enhanced.emit(&mut setup);
            &setup
        }
        None => &[],
    };
    let startup = Startup { enhanced: enhanced.is_some(), ..startup };
    let mut out = alloc::vec![0; Startup::LEN + setup.len() + private_data.len()];
    let most = MAX_PRIVATE_DATA - setup.len();
    let too_long = HandshakeError::PrivateDataTooLong { most };
    startup.emit([setup, private_data], &mut out).map_err(|_| too_long)?;
    Ok(out)
}

/// A startup frame that is arriving.
#[derive(Clone, Debug, Default)]
struct Arriving {
    bytes: Vec<u8>,
}

/// A startup frame that has arrived.
struct Arrived {
    startup: Startup,
    enhanced: Option<Enhanced>,
    private_data: Vec<u8>,
}

impl Arriving {
    /// Takes from `bytes` what belongs to the frame; what follows it stays there.
    fn handle(&mut self, role: Role, bytes: &mut &[u8]) -> Result<Option<Arrived>, HandshakeError> {
        loop {
            let needed = match Startup::parse(role, &self.bytes) {
                Ok((startup, private_data, _)) => return arrived(startup, private_data).map(Some),
                Err(StartupError::Incomplete { needed }) => needed,
                Err(error) => return Err(HandshakeError::NotMpa(error)),
            };
            if bytes.is_empty() {
                return Ok(None);
            }
            // The length of the private data bounds the frame, so that this does not grow further.
            let missing = needed.saturating_sub(self.bytes.len()).min(bytes.len());
            let (now, rest) = bytes.split_at(missing);
            self.bytes.extend_from_slice(now);
            *bytes = rest;
        }
    }
}

fn arrived(startup: Startup, private_data: &[u8]) -> Result<Arrived, HandshakeError> {
    if startup.revision > 2 {
        return Err(HandshakeError::Revision(startup.revision));
    }
    if !startup.enhanced || startup.revision < 2 {
        return Ok(Arrived { startup, enhanced: None, private_data: private_data.to_vec() });
    }
    let (enhanced, rest) = Enhanced::parse(private_data).map_err(|_| HandshakeError::NoSetup)?;
    Ok(Arrived { startup, enhanced: Some(enhanced), private_data: rest.to_vec() })
}

/// The side that has opened the TCP connection.
#[derive(Clone, Debug)]
pub struct Initiator {
    config: HandshakeConfig,
    arriving: Arriving,
}

/// The responder's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The queue pair may be attached to the stream.
    Accepted {
        /// What was agreed on.
        setup: StreamSetup,
        /// What the consumer of the peer said.
        private_data: Vec<u8>,
    },
    /// The peer does not want the connection.
    Rejected {
        /// What the consumer of the peer said.
        private_data: Vec<u8>,
    },
}

impl Initiator {
    /// Begins a handshake: the second value is to be sent.
    pub fn new(
        config: HandshakeConfig,
        private_data: &[u8],
    ) -> Result<(Self, Vec<u8>), HandshakeError> {
        let revision = config.revision.min(2);
        let startup = Startup { crc: config.crc, ..Startup::new(Role::Request, revision) };
        let enhanced = (revision == 2).then(|| Enhanced {
            ird: config.ird.min(MAX_READS),
            ord: config.ord.min(MAX_READS),
            peer_to_peer: config.peer_to_peer,
            rtr: if config.peer_to_peer { OFFERED } else { Rtr::NONE },
        });
        let request = frame(startup, enhanced, private_data)?;
        Ok((Self { config, arriving: Arriving::default() }, request))
    }

    /// Bytes have arrived; those behind the reply stay. `None`: the reply is not complete.
    pub fn handle(&mut self, bytes: &mut &[u8]) -> Result<Option<Reply>, HandshakeError> {
        let Some(reply) = self.arriving.handle(Role::Reply, bytes)? else { return Ok(None) };
        let Arrived { startup, enhanced, private_data } = reply;
        if startup.rejected {
            return Ok(Some(Reply::Rejected { private_data }));
        }
        let config = &self.config;
        let (mut ord, mut begin) = (config.ord, Begin::Send);
        if let Some(enhanced) = enhanced {
            if enhanced.ord > config.ird {
                return Err(HandshakeError::TooManyReads { wanted: enhanced.ord });
            }
            ord = ord.min(enhanced.ird);
            if config.peer_to_peer && enhanced.peer_to_peer {
                let common = enhanced.rtr.intersection(OFFERED);
                let (kind, _) = choose(common).ok_or(HandshakeError::NoReadyToReceive)?;
                begin = Begin::Announce(kind);
            }
        }
        let setup = StreamSetup {
            crc: config.crc || startup.crc,
            markers: startup.markers,
            ird: config.ird,
            ord,
            max_ulpdu: config.max_ulpdu,
            begin,
        };
        Ok(Some(Reply::Accepted { setup, private_data }))
    }
}

/// The side that has accepted the TCP connection.
#[derive(Clone, Debug)]
pub struct Responder {
    config: HandshakeConfig,
    arriving: Arriving,
}

impl Responder {
    /// Waits for a request.
    pub fn new(config: HandshakeConfig) -> Self {
        Self { config, arriving: Arriving::default() }
    }

    /// Bytes have arrived; those behind the request stay. `None`: the request is not complete.
    pub fn handle(&mut self, bytes: &mut &[u8]) -> Result<Option<Request>, HandshakeError> {
        let Some(request) = self.arriving.handle(Role::Request, bytes)? else { return Ok(None) };
        let Arrived { startup, enhanced, private_data } = request;
        if startup.revision == 2 && self.config.revision < 2 {
            return Err(HandshakeError::Revision(2));
        }
        Ok(Some(Request { config: self.config, startup, enhanced, private_data }))
    }
}

/// A connection that a peer asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    config: HandshakeConfig,
    startup: Startup,
    enhanced: Option<Enhanced>,
    private_data: Vec<u8>,
}

impl Request {
    /// What the consumer of the peer said.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// READ requests that the peer can hold, and that it wants to have under way.
    pub fn reads(&self) -> Option<(u16, u16)> {
        self.enhanced.map(|enhanced| (enhanced.ird, enhanced.ord))
    }

    /// Limits the READs of the peer and those to the peer that may be under way.
    pub fn limit_reads(&mut self, ird: u16, ord: u16) {
        let config = &mut self.config;
        (config.ird, config.ord) = (config.ird.min(ird), config.ord.min(ord));
    }

    /// Takes the connection: what was agreed on, and what is to be sent.
    pub fn accept(&self, private_data: &[u8]) -> Result<(StreamSetup, Vec<u8>), HandshakeError> {
        let config = &self.config;
        let crc = config.crc || self.startup.crc;
        let startup = Startup { crc, ..Startup::new(Role::Reply, self.startup.revision) };
        let (mut ird, mut ord, mut begin) = (config.ird, config.ord, Begin::Await(None));
        let mut reply = None;
        if let Some(asked) = self.enhanced {
            (ird, ord) = (ird.min(asked.ord), ord.min(asked.ird));
            let mut rtr = Rtr::NONE;
            if asked.peer_to_peer {
                // Linux announces itself by a WRITE if the request names no message.
                let offered = if asked.rtr == Rtr::NONE { Rtr::WRITE } else { asked.rtr };
                let (kind, chosen) = choose(offered).ok_or(HandshakeError::NoReadyToReceive)?;
                (rtr, begin) = (chosen, Begin::Await(Some(kind)));
            }
            reply = Some(Enhanced { ird, ord, peer_to_peer: asked.peer_to_peer, rtr });
        }
        let bytes = frame(startup, reply, private_data)?;
        let (markers, max_ulpdu) = (self.startup.markers, config.max_ulpdu);
        Ok((StreamSetup { crc, markers, ird, ord, max_ulpdu, begin }, bytes))
    }

    /// Refuses the connection: what is to be sent before the stream is closed.
    pub fn reject(&self, private_data: &[u8]) -> Result<Vec<u8>, HandshakeError> {
        let startup =
            Startup { rejected: true, ..Startup::new(Role::Reply, self.startup.revision) };
        let reply = self.enhanced.map(|asked| Enhanced {
            ird: asked.ord,
            ord: asked.ird,
            peer_to_peer: false,
            rtr: Rtr::NONE,
        });
        frame(startup, reply, private_data)
    }
}
