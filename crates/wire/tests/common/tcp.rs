//! TCP connections of a capture, put together again.

use std::collections::BTreeMap;

/// Address and port of an end.
pub(crate) type End = ([u8; 4], u16);

/// The bytes of one direction, in order.
pub(crate) struct Stream {
    pub(crate) from: End,
    pub(crate) to: End,
    pub(crate) bytes: Vec<u8>,
}

/// A direction that is being put together: its first sequence number, and segments by distance
/// from it.
struct Open {
    from: End,
    to: End,
    first: u32,
    segments: BTreeMap<u32, Vec<u8>>,
}

/// Every direction of every connection with bytes in it, initiators first.
pub(crate) fn streams(frames: &[Vec<u8>]) -> Vec<Stream> {
    let mut found: Vec<Open> = Vec::new();
    for frame in frames {
        let Some((from, to, tcp)) = ipv4_tcp(frame) else { continue };
        let sequence = u32::from_be_bytes(tcp[4..8].try_into().expect("four bytes"));
        let payload = &tcp[usize::from(tcp[12] >> 4) * 4..];
        let is_syn = tcp[13] & 2 != 0;
        if is_syn {
            let first = sequence.wrapping_add(1);
            found.push(Open { from, to, first, segments: BTreeMap::new() });
            continue;
        }
        let open = found.iter_mut().rev().find(|open| (open.from, open.to) == (from, to));
        if let Some(open) = open.filter(|_| !payload.is_empty()) {
            open.segments.insert(sequence.wrapping_sub(open.first), payload.to_vec());
        }
    }
    found.into_iter().map(join).collect()
}

/// Puts segments together, of which some may have been sent twice.
fn join(Open { from, to, segments, .. }: Open) -> Stream {
    let mut bytes: Vec<u8> = Vec::new();
    for (at, segment) in segments {
        let known = bytes.len().saturating_sub(at as usize);
        assert!(at as usize <= bytes.len(), "the capture has a hole");
        bytes.extend(segment.iter().skip(known));
    }
    Stream { from, to, bytes }
}

fn ipv4_tcp(frame: &[u8]) -> Option<(End, End, &[u8])> {
    let ip = frame.get(14..).filter(|_| frame[12..14] == [8, 0])?;
    let header = usize::from(ip[0] & 0x0f) * 4;
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let tcp = ip.get(header..total).filter(|_| ip[9] == 6)?;
    let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let address = |at: usize| ip[at..at + 4].try_into().expect("four bytes");
    Some(((address(12), port(0)), (address(16), port(2)), tcp))
}
