//! What programs say to the process of an InfiniBand fabric, and what it answers.

use feroce_umad::{Answer, Joiner, Piece, Request, pieces};

/// Requests, answers and pieces of long datagrams: what is read is written again as it was.
pub fn umad_messages(bytes: &[u8]) {
    if let Some(request) = Request::parse(bytes) {
        assert_eq!(Request::parse(&request.emit()), Some(request));
    }
    if let Some(answer) = Answer::parse(bytes) {
        assert_eq!(Answer::parse(&answer.emit()), Some(answer));
    }
    let mut joiner = Joiner::default();
    for piece in bytes.chunks(64) {
        if let Some(whole) = joiner.take(piece) {
            // Nothing is made up: the whole is what its pieces held.
            assert!(whole.len() <= bytes.len());
            assert!(Piece::parse(piece).is_some_and(|last| last.total == whole.len()));
        }
    }
    let mut joiner = Joiner::default();
    let joined = pieces(bytes).filter_map(|piece| joiner.take(&piece)).last();
    assert_eq!(joined.as_deref(), (!bytes.is_empty()).then_some(bytes));
}
