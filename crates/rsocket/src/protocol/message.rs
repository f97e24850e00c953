//! Immediate data of messages, and ids of work requests. iWARP has no immediate data: there a SEND
//! of the same number, in the sender's byte order, follows the WRITE.

/// The upper three bits of immediate data are the type, the others its value.
const SHIFT: u32 = 29;

const DATA: u32 = 0;
const CREDITS: u32 = 4;
const IOMAP: u32 = 6;
const CONTROL: u32 = 7;

const DISCONNECT: u32 = 0;
const SHUTDOWN: u32 = 2;

/// A message, as immediate data carries it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Message {
    /// This many bytes were written to the ring.
    Data(u32),
    /// The receiver may send messages up to this number; a free buffer may be announced with it.
    Credits(u16),
    /// A mapping was written to this slot.
    Iomap(u16),
    /// The sender neither sends nor receives any more.
    Disconnect,
    /// The sender sends no more data.
    Shutdown,
    /// A message without effect, or of an unknown type.
    Other,
}

impl Message {
    /// As immediate data; [`Message::Other`] has none of its own and is never sent.
    pub(crate) fn emit(self) -> u32 {
        match self {
            Self::Data(len) => DATA << SHIFT | len,
            Self::Credits(upto) => CREDITS << SHIFT | u32::from(upto),
            Self::Iomap(index) => IOMAP << SHIFT | u32::from(index),
            Self::Disconnect => CONTROL << SHIFT | DISCONNECT,
            Self::Shutdown => CONTROL << SHIFT | SHUTDOWN,
            Self::Other => u32::MAX,
        }
    }

    pub(crate) fn parse(immediate: u32) -> Self {
        let value = immediate & !(u32::MAX << SHIFT);
        match (immediate >> SHIFT, value) {
            (DATA, len) => Self::Data(len),
            // Sequence numbers have 16 bits; what is above them was carried over.
            (CREDITS, upto) => Self::Credits(upto as u16),
            (IOMAP, index) => Self::Iomap(index as u16),
            (CONTROL, DISCONNECT) => Self::Disconnect,
            (CONTROL, SHUTDOWN) => Self::Shutdown,
            _ => Self::Other,
        }
    }
}

/// The purpose of a work request, which its id carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Posted {
    /// A receive.
    Receive,
    /// So many bytes, into the peer's ring or into mapped memory.
    Data(u32),
    /// A mapping.
    Iomap,
    /// Anything short that the peer has room for at any time.
    Control,
    /// The last control message.
    Disconnect,
    /// The WRITE in front of a SEND that tells of it, where no immediate data exists. It completes
    /// only if it fails, and then the SEND does, too.
    Ahead,
}

impl Posted {
    /// As the number of a work request.
    pub(crate) fn emit(self) -> u64 {
        match self {
            Self::Receive => 0,
            Self::Data(len) => 1 << 32 | u64::from(len),
            Self::Iomap => 2 << 32,
            Self::Control => 3 << 32,
            Self::Disconnect => 4 << 32,
            Self::Ahead => 5 << 32,
        }
    }

    /// Of a number that [`Posted::emit`] made.
    pub(crate) fn parse(number: u64) -> Self {
        match number >> 32 {
            0 => Self::Receive,
            1 => Self::Data(number as u32),
            2 => Self::Iomap,
            3 => Self::Control,
            4 => Self::Disconnect,
            _ => Self::Ahead,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of librdmacm's protocol guide.
    #[test]
    fn messages_are_those_of_librdmacm() {
        for (message, immediate) in [
            (Message::Data(0x1fff_ffff), 0x1fff_ffff),
            (Message::Credits(0x8001), 0x8000_8001),
            (Message::Iomap(7), 0xc000_0007),
            (Message::Disconnect, 0xe000_0000),
            (Message::Shutdown, 0xe000_0002),
        ] {
            assert_eq!(message.emit(), immediate);
            assert_eq!(Message::parse(immediate), message);
        }
    }

    #[test]
    fn what_is_reserved_says_nothing() {
        // Keepalive, and reserved types.
        for immediate in [0xe000_0001, 0x2000_0001, 0x4000_0001, 0x6000_0001, 0xa000_0001] {
            assert_eq!(Message::parse(immediate), Message::Other, "{immediate:#x}");
        }
        // A sum of sequence numbers that was not cut to 16 bits.
        assert_eq!(Message::parse(0x8001_0002), Message::Credits(2));
    }

    #[test]
    fn posted_requests_come_back() {
        for posted in [
            Posted::Receive,
            Posted::Data(u32::MAX),
            Posted::Iomap,
            Posted::Control,
            Posted::Disconnect,
        ] {
            assert_eq!(Posted::parse(posted.emit()), posted);
        }
    }
}
