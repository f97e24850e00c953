//! What passes between a process and the portd of its host.
//!
//! Both run on one machine, so numbers are in the machine's byte order. A connection begins with a
//! [`Request`] of the process and an [`Answer`] of portd. After that, a connection with a lease
//! carries packets to the process, each message a record as in the rings (`record`), and changes of
//! the addresses, which are requests and answers again. The first byte tells answers from records.

use feroce_wire::Gid;

use crate::layout::MAX_ADDRESSES;

/// The first bytes of a request. The number at the end counts the versions of the format, of the
/// records, and of what the upper bits of queue pair numbers mean.
const MAGIC: [u8; 16] = *b"feroce portd   1";

/// An address, and the index of its interface if it is link-local.
pub(super) type Address = (Gid, u32);

/// The prefixes that are not free, one bit for each.
pub(crate) type Prefixes = [u8; 32];

/// What a process asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Request {
    /// Packets to queue pairs and connections whose numbers begin with a prefix, at some addresses.
    Lease { prefix: u8, addresses: Vec<Address> },
    /// Requests for a service at an address, for the process with a prefix.
    Claim { prefix: u8, address: Address, service: u64 },
}

impl Request {
    pub(super) fn emit(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let put = |out: &mut Vec<u8>, (gid, scope): &Address| {
            out.extend(gid.0);
            out.extend(scope.to_ne_bytes());
        };
        match self {
            Self::Lease { prefix, addresses } => {
                out.extend([0, *prefix]);
                addresses.iter().for_each(|address| put(&mut out, address));
            }
            Self::Claim { prefix, address, service } => {
                out.extend([1, *prefix]);
                put(&mut out, address);
                out.extend(service.to_ne_bytes());
            }
        }
        out
    }

    /// Reads a request; `None` if it is none, or one of another version.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (&[kind, prefix], rest) = rest.split_first_chunk()?;
        let address = |bytes: &[u8; 20]| -> Option<Address> {
            let (gid, scope) = bytes.split_first_chunk()?;
            Some((Gid(*gid), u32::from_ne_bytes(scope.try_into().ok()?)))
        };
        match kind {
            0 => {
                let (addresses, rest) = rest.as_chunks();
                if !rest.is_empty() || addresses.len() > MAX_ADDRESSES {
                    return None;
                }
                let addresses = addresses.iter().map(address).collect::<Option<_>>()?;
                Some(Self::Lease { prefix, addresses })
            }
            1 => {
                let (at, service) = rest.split_first_chunk()?;
                let service = u64::from_ne_bytes(service.try_into().ok()?);
                Some(Self::Claim { prefix, address: address(at)?, service })
            }
            _ => None,
        }
    }
}

/// The first byte of answers. Those of records are smaller.
const FIRST: u8 = 0xf0;

/// The longest answer.
pub(super) const MAX_ANSWER: usize = 1024;

/// What portd answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// The lease begins, or has other addresses now. portd does not receive at those named here.
    Leased { refused: Vec<Gid> },
    /// The prefix is not free.
    Taken(Prefixes),
    /// The service belongs to the process as long as the connection lasts.
    Claimed,
    /// The service belongs to another process.
    InUse,
    /// portd does not do that.
    Refused(String),
    /// Not an answer, but news: the process of another user that had a lease has ended.
    Departed { prefix: u8, addresses: Vec<Gid> },
}

impl Answer {
    pub(super) fn emit(&self) -> Vec<u8> {
        match self {
            Self::Leased { refused } => {
                [FIRST].into_iter().chain(refused.iter().flat_map(|gid| gid.0)).collect()
            }
            Self::Taken(prefixes) => [&[FIRST + 1][..], prefixes].concat(),
            Self::Claimed => vec![FIRST + 2],
            Self::InUse => vec![FIRST + 3],
            Self::Refused(why) => [&[FIRST + 4], why.as_bytes()].concat(),
            Self::Departed { prefix, addresses } => {
                let addresses = addresses.iter().flat_map(|gid| gid.0);
                [FIRST + 5, *prefix].into_iter().chain(addresses).collect()
            }
        }
    }

    /// Reads an answer; `None` if it is none.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let gids = |bytes: &[u8]| {
            let (gids, rest) = bytes.as_chunks();
            rest.is_empty().then(|| gids.iter().copied().map(Gid).collect())
        };
        match kind.checked_sub(FIRST)? {
            0 => Some(Self::Leased { refused: gids(rest)? }),
            1 => Some(Self::Taken(rest.try_into().ok()?)),
            2 => Some(Self::Claimed),
            3 => Some(Self::InUse),
            4 => Some(Self::Refused(String::from_utf8_lossy(rest).into_owned())),
            5 => {
                let (&prefix, addresses) = rest.split_first()?;
                Some(Self::Departed { prefix, addresses: gids(addresses)? })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive() {
        let (a, b) = ((Gid([1; 16]), 0), (Gid([2; 16]), 7));
        let requests = [
            Request::Lease { prefix: 3, addresses: vec![a, b] },
            Request::Lease { prefix: 255, addresses: Vec::new() },
            Request::Claim { prefix: 4, address: b, service: 0x0106_1234 },
        ];
        for request in requests {
            let bytes = request.emit();
            assert_eq!(Request::parse(&bytes), Some(request));
            assert_eq!(Request::parse(&bytes[..bytes.len() - 1]), None);
        }
        let answers = [
            Answer::Leased { refused: vec![a.0] },
            Answer::Taken([9; 32]),
            Answer::Claimed,
            Answer::InUse,
            Answer::Refused("no".into()),
            Answer::Departed { prefix: 7, addresses: vec![a.0, b.0] },
        ];
        for answer in answers {
            assert_eq!(Answer::parse(&answer.emit()), Some(answer));
        }
    }

    #[test]
    fn what_is_no_message_is_none() {
        assert_eq!(Request::parse(&[]), None);
        assert_eq!(Request::parse(b"feroce portd   0\0\x01"), None, "another version");
        let addresses = vec![(Gid([1; 16]), 0); MAX_ADDRESSES + 1];
        assert_eq!(Request::parse(&Request::Lease { prefix: 1, addresses }.emit()), None);
        assert_eq!(Answer::parse(&[5, 1, 2]), None, "a record");
        assert_eq!(Answer::parse(&[FIRST, 1]), None);
        assert_eq!(Answer::parse(&[FIRST + 5]), None);
        assert_eq!(Answer::parse(&[FIRST + 5, 1, 2]), None);
    }
}
