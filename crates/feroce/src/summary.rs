//! What a device did, in a few lines, for the setting `stats`.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use feroce_engine::{Counters, DropCounters, QpCounters};

/// Prints what a device did, once.
#[derive(Debug)]
pub(crate) struct Summary {
    device: String,
    is_printed: AtomicBool,
}

impl Summary {
    pub(crate) fn new(device: &str) -> Self {
        Self { device: device.to_owned(), is_printed: AtomicBool::new(false) }
    }

    /// Prints it on standard error, unless this was done before.
    pub(crate) fn print(
        &self,
        totals: &QpCounters,
        counters: &Counters,
        drops: &DropCounters,
        link: &[(&'static str, u64)],
    ) {
        if self.is_printed.swap(true, Ordering::Relaxed) {
            return;
        }
        let text = text(totals, counters, drops, link);
        let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        let head = format!("feroce: {} {} {}:", std::process::id(), program.trim(), self.device);
        // One call for each line, so that lines of several processes do not mix.
        text.lines().for_each(|line| eprintln!("{head} {line}"));
    }
}

/// The lines. Counters that tell of trouble are named if they are not zero.
fn text(
    totals: &QpCounters,
    counters: &Counters,
    drops: &DropCounters,
    link: &[(&'static str, u64)],
) -> String {
    let &QpCounters { requests, request_bytes, direct_requests, served, served_bytes, .. } = totals;
    let mut text = format!("{requests} requests with {request_bytes} bytes");
    // Writing into a string does not fail.
    if direct_requests > 0 {
        let _ = write!(text, " ({direct_requests} by direct access, without a packet)");
    }
    let _ = writeln!(text, "; {served} requests of peers with {served_bytes} bytes");
    let Counters { sent_pkts, sent_bytes, rcvd_pkts, rcvd_bytes, .. } = *counters;
    let _ = writeln!(
        text,
        "{sent_pkts} packets sent with {sent_bytes} bytes; {rcvd_pkts} received with {rcvd_bytes}"
    );
    let trouble = [
        ("retransmissions", totals.retransmissions),
        ("duplicates received", counters.duplicate_request),
        ("gaps seen", counters.out_of_seq_request),
        ("RNR NAKs received", counters.rcvd_rnr_err),
        ("RNR NAKs sent", counters.send_rnr_err),
        ("requests given up", counters.retry_exceeded_err + counters.retry_rnr_exceeded_err),
        ("accesses refused", counters.resp_remote_access_errors),
        ("failed completions", counters.req_cqe_error + counters.resp_cqe_error),
        ("completions lost, because their queue was full", counters.cq_overrun),
        ("marked congestion", counters.np_ecn_marked_roce_packets),
    ];
    let on_link = link.iter().filter(|(name, _)| name.starts_with("fault_"));
    let all = trouble.into_iter().chain(drops.iter()).chain(on_link.copied());
    let named: Vec<String> =
        all.filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {n}")).collect();
    if !named.is_empty() {
        let _ = writeln!(text, "{}", named.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_trouble_that_happened_is_named() {
        let totals = QpCounters { requests: 3, request_bytes: 30, ..QpCounters::default() };
        let quiet = text(&totals, &Counters::default(), &DropCounters::default(), &[]);
        assert_eq!(
            quiet,
            "3 requests with 30 bytes; 0 requests of peers with 0 bytes\n\
             0 packets sent with 0 bytes; 0 received with 0\n"
        );
        let totals = QpCounters { retransmissions: 2, direct_requests: 1, ..totals };
        let drops = DropCounters { drop_after_gap: 5, ..DropCounters::default() };
        let link = [("fault_lost", 4), ("udp_tx", 9)];
        let noisy = text(&totals, &Counters::default(), &drops, &link);
        assert!(noisy.contains("(1 by direct access, without a packet)"), "{noisy}");
        assert!(
            noisy.ends_with("\nretransmissions 2, drop_after_gap 5, fault_lost 4\n"),
            "{noisy}"
        );
    }
}
