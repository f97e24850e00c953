//! The record of a scene, in order: packets as the taps see them, and actions of the programs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce::wire::Packet;
use feroce::{Cqe, Direction, Gid, Instant, Seen, Tap, WcOpcode};

use crate::ladder::Side;
use crate::style::Ink;

/// An entry of the record.
#[derive(Clone, Debug)]
pub(super) enum Entry {
    /// An adapter sent or received a packet.
    Packet {
        /// The side of the adapter.
        side: Side,
        /// Sent or received.
        direction: Direction,
        /// Time by the clock of the adapter.
        at: Instant,
        /// Time by the clock of this machine.
        wall: std::time::Instant,
        /// Its destination address.
        dst: Gid,
        /// The packet from its base transport header to its padding.
        bytes: Vec<u8>,
    },
    /// A program posted a work request or took a completion.
    Note {
        /// The side of the program.
        side: Side,
        /// The text to show.
        text: String,
        /// Its colour: event, success or failure.
        ink: Ink,
    },
}

/// Collects the entries.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    log: Mutex<Vec<Entry>>,
}

impl Recorder {
    /// A tap for the adapter of `side`.
    pub(super) fn tap(self: &Arc<Self>, side: Side) -> Arc<dyn Tap> {
        Arc::new(SideTap { side, recorder: Arc::clone(self) })
    }

    /// Records an action of a program.
    pub(super) fn note(&self, side: Side, text: impl Into<String>) {
        self.log().push(Entry::Note { side, text: text.into(), ink: Ink::Event });
    }

    /// Records that a program took a completion. The entry goes where the adapter created the
    /// completion: after the packet that caused it, which may be before packets of the other side
    /// that were recorded since.
    pub(super) fn completion(&self, side: Side, cqe: &Cqe, text: String, ink: Ink) {
        let is_receive = matches!(cqe.opcode, WcOpcode::Recv | WcOpcode::RecvWriteImm);
        let is_cause = |entry: &Entry| match entry {
            Entry::Packet { side: of, direction, at, .. } => {
                let fits = !is_receive || *direction == Direction::Received;
                *of == side && fits && *at <= cqe.timestamp
            }
            Entry::Note { side: of, .. } => *of == side,
        };
        let mut log = self.log();
        let at = log.iter().rposition(is_cause).map_or(0, |i| i + 1);
        log.insert(at, Entry::Note { side, text, ink });
    }

    /// Whether the adapter of `side` has sent a packet for which `test` holds.
    pub(super) fn has_sent(&self, side: Side, test: impl Fn(&Packet<'_>) -> bool) -> bool {
        self.log().iter().any(|entry| match entry {
            Entry::Packet { side: of, direction: Direction::Sent, bytes, .. } if *of == side => {
                Packet::parse(bytes).is_ok_and(|packet| test(&packet))
            }
            _ => false,
        })
    }

    /// Takes all entries.
    pub(super) fn take(&self) -> Vec<Entry> {
        std::mem::take(&mut *self.log())
    }

    fn log(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Records the packets of one adapter.
#[derive(Debug)]
struct SideTap {
    side: Side,
    recorder: Arc<Recorder>,
}

impl Tap for SideTap {
    #[expect(clippy::disallowed_methods, reason = "two adapters have no clock in common")]
    fn see(&self, packet: &Seen<'_>) {
        let mut log = self.recorder.log();
        log.push(Entry::Packet {
            side: self.side,
            direction: packet.direction,
            at: packet.at,
            wall: std::time::Instant::now(),
            dst: packet.dst,
            bytes: packet.bytes.to_vec(),
        });
    }
}

#[cfg(test)]
mod tests {
    use feroce::{Qpn, WcStatus};

    use super::*;

    fn see(recorder: &Arc<Recorder>, side: Side, direction: Direction, at: u64) {
        let (at, gid) = (Instant::from_nanos(at), Gid::ZERO);
        recorder.tap(side).see(&Seen { direction, at, src: gid, dst: gid, bytes: &[] });
    }

    #[test]
    fn completions_stand_behind_their_cause() {
        let recorder = Arc::new(Recorder::default());
        recorder.note(Side::Left, "post");
        see(&recorder, Side::Left, Direction::Sent, 10);
        see(&recorder, Side::Right, Direction::Received, 1000);
        see(&recorder, Side::Right, Direction::Sent, 1000);
        see(&recorder, Side::Left, Direction::Received, 30);
        let cqe = |opcode, at| {
            Cqe::new(1, Qpn::new(2), opcode, WcStatus::Success, Instant::from_nanos(at))
        };
        let done = |side, opcode, at, text: &str| {
            recorder.completion(side, &cqe(opcode, at), text.to_owned(), Ink::Good);
        };
        done(Side::Left, WcOpcode::Send, 30, "sent");
        done(Side::Right, WcOpcode::Recv, 1000, "received");
        let story: Vec<String> = recorder
            .take()
            .iter()
            .map(|entry| match entry {
                Entry::Packet { side, direction, .. } => format!("{side:?} {direction:?}"),
                Entry::Note { text, .. } => text.clone(),
            })
            .collect();
        assert_eq!(
            story,
            [
                "post",
                "Left Sent",
                "Right Received",
                "received",
                "Right Sent",
                "Left Received",
                "sent"
            ]
        );
    }
}
