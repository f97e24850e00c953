//! What an analysis found, in words, as a row, and as JSON.

use feroce::wire::{NakCode, Service};
use serde_json::{Value, json};

use super::stream::{Refusal, Stream};
use crate::words;

/// Titles of the columns of [`row`].
pub(super) const TITLES: [&str; 7] =
    ["requests", "service", "packets", "bytes", "Gb/s", "answers p50/p99", "sent again"];

/// What went wrong with a stream, a sentence each.
pub(super) fn of(stream: &Stream) -> Vec<String> {
    let name = name(stream);
    let mut found = Vec::new();
    if let Some(Refusal { code, number }) = stream.refusal {
        found.push(format!("{name}: refused (packet {number}): {}", advice(code)));
    }
    if stream.not_ready_naks > 0 {
        let times = stream.not_ready_naks;
        found.push(format!(
            "{name}: no receive was posted {}: the receiver should post more, or earlier",
            counted(times, "time")
        ));
    }
    if stream.missing_naks > 0 {
        let times = counted(stream.missing_naks, "time");
        found.push(format!("{name}: packets were lost on their way: the receiver said so {times}"));
    }
    if stream.timeouts > 0 {
        let times = counted(stream.timeouts, "time");
        let longest = words::duration(stream.silence_ns);
        found.push(format!(
            "{name}: no answer came {times}, and the requester sent again after at most {longest}: \
             requests or answers were lost, or the peer is slow or gone"
        ));
    }
    if let Some((count, first)) = stream.unanswered() {
        let requests = counted(count as u64, "request");
        found.push(format!("{name}: {requests} without an answer, the first is packet {first}"));
    }
    if stream.gaps > 0 {
        let packets = counted(stream.gaps, "packet");
        found.push(match stream.service {
            Service::Uc => format!("{name}: {packets} lost, and their messages with them"),
            _ => format!("{name}: {packets} not in the capture"),
        });
    }
    if stream.marks > 0 {
        let packets = counted(stream.packets, "packet");
        found.push(format!(
            "{name}: {} of {packets} marked by congestion on the way (CE or FECN){}",
            stream.marks,
            match stream.notifications {
                0 => ", and the capture has no notification (CNP) that tells the sender",
                _ => "",
            }
        ));
    }
    if stream.answer_marks > 0 {
        let answers = counted(stream.answer_marks, "answer");
        found.push(format!("{name}: {answers} marked by congestion on the way back (CE or FECN)"));
    }
    if stream.notifications > 0 {
        let times = counted(stream.notifications, "notification");
        found.push(format!("{name}: {times} of congestion (CNP) slowed the sender down"));
    }
    found
}

fn name(stream: &Stream) -> String {
    let which = match stream.connection {
        1 => String::new(),
        nth => format!(" (connection {nth})"),
    };
    format!("{} → {} QP {}{which}", stream.from, stream.to, words::qpn(stream.qp.get()))
}

fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn advice(code: NakCode) -> &'static str {
    match code {
        NakCode::RemoteAccess => {
            "remote access error; check rkey, address, length and rights of the memory, and \
             qp_access_flags"
        }
        NakCode::InvalidRequest => {
            "invalid request; a receive that is too short, READs or atomics that are too many \
             (max_dest_rd_atomic) or not allowed"
        }
        NakCode::RemoteOperational => {
            "remote operational error; the receiver failed: a receive that is too short, or memory \
             of its own that it may not write"
        }
        NakCode::PsnSequence => "a packet is missing",
        NakCode::InvalidRdRequest => "an error of reliable datagrams",
    }
}

/// Bits per nanosecond from the first packet to the last.
fn gbps(stream: &Stream) -> Option<f64> {
    let (first, last) = stream.first_ns.zip(stream.last_ns)?;
    let ns = last.checked_sub(first).filter(|ns| *ns > 0)?;
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    let rate = stream.bytes as f64 * 8.0 / ns as f64;
    Some(rate)
}

/// A stream as a row of a table.
pub(super) fn row(stream: &Stream) -> [String; 7] {
    let latency = |q| words::duration(stream.latency.value_at_quantile(q));
    let latency = match stream.latency.is_empty() {
        true => String::new(),
        false => format!("{} / {}", latency(0.5), latency(0.99)),
    };
    [
        name(stream),
        stream.service.name().to_owned(),
        stream.packets.to_string(),
        stream.bytes.to_string(),
        match gbps(stream) {
            None => String::new(),
            Some(rate) if rate < 0.001 => "< 0.001".to_owned(),
            Some(rate) => format!("{rate:.3}"),
        },
        latency,
        stream.sent_again.to_string(),
    ]
}

/// A stream as JSON.
pub(super) fn json(stream: &Stream) -> Value {
    let latency = (!stream.latency.is_empty()).then(|| {
        let at = |q| stream.latency.value_at_quantile(q);
        json!({ "p50": at(0.5), "p99": at(0.99), "max": stream.latency.max() })
    });
    let unanswered = stream.unanswered().map_or(0, |(count, _)| count);
    json!({
        "from": stream.from.to_string(), "to": stream.to.to_string(), "qp": stream.qp.get(),
        "connection": stream.connection,
        "service": stream.service.name(), "packets": stream.packets, "bytes": stream.bytes,
        "gbps": gbps(stream), "answer_ns": latency, "sent_again": stream.sent_again,
        "timeouts": stream.timeouts, "sequence_naks": stream.missing_naks,
        "rnr_naks": stream.not_ready_naks, "unanswered": unanswered, "gaps": stream.gaps,
        "cnps": stream.notifications, "ecn_marks": stream.marks,
        "answer_ecn_marks": stream.answer_marks, "is_refused": stream.refusal.is_some(),
    })
}
