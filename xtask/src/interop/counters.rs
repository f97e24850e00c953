//! The kernel driver's own opinion of what it got.

/// Counters that a network without faults leaves alone, and what it would mean if they moved.
///
/// Those of things that were sent twice (`duplicate_request`, `completer_retry_err`) are not among
/// them: an emulated machine on a busy host answers late, and then both ends rightly ask again.
const AT_REST: &[(&str, &str)] = &[
    ("out_of_seq_request", "the driver missed a request of ours"),
    ("rcvd_seq_err", "we told the driver of a missing request"),
    ("rcvd_rnr_err", "we told the driver that no receive was posted"),
    ("send_rnr_err", "the driver told us that no receive was posted"),
    ("retry_exceeded_err", "the driver gave up"),
    ("retry_rnr_exceeded_err", "the driver gave up waiting for a receive"),
    ("send_err", "the driver could not send"),
    ("link_downed", "the link went down"),
];

/// Datagrams that came, and those that the driver took: the difference was refused, for a wrong
/// ICRC among others, of which it has no counter.
const CAME: &str = "udp_received";
const TAKEN: &str = "rcvd_pkts";

/// One in so many may be refused: a program at the kernel's end that has all it wants takes its
/// queue pair away, and what we send again because its last answer is late finds none.
const LATE: u64 = 10;

/// A reading of all counters.
pub(super) type Reading = Vec<(String, u64)>;

fn value(reading: &Reading, name: &str) -> u64 {
    reading.iter().find(|(counter, _)| counter == name).map_or(0, |(_, value)| *value)
}

/// What should not have happened between two readings, on a network without faults.
pub(super) fn complaints(before: &Reading, after: &Reading) -> Vec<String> {
    let moved = |name: &str| value(after, name).saturating_sub(value(before, name));
    let mut complaints: Vec<String> = AT_REST
        .iter()
        .filter(|(name, _)| moved(name) > 0)
        .map(|(name, meaning)| format!("{name} went up by {}: {meaning}", moved(name)))
        .collect();
    complaints.extend(refused(before, after));
    complaints
}

/// Whether the driver refused more packets between two readings than may come too late. Loss on
/// our side is no excuse.
pub(super) fn refused(before: &Reading, after: &Reading) -> Option<String> {
    let moved = |name: &str| value(after, name).saturating_sub(value(before, name));
    let refused = moved(CAME).saturating_sub(moved(TAKEN));
    (refused > moved(CAME) / LATE)
        .then(|| format!("the driver refused {refused} of {} packets", moved(CAME)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(pairs: &[(&str, u64)]) -> Reading {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn only_faults_are_complained_of() {
        let before = reading(&[("rcvd_pkts", 5), ("udp_received", 7), ("send_err", 1)]);
        let fine = reading(&[
            ("rcvd_pkts", 14),
            ("udp_received", 17),
            ("send_err", 1),
            ("duplicate_request", 3),
        ]);
        assert_eq!(complaints(&before, &fine), Vec::<String>::new());
        let bad = reading(&[("rcvd_pkts", 13), ("udp_received", 17), ("send_err", 2)]);
        assert_eq!(
            complaints(&before, &bad),
            [
                "send_err went up by 1: the driver could not send",
                "the driver refused 2 of 10 packets"
            ]
        );
    }
}
