//! What two ends agree on before the first segment.

/// The empty message that the initiator sends first, to let the responder send (RFC 6581 9.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadyToReceive {
    /// A SEND, which takes no receive.
    Send,
    /// A WRITE.
    Write,
    /// A READ.
    Read,
}

/// Which end may send when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begin {
    /// At once: the initiator.
    Send,
    /// At once, and with this message: the initiator of a connection between peers.
    Announce(ReadyToReceive),
    /// When the first message of the peer has arrived: the responder. It is this one if the
    /// connection is one between peers.
    Await(Option<ReadyToReceive>),
}

/// What two ends have agreed on.
///
/// ```
/// # use feroce_engine::iwarp::StreamSetup;
/// let setup = StreamSetup { crc: true, ..StreamSetup::INITIATOR };
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamSetup {
    /// FPDUs have CRCs.
    pub crc: bool,
    /// The peer wants markers.
    pub markers: bool,
    /// READ requests of the peer that may be under way.
    pub ird: u16,
    /// READ requests to the peer that may be under way.
    pub ord: u16,
    /// Longest ULPDU to send.
    pub max_ulpdu: usize,
    /// Who begins.
    pub begin: Begin,
}

impl StreamSetup {
    /// As an initiator asks for it unless told otherwise, with segments for Ethernet.
    pub const INITIATOR: Self =
        Self { crc: true, markers: false, ird: 16, ord: 16, max_ulpdu: 1442, begin: Begin::Send };
}
