//! Capture files of every format, and damaged files.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;

/// Golden captures, in the crate of the wire formats.
fn captures() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/captures");
    let mut paths: Vec<PathBuf> = fs::read_dir(dir)
        .expect("captures")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "pcap"))
        .collect();
    paths.sort();
    paths
}

/// Counts the packets of a file, and renders all of them.
fn look(bytes: &[u8]) -> (Counts, End, Option<u64>) {
    let mut counts = Counts::default();
    let (mut first, mut last) = (None, None);
    let ladder = Ladder::without_events(Style::plain(90));
    let (mut table, mut pair) = (Table::new(Style::plain(90)), None);
    let mut flows = Flows::default();
    let end = capture::read(bytes, |record| {
        let first = *first.get_or_insert_with(|| record.time_ns.unwrap_or(0));
        last = record.time_ns.map(|ns| ns - first.min(ns));
        for view in View::all(&record, &mut flows, counts.packets + 1, first) {
            counts.add(&view);
            table.push(&view);
            climb(&ladder, &mut pair, &view);
            assert!(view.json().is_object());
        }
        true
    });
    table.finish();
    (counts, end, last)
}

/// The frames of a little-endian file, with their times in microseconds.
fn frames(bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut frames = Vec::new();
    let end = capture::read(bytes, |record| {
        frames.push((record.time_ns.expect("time") / 1_000, record.bytes.to_vec()));
        true
    });
    assert_eq!(end, End::Complete);
    frames
}

/// Numbers in the byte order of a file.
#[derive(Clone, Copy)]
struct Order {
    is_big: bool,
}

impl Order {
    fn u32(self, n: u64) -> [u8; 4] {
        let n = u32::try_from(n).expect("32 bits");
        if self.is_big { n.to_be_bytes() } else { n.to_le_bytes() }
    }

    fn u16(self, n: u16) -> [u8; 2] {
        if self.is_big { n.to_be_bytes() } else { n.to_le_bytes() }
    }

    fn pcap(self, is_nano: bool, frames: &[(u64, Vec<u8>)]) -> Vec<u8> {
        let magic = if is_nano { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
        let mut out = self.u32(magic).to_vec();
        out.extend([self.u16(2), self.u16(4)].concat());
        out.extend([self.u32(0), self.u32(0), self.u32(65_535), self.u32(1)].concat());
        for (time_us, frame) in frames {
            let len = self.u32(frame.len() as u64);
            let fraction = time_us % 1_000_000 * if is_nano { 1_000 } else { 1 };
            out.extend([self.u32(time_us / 1_000_000), self.u32(fraction), len, len].concat());
            out.extend(frame);
        }
        out
    }

    /// A file with an interface whose time stamps count nanoseconds.
    fn pcapng(self, frames: &[(u64, Vec<u8>)]) -> Vec<u8> {
        let block = |kind: u64, body: &[u8]| {
            let len = self.u32(12 + body.len() as u64);
            [&self.u32(kind)[..], &len, body, &len].concat()
        };
        let section = [&self.u32(0x1a2b_3c4d)[..], &self.u16(1), &self.u16(0), &[0xff; 8]].concat();
        let mut out = block(0x0a0d_0d0a, &section);
        let resolution = [&self.u16(9)[..], &self.u16(1), &[9, 0, 0, 0], &[0; 4]].concat();
        let interface = [&self.u16(1)[..], &self.u16(0), &self.u32(65_535), &resolution].concat();
        out.extend(block(1, &interface));
        for (time_us, frame) in frames {
            let ns = time_us * 1_000;
            let len = self.u32(frame.len() as u64);
            let head = [self.u32(0), self.u32(ns >> 32), self.u32(ns & 0xffff_ffff), len, len];
            let mut body = head.concat();
            body.extend(frame);
            body.resize(body.len().next_multiple_of(4), 0);
            out.extend(block(6, &body));
        }
        out
    }
}

#[test]
fn every_format_holds_the_same() {
    for path in captures() {
        let bytes = fs::read(&path).expect("file");
        let (counts, end, last) = look(&bytes);
        assert_eq!(end, End::Complete, "{}", path.display());
        assert_eq!((counts.roce, counts.broken), (counts.packets, 0), "{}", path.display());
        let frames = frames(&bytes);
        for is_big in [false, true] {
            let order = Order { is_big };
            for file in [order.pcap(false, &frames), order.pcap(true, &frames)] {
                assert_eq!(look(&file), (counts, End::Complete, last), "{}", path.display());
            }
            let file = order.pcapng(&frames);
            assert_eq!(look(&file), (counts, End::Complete, last), "{}", path.display());
        }
    }
}

#[test]
fn a_cut_file_shows_what_is_there() {
    let bytes = fs::read(&captures()[0]).expect("file");
    let (whole, ..) = look(&bytes);
    for len in (24..bytes.len()).step_by(5) {
        let (counts, end, _) = look(&bytes[..len]);
        assert!(counts.packets <= whole.packets && counts.bad_icrc == 0);
        assert!(matches!(end, End::Complete | End::Damaged(_)));
    }
    for len in 0..24 {
        assert!(matches!(look(&bytes[..len]).1, End::Damaged(_)), "{len}");
    }
}

/// A record that is longer than the read-ahead buffer.
#[test]
fn long_records_are_read() {
    let mut frames = frames(&fs::read(&captures()[0]).expect("file"));
    let known = frames.len() as u64;
    frames.insert(1, (0, vec![0xaa; 3_000_000]));
    let order = Order { is_big: false };
    for file in [order.pcap(false, &frames), order.pcapng(&frames)] {
        let (counts, end, _) = look(&file);
        assert_eq!((counts.packets, counts.roce, end), (known + 1, known, End::Complete));
    }
}

/// Damages files at random places and decodes them; the decoder may not panic or hang.
#[test]
fn damage_never_crashes() {
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % below.max(1)
    };
    for path in captures() {
        let original = fs::read(&path).expect("file");
        let order = Order { is_big: random(2) == 0 };
        for mut bytes in [original.clone(), order.pcapng(&frames(&original))] {
            for _ in 0..6 {
                let sound = bytes.clone();
                for _ in 0..=random(8) {
                    let at = random(bytes.len());
                    bytes[at] = match random(4) {
                        0 => 0xff,
                        1 => 0,
                        2 => bytes[at] ^ 1 << random(8),
                        _ => random(256) as u8,
                    };
                }
                if random(4) == 0 {
                    bytes.truncate(random(bytes.len()));
                }
                look(&bytes);
                bytes = sound;
            }
        }
    }
    for len in [0, 1, 4, 23, 24, 25, 100, 5000] {
        look(&(0..len).map(|_| random(256) as u8).collect::<Vec<_>>());
    }
}

/// What the analysis says of a golden capture.
fn found(name: &str) -> (Vec<String>, Vec<Vec<String>>, Vec<String>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/captures").join(name);
    let (mut analysis, mut marks) = (Analysis::default(), Vec::new());
    let mut number = 1;
    let end = capture::read(&fs::read(path).expect("file")[..], |record| {
        for mut view in View::all(&record, &mut Flows::default(), number, 0) {
            number += 1;
            analyse(&mut analysis, &mut view);
            marks.extend(
                view.json().get("note").map(|note| note.as_str().expect("text").to_owned()),
            );
        }
        true
    });
    assert_eq!(end, End::Complete);
    (analysis.findings(), analysis.table(), marks)
}

#[test]
fn what_went_wrong_is_said() {
    for (name, expected) in [
        ("loss_req_last.pcap", &["no answer came 1 time"][..]),
        ("loss_read_req.pcap", &["no answer came 1 time"]),
        ("timeout.pcap", &["no answer came 3 times", "1 request without an answer"]),
        ("rnr_retry.pcap", &["no receive was posted 3 times"]),
        ("rnr_exceed.pcap", &["no receive was posted 3 times", "1 request without an answer"]),
        (
            "crafted_psn_ahead.pcap",
            &["packets were lost on their way: the receiver said so 1 time"],
        ),
        ("err_rkey_read.pcap", &["remote access error; check rkey"]),
        ("err_recv_small.pcap", &["a receive that is too short"]),
    ] {
        let (findings, ..) = found(name);
        assert_eq!(findings.len(), expected.len(), "{name}: {findings:#?}");
        for (finding, expected) in findings.iter().zip(expected) {
            assert!(finding.contains(expected), "{name}: {findings:#?}");
        }
    }
}

#[test]
fn what_is_right_is_not_complained_about() {
    for path in captures() {
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        let is_bad = ["crafted_", "err_", "loss_", "rnr_", "timeout"];
        // One invalidates a key and uses it once more; the other ends before its last answer.
        let is_bad = is_bad.iter().any(|bad| name.starts_with(bad))
            || ["ops_send_inv.pcap", "rstream.pcap"].contains(&name);
        if !is_bad {
            let (findings, _, marks) = found(name);
            assert!(findings.is_empty() && marks.is_empty(), "{name}: {findings:#?} {marks:#?}");
        }
    }
}

#[test]
fn requests_are_counted_once_and_marked_if_sent_again() {
    let (_, table, marks) = found("loss_req_last.pcap");
    assert_eq!(
        table[1],
        ["10.77.0.1 → 10.77.0.2 QP 0xa4", "RC", "15", "12288", "< 0.001", "7.77 ms / 9.57 ms", "3"]
    );
    assert_eq!(
        marks,
        ["sent again after 1.081 s of silence", "sent again", "sent again", "answered before"]
    );
}

/// Every capture of Linux's iWARP driver: its connections begin with a request, and only the
/// messages that were made wrong are wrong.
#[test]
fn captures_of_iwarp() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/captures/iwarp");
    let (mut files, mut messages, mut wrong) = (0, 0, Vec::new());
    for entry in fs::read_dir(dir).expect("captures") {
        let path = entry.expect("entry").path();
        if path.extension().is_none_or(|e| e != "pcap") {
            continue;
        }
        let (counts, end, _) = look(&fs::read(&path).expect("readable"));
        assert_eq!(end, End::Complete, "{}", path.display());
        assert_eq!(counts.broken, 0, "{}", path.display());
        files += 1;
        messages += counts.iwarp;
        if counts.bad_iwarp > 0 {
            wrong.push(path.file_stem().expect("a name").to_string_lossy().into_owned());
        }
    }
    wrong.sort();
    assert!(files > 80 && messages > 1000, "{files} files, {messages} messages");
    assert_eq!(wrong, ["crafted_crcbad", "crafted_short"]);
}

/// A capture of these frames, as if read from a file.
fn source(name: &str, frames: &[(u64, Vec<u8>)]) -> Source {
    let file = Order { is_big: false }.pcap(true, frames);
    Source::read(name.to_owned(), io::Cursor::new(file))
}

/// Puts captures together. For each packet: the files that have it, a bit each.
fn merged(sources: Vec<Source>) -> (Merged, Vec<u64>) {
    let (mut merged, mut files, mut number) = (Merged::new(sources), Vec::new(), 1);
    let each = |_: capture::Record<'_>, packets: &[Packet], _| {
        files.extend(packets.iter().map(|packet| packet.files));
        number += packets.len() as u64;
        Ok(number - packets.len() as u64)
    };
    merged.each(each).expect("nothing fails");
    (merged, files)
}

/// The frames of a golden capture, and those of the other end: each arrives 20 us later.
fn both_ends(name: &str) -> [Vec<(u64, Vec<u8>)>; 2] {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/captures").join(name);
    let here = frames(&fs::read(path).expect("file"));
    let sender = here[0].1[26..30].to_vec();
    let later = |(at, frame): &(u64, Vec<u8>)| match frame[26..30] == sender {
        true => (at + 20, frame.clone()),
        false => (at - 20, frame.clone()),
    };
    let there = here.iter().map(later).collect();
    [here, there]
}

#[test]
fn captures_of_both_ends_have_each_packet_once() {
    // The second one has retransmissions, which have the bytes of what they repeat.
    for name in ["rc_pingpong.pcap", "loss_req_last.pcap", "rping.pcap"] {
        let [here, mut there] = both_ends(name);
        let (all, files) = merged(vec![source("a", &here), source("b", &there)]);
        assert_eq!(files, vec![0b11; here.len()], "{name}");
        assert_eq!((all.sources[1].ahead_ns, all.missing()), (0, vec![]), "{name}");
        // A frame is lost on its way.
        there.remove(2);
        let (all, files) = merged(vec![source("a", &here), source("b", &there)]);
        assert_eq!(files.iter().filter(|files| **files == 0b01).count(), 1, "{name}");
        assert_eq!(files.len(), here.len(), "{name}");
        let missing = all.missing();
        assert!(missing[0].contains("1 packet is in a and not in b"), "{name}: {missing:?}");
        assert_eq!(missing.len(), 1, "{name}: {missing:?}");
    }
}

#[test]
fn clocks_of_captures_may_differ() {
    for seconds in [-3, 5] {
        let [here, there] = both_ends("rc_pingpong.pcap");
        let shifted = |(at, frame): &(u64, Vec<u8>)| {
            (at.saturating_add_signed(seconds * 1_000_000), frame.clone())
        };
        let there: Vec<_> = there.iter().map(shifted).collect();
        let (all, files) = merged(vec![source("a", &here), source("b", &there)]);
        assert_eq!(files, vec![0b11; here.len()]);
        assert_eq!(all.sources[1].ahead_ns, seconds * 1_000_000_000);
        assert!(all.sources[1].text().contains("its clock is "), "{}", all.sources[1].text());
    }
}

#[test]
fn captures_of_different_traffic_are_put_in_order() {
    let [here, _] = both_ends("rc_pingpong.pcap");
    let odd = |odd: usize| here.iter().skip(odd).step_by(2).cloned().collect::<Vec<_>>();
    let (all, files) = merged(vec![source("a", &odd(0)), source("b", &odd(1))]);
    let expected: Vec<u64> = (0..here.len()).map(|at| 1 << (at % 2)).collect();
    assert_eq!((files, all.missing()), (expected, vec![]));
}
