//! The names of the patterns.

use std::fmt;
use std::str::FromStr;

/// A way to build a call from verbs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Pattern {
    /// [`send`](super::send)
    Send,
    /// [`inline`](super::inline)
    Inline,
    /// [`write_poll`](super::write_poll)
    WritePoll,
    /// [`write_imm`](super::write_imm)
    WriteImm,
    /// [`write_send`](super::write_send)
    WriteSend,
    /// [`read_fetch`](super::read_fetch)
    ReadFetch,
    /// [`hybrid`](super::hybrid)
    Hybrid,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Send,
        Self::Inline,
        Self::WritePoll,
        Self::WriteImm,
        Self::WriteSend,
        Self::ReadFetch,
        Self::Hybrid,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Inline => "inline",
            Self::WritePoll => "write-poll",
            Self::WriteImm => "write-imm",
            Self::WriteSend => "write-send",
            Self::ReadFetch => "read-fetch",
            Self::Hybrid => "hybrid",
        }
    }

    /// When it is the one to choose.
    pub fn wins(self) -> &'static str {
        match self {
            Self::Send => "many clients share receives, and messages are of middle length",
            Self::Inline => "messages are short, and the receiver may sleep",
            Self::WritePoll => {
                "the receiver polls anyway, and latency counts more than its processor"
            }
            Self::WriteImm => "bodies are long, have a place at the receiver, and it may sleep",
            Self::WriteSend => "bodies are long and have a place at the receiver, on any transport",
            Self::ReadFetch => "the server's processor is what is scarce, and handlers are fast",
            Self::Hybrid => "lengths differ, as in a library that does not know its users",
        }
    }

    /// Its number on the wire.
    pub(super) fn code(self) -> u8 {
        self as u8
    }

    pub(super) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|pattern| pattern.name() == name);
        found.ok_or_else(|| format!("no pattern {name:?}: there are {names}"))
    }
}
