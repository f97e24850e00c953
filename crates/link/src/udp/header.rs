//! What the IP header of a packet says besides addresses: the class of traffic, whether there is
//! congestion, and how many hops were left.
//!
//! The kernel says it in control messages, for which the whole header of a message is copied there
//! and back: between two ends of one machine that is a fifteenth of the latency of a short message.
//! From packet to packet of one flow it hardly ever differs. So once it has long been the same, one
//! packet in eight is asked for it, and the others are taken to say the same: at the pace at which
//! two processes of one machine play ping-pong, that is as often as a sender may be told of
//! congestion (every 50 us). Only the packets of a gate go without, and only while they come one
//! by one: those that fill a path come with all that is said of them.
//!
//! What this costs: of a single packet that says something else, seven times in eight nobody hears;
//! nor do a header that a datagram brings, a counter or a capture. So each time that one is found
//! out, it takes twice as long until the others are believed again: a flow that several classes of
//! traffic share, or on which congestion comes and goes, is soon asked all the time.

/// How many packets in a row must have said the same before others are not asked; at first, and at
/// most.
const SAME: u32 = 64;
const SAME_MOST: u32 = 1 << 20;
/// How many in a row are not asked then.
const UNASKED: u32 = 7;

/// What the header of one packet says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Header {
    /// With the two bits that are about congestion.
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
}

impl Header {
    fn says_congestion(self) -> bool {
        self.traffic_class & 3 == 3
    }
}

/// What the headers of one flow say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Headers {
    last: Header,
    /// How many that were asked have said that in a row.
    same: u32,
    /// How many it takes.
    enough: u32,
    /// How many of those to come are not asked.
    unasked: u32,
}

impl Default for Headers {
    fn default() -> Self {
        Self { last: Header::default(), same: 0, enough: SAME, unasked: 0 }
    }
}

impl Headers {
    /// What the next packet says, if it is not asked.
    #[inline]
    pub(super) fn known(&self) -> Option<Header> {
        (self.unasked > 0).then_some(self.last)
    }

    /// A packet has come that was not asked.
    #[inline]
    pub(super) fn passed(&mut self) {
        self.unasked -= 1;
    }

    /// A packet has said this.
    pub(super) fn said(&mut self, header: Header) {
        let is_same = header == self.last && !header.says_congestion();
        if !is_same && self.same >= self.enough {
            // Others may have said so before it.
            self.enough = (2 * self.enough).min(SAME_MOST);
        }
        self.last = header;
        self.same = if is_same { self.same.saturating_add(1) } else { 0 };
        self.unasked = if self.same >= self.enough { UNASKED } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Header = Header { traffic_class: 2, hop_limit: 64 };
    const MARKED: Header = Header { traffic_class: 3, ..USUAL };

    /// How many of the next packets say what they say, if all say `header`, and how many are asked.
    fn play(headers: &mut Headers, header: Header, packets: u32) -> (u32, u32) {
        let (mut right, mut asked) = (0, 0);
        for _ in 0..packets {
            match headers.known() {
                Some(known) => {
                    right += u32::from(known == header);
                    headers.passed();
                }
                None => {
                    (right, asked) = (right + 1, asked + 1);
                    headers.said(header);
                }
            }
        }
        (right, asked)
    }

    #[test]
    fn what_is_long_the_same_is_asked_of_one_in_eight() {
        let mut headers = Headers::default();
        assert_eq!(play(&mut headers, USUAL, 1 + SAME), (1 + SAME, 1 + SAME));
        assert_eq!(play(&mut headers, USUAL, 800), (800, 100));
    }

    #[test]
    fn what_changes_is_asked_of_all_within_eight_packets() {
        let mut headers = Headers::default();
        play(&mut headers, USUAL, 1 + SAME);
        let other = Header { hop_limit: 63, ..USUAL };
        let (right, asked) = play(&mut headers, other, UNASKED + SAME);
        assert_eq!((right, asked), (SAME, SAME));
    }

    #[test]
    fn whoever_changes_often_is_asked_more_often() {
        let mut headers = Headers::default();
        let mut asked = 0;
        for _ in 0..10 {
            play(&mut headers, USUAL, 2_000);
            // All of these are heard but the first few, if any.
            asked = play(&mut headers, MARKED, 20).1;
            assert!(asked >= 20 - UNASKED);
        }
        assert_eq!(asked, 20);
    }

    #[test]
    fn congestion_is_never_taken_for_granted() {
        let mut headers = Headers::default();
        assert_eq!(play(&mut headers, MARKED, 1_000), (1_000, 1_000));
        play(&mut headers, USUAL, 1 + SAME);
        play(&mut headers, MARKED, UNASKED);
        assert_eq!(play(&mut headers, MARKED, 100), (100, 100));
    }
}
