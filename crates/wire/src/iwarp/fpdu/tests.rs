use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::Rkey;
use crate::iwarp::ddp::{Control, QueueNumber, Tagged, Untagged};
use crate::iwarp::rdmap::RdmaOp;

/// Segments as they are sent: header and payload.
type Segments = Vec<(Header, Vec<u8>)>;

fn write(offset: u64) -> Header {
    let control = Control::new(RdmaOp::WRITE, true);
    Header::Tagged(Tagged { control, stag: Rkey(0x1234_5678), offset })
}

fn send(msn: u32) -> Header {
    let control = Control::new(RdmaOp::SEND, true);
    let queue = QueueNumber::SEND;
    Header::Untagged(Untagged { control, invalidate: Rkey(0), queue, msn, mo: 0 })
}

fn payload(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}

/// One segment of every small length, then long ones.
fn segments() -> Segments {
    let lengths = (0..40).chain([500, 508, 512, 1024, 1429, 5000]);
    let header = |n: u32| if n.is_multiple_of(2) { write(n.into()) } else { send(n) };
    (0..).zip(lengths).map(|(n, len)| (header(n), payload(len))).collect()
}

fn framed(segments: &Segments, framer: &mut Framer) -> Vec<u8> {
    let mut stream = Vec::new();
    for (header, payload) in segments {
        let mut out = vec![0xaa; framer.wire_len(header.len() + payload.len())];
        let fill = |at: usize, out: &mut [u8]| out.copy_from_slice(&payload[at..at + out.len()]);
        assert_eq!(framer.emit(header, payload.len(), &mut out, fill), Ok(out.len()));
        stream.extend(out);
    }
    stream
}

fn deframed(deframer: &mut Deframer, mut arrived: &[u8], segments: &mut Segments) {
    while let Some(piece) = deframer.next(&mut arrived).expect("sound") {
        match piece {
            Piece::Header { header, payload } => {
                segments.push((header, Vec::with_capacity(payload)));
            }
            Piece::Payload(bytes) => segments.last_mut().expect("header first").1.extend(bytes),
            Piece::End => {
                let (_, payload) = segments.last().expect("header first");
                assert_eq!(payload.len(), payload.capacity());
            }
        }
    }
    assert!(arrived.is_empty());
}

#[test]
fn a_stream_may_be_cut_anywhere() {
    let sent = segments();
    for crc in [false, true] {
        let stream = framed(&sent, &mut Framer::new(crc, false));
        for step in [1, 2, 3, 5, 19, 20, 21, 1460, stream.len()] {
            let (mut deframer, mut received) = (Deframer::new(crc), Vec::new());
            for arrived in stream.chunks(step) {
                deframed(&mut deframer, arrived, &mut received);
            }
            assert!(deframer.is_between());
            assert_eq!(received, sent, "in pieces of {step}");
        }
        for cut in 0..stream.len().min(3000) {
            let (mut deframer, mut received) = (Deframer::new(crc), Vec::new());
            deframed(&mut deframer, &stream[..cut], &mut received);
            deframed(&mut deframer, &stream[cut..], &mut received);
            assert_eq!(received, sent, "cut at {cut}");
        }
    }
}

#[test]
fn payload_may_be_read_elsewhere() {
    let stream = framed(&vec![(write(0), payload(1000))], &mut Framer::new(false, false));
    let mut deframer = Deframer::new(false);
    let (mut head, rest) = stream.split_at(2 + 14 + 10);
    assert!(matches!(deframer.next(&mut head), Ok(Some(Piece::Header { payload: 1000, .. }))));
    assert!(matches!(deframer.next(&mut head), Ok(Some(Piece::Payload(_)))));
    assert_eq!(deframer.payload_left(), 990);
    let (_, mut tail) = rest.split_at(990);
    deframer.took(7);
    assert_eq!(deframer.payload_left(), 983);
    deframer.took(983);
    assert_eq!(deframer.payload_left(), 0);
    assert_eq!(deframer.next(&mut tail), Ok(Some(Piece::End)));
    assert!(deframer.is_between());
}

#[test]
fn every_flipped_bit_is_found_if_crcs_are_used() {
    let stream = framed(&vec![(send(1), payload(33))], &mut Framer::new(true, false));
    for at in LENGTH_LEN + 1..stream.len() {
        for bit in 0..8 {
            let mut damaged = stream.clone();
            damaged[at] ^= 1 << bit;
            let (mut deframer, mut arrived) = (Deframer::new(true), &damaged[..]);
            let found = loop {
                match deframer.next(&mut arrived) {
                    Ok(Some(Piece::End) | None) => break None,
                    Ok(Some(_)) => {}
                    Err(error) => break Some(error),
                }
            };
            assert_eq!(found, Some(FramingError::Crc), "bit {bit} of byte {at}");
            assert_eq!(deframer.next(&mut arrived), Err(FramingError::Crc), "it lasts");
        }
    }
}

#[test]
fn a_ulpdu_without_a_header_is_an_error() {
    for (stream, ulpdu) in [(&[0, 0][..], 0), (&[0, 13, 0xc1], 13), (&[0, 17, 0x41], 17)] {
        let (mut deframer, mut arrived) = (Deframer::new(false), stream);
        assert_eq!(deframer.next(&mut arrived), Err(FramingError::Short { ulpdu }));
    }
}

#[test]
fn markers_stand_at_every_512th_byte_and_point_at_their_fpdu() {
    let sent = segments();
    let (mut framer, mut at) = (Framer::new(true, true), 0);
    let mut plain: Vec<u8> = Vec::new();
    for segment in &sent {
        let fpdu = framed(&vec![segment.clone()], &mut framer);
        let mut start = at;
        for (at, four) in (at..).step_by(4).zip(fpdu.chunks(4)) {
            if at % 512 != 0 {
                plain.extend(four);
            } else if at == start {
                assert_eq!(four, [0; 4], "a marker in front of an FPDU belongs to it");
                start += 4;
            } else {
                assert_eq!(four, u32::try_from(at - start).expect("small").to_be_bytes());
            }
        }
        // The CRC covers the markers, so that it differs from that of an FPDU without.
        let (covered, seal) = fpdu.split_at(fpdu.len() - CRC_LEN);
        let mut crc = Crc32c::new();
        crc.update(covered);
        assert_eq!(seal, crc.seal());
        plain.truncate(plain.len() - CRC_LEN);
        at += fpdu.len();
    }
    assert!(at > 20 * 512, "many markers");
    let without = sent.iter().flat_map(|segment| {
        let fpdu = framed(&vec![segment.clone()], &mut Framer::new(true, false));
        fpdu[..fpdu.len() - CRC_LEN].to_vec()
    });
    assert_eq!(plain, without.collect::<Vec<_>>());
}

/// Takes a stream apart as its owner does: whole where that can be.
fn taken(deframer: &mut Deframer, mut arrived: &[u8], segments: &mut Segments) -> usize {
    let mut whole = 0;
    while let Some((header, payload)) = deframer.take_short(&mut arrived).expect("sound") {
        segments.push((header, payload.to_vec()));
        whole += 1;
    }
    let before = arrived.len();
    match deframer.next(&mut arrived).expect("sound") {
        None => return whole,
        Some(Piece::Header { header, payload }) => {
            segments.push((header, Vec::with_capacity(payload)));
        }
        Some(Piece::Payload(bytes)) => segments.last_mut().expect("header first").1.extend(bytes),
        Some(Piece::End) => {}
    }
    assert!(arrived.len() < before);
    whole + taken(deframer, arrived, segments)
}

#[test]
fn what_is_short_is_taken_whole_if_it_is_there() {
    let sent = segments();
    let is_short =
        |(header, payload): &&(Header, Vec<u8>)| fpdu_len(header.len() + payload.len()) <= SHORT;
    let short = sent.iter().filter(is_short).count();
    assert!((40..sent.len()).contains(&short), "some are longer");
    for crc in [false, true] {
        let stream = framed(&sent, &mut Framer::new(crc, false));
        for cut in (0..=stream.len().min(3000)).step_by(7) {
            let (mut deframer, mut received) = (Deframer::new(crc), Vec::new());
            let whole = taken(&mut deframer, &stream[..cut], &mut received)
                + taken(&mut deframer, &stream[cut..], &mut received);
            assert_eq!(received, sent, "cut at {cut}");
            assert!((short - 1..=short).contains(&whole), "{whole} of {short}, cut at {cut}");
        }
    }
}

#[test]
fn what_is_taken_whole_is_checked() {
    let stream = framed(&vec![(send(1), payload(33))], &mut Framer::new(true, false));
    for at in LENGTH_LEN + 1..stream.len() {
        let mut damaged = stream.clone();
        damaged[at] ^= 0x10;
        let (mut deframer, mut arrived) = (Deframer::new(true), &damaged[..]);
        assert_eq!(deframer.take_short(&mut arrived), Err(FramingError::Crc), "byte {at}");
        assert_eq!(deframer.next(&mut arrived), Err(FramingError::Crc), "it lasts");
        assert_eq!(deframer.take_short(&mut arrived), Ok(None));
    }
    let mut short: &[u8] = &[0, 2, 0xc1, 0x40, 0, 0, 0, 0];
    let mut deframer = Deframer::new(false);
    assert_eq!(deframer.take_short(&mut short), Ok(None), "shorter than its header");
    assert_eq!(deframer.next(&mut short), Err(FramingError::Short { ulpdu: 2 }));
}
