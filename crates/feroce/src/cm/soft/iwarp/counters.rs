//! Handshakes that came to nothing, by reason.

use feroce_engine::iwarp::HandshakeError;
use feroce_link::LinkCounters;
use feroce_wire::iwarp::mpa::StartupError;

/// Counts handshakes that came to nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    not_mpa: u64,
    private_data: u64,
    revision: u64,
    no_setup: u64,
    too_many_reads: u64,
    no_ready_to_receive: u64,
    /// The initiator sent more than its request.
    pub(super) early_data: u64,
    /// The peer ended the stream before its frame was whole.
    pub(super) cut: u64,
    /// The peer did not send its frame in time.
    pub(super) late: u64,
    /// Too many peers had not sent their request.
    pub(super) crowded_out: u64,
}

impl Counters {
    /// The frame of the peer is wrong.
    pub(super) fn refuse(&mut self, error: &HandshakeError) {
        match error {
            HandshakeError::NotMpa(StartupError::PrivateDataTooLong(_)) => self.private_data += 1,
            HandshakeError::Revision(_) => self.revision += 1,
            HandshakeError::NoSetup => self.no_setup += 1,
            HandshakeError::TooManyReads { .. } => self.too_many_reads += 1,
            HandshakeError::NoReadyToReceive => self.no_ready_to_receive += 1,
            // The other errors say that there is no startup frame.
            _ => self.not_mpa += 1,
        }
    }

    /// All of them, by name.
    pub(super) fn list(&self) -> LinkCounters {
        vec![
            ("mpa_refused_not_mpa", self.not_mpa),
            ("mpa_refused_private_data", self.private_data),
            ("mpa_refused_revision", self.revision),
            ("mpa_refused_no_setup", self.no_setup),
            ("mpa_refused_reads", self.too_many_reads),
            ("mpa_refused_ready_to_receive", self.no_ready_to_receive),
            ("mpa_refused_early_data", self.early_data),
            ("mpa_refused_cut", self.cut),
            ("mpa_refused_late", self.late),
            ("mpa_refused_crowded_out", self.crowded_out),
        ]
    }
}
