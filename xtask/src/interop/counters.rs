//! The counters of the kernel driver, which show whether it accepted our packets.

/// What is expected of the counters over a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Counters {
    /// None of those that count errors moves.
    AtRest,
    /// The same, but the program ends while messages are under way to its queue pairs:
    /// `ibv_srq_pingpong` has several, and exits when it has received enough.
    Leaving,
    /// Packets are lost on our side, but none is refused, except for a [`PROBE`].
    Lossy,
    /// The row tests errors.
    Free,
}

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

/// Never excused: to the programs, a packet with a wrong ICRC looks the same as a lost one.
const ICRC: &[(&str, &str)] = &[
    ("icrc_wrong", "the driver found the ICRC of a packet of ours wrong"),
    ("icrc_missed", "the driver checked ICRCs that the probe missed"),
    ("kernel_faults", "the kernel reports a fault of its own; see the console of the guest"),
];

/// Datagrams that came, and those that the driver took: the difference was for queue pairs that are
/// not there, once all ICRCs are right.
const CAME: &str = "udp_received";
const TAKEN: &str = "rcvd_pkts";

/// One in so many may come for a queue pair that is gone, if the program leaves early.
const LATE: u64 = 10;

/// A program that has received its last message ends, although we do not know that the message has
/// arrived. If the acknowledgement is late, we probe, and the queue pair is gone.
const PROBE: u64 = 1;

/// A reading of all counters.
pub(super) type Reading = Vec<(String, u64)>;

fn value(reading: &Reading, name: &str) -> u64 {
    reading.iter().find(|(counter, _)| counter == name).map_or(0, |(_, value)| *value)
}

/// What should not have happened between two readings.
pub(super) fn complaints(expected: Counters, before: &Reading, after: &Reading) -> Vec<String> {
    let moved = |name: &str| value(after, name).saturating_sub(value(before, name));
    let mut complaints = Vec::new();
    let at_rest: &[_] = match expected {
        Counters::AtRest | Counters::Leaving => AT_REST,
        Counters::Lossy | Counters::Free => &[],
    };
    for (name, meaning) in ICRC.iter().chain(at_rest).filter(|(name, _)| moved(name) > 0) {
        complaints.push(format!("{name} went up by {}: {meaning}", moved(name)));
    }
    let refused = moved(CAME).saturating_sub(moved(TAKEN));
    if moved("icrc_checked") < moved(TAKEN) {
        complaints.push("the driver took packets whose ICRC it did not check".into());
    }
    let may_be_refused = match expected {
        Counters::AtRest => 0,
        Counters::Lossy => PROBE,
        Counters::Leaving => moved(CAME) / LATE,
        Counters::Free => u64::MAX,
    };
    if refused > may_be_refused {
        complaints.push(format!("the driver refused {refused} of {} packets", moved(CAME)));
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(pairs: &[(&str, u64)]) -> Reading {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    fn after(expected: Counters, pairs: &[(&str, u64)]) -> Vec<String> {
        let before = reading(&[("rcvd_pkts", 5), ("udp_received", 7), ("send_err", 1)]);
        complaints(expected, &before, &reading(pairs))
    }

    #[test]
    fn only_faults_are_complained_of() {
        let none = Vec::<String>::new();
        let fine = [("rcvd_pkts", 15), ("udp_received", 17), ("send_err", 1), ("icrc_checked", 10)];
        assert_eq!(after(Counters::AtRest, &fine), none);
        let again = [("duplicate_request", 3)];
        assert_eq!(after(Counters::AtRest, &[&fine[..], &again].concat()), none);
        let bad = [("rcvd_pkts", 13), ("udp_received", 17), ("send_err", 2), ("icrc_checked", 8)];
        let wanted = [
            "send_err went up by 1: the driver could not send",
            "the driver refused 2 of 10 packets",
        ];
        assert_eq!(after(Counters::AtRest, &bad), wanted);
        assert_eq!(after(Counters::Leaving, &bad), wanted);
        assert_eq!(after(Counters::Lossy, &bad), wanted[1..]);
        assert_eq!(after(Counters::Free, &bad), none);
        let late = [("rcvd_pkts", 14), ("udp_received", 17), ("send_err", 1), ("icrc_checked", 9)];
        assert_eq!(after(Counters::Leaving, &late), none);
        assert_eq!(after(Counters::Lossy, &late), none);
        assert_eq!(after(Counters::AtRest, &late), ["the driver refused 1 of 10 packets"]);
    }

    #[test]
    fn a_wrong_icrc_is_never_excused() {
        let wrong = reading(&[("icrc_wrong", 1)]);
        for expected in [Counters::AtRest, Counters::Leaving, Counters::Lossy, Counters::Free] {
            assert_eq!(complaints(expected, &Vec::new(), &wrong).len(), 1);
        }
        let unseen = [("rcvd_pkts", 6), ("udp_received", 8), ("send_err", 1)];
        let said = after(Counters::AtRest, &unseen);
        assert_eq!(said, ["the driver took packets whose ICRC it did not check"]);
    }
}
