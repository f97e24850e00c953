//! iWARP: startup frames that are almost right.

use std::collections::BTreeMap;

use fastrand::Rng;
use feroce_engine::iwarp::{HandshakeConfig, Initiator, Responder};

use super::iwarp_malformed::{asked, mutate_bytes, seed};

/// Frames of both roles that are almost right, cut anywhere: both sides take no more than a frame.
#[test]
fn startup_frames_that_are_almost_right() {
    let mut rng = Rng::with_seed(seed());
    let mut ends = BTreeMap::new();
    for _ in 0..asked().unwrap_or(6000) {
        let revision = rng.u8(1..3);
        let config = HandshakeConfig { revision, crc: rng.bool(), ..HandshakeConfig::default() };
        let private_data = vec![7; rng.usize(..300)];
        let (mut initiator, request) = Initiator::new(config, &private_data).unwrap();
        let mut responder = Responder::new(HandshakeConfig::default());
        let is_reply = rng.bool();
        let mut frame = request.clone();
        if is_reply {
            let request = responder.handle(&mut &*request).unwrap().unwrap();
            frame = match rng.bool() {
                true => request.accept(&private_data).unwrap().1,
                false => request.reject(&private_data).unwrap(),
            };
            responder = Responder::new(HandshakeConfig::default());
        }
        for _ in 0..rng.usize(..4) {
            mutate_bytes(&mut rng, &mut frame, &[16, 18, 20]);
        }
        let (mut taken, mut rest) = (0, &frame[..]);
        let end = loop {
            let (now, later) = rest.split_at(rng.usize(1..100).min(rest.len()));
            rest = later;
            let mut now = now;
            let before = now.len();
            let end = match is_reply {
                true => initiator.handle(&mut now).map(|reply| reply.map(|_| "a reply")),
                false => responder.handle(&mut now).map(|request| {
                    let request = request?;
                    Some(request.accept(b"").map_or("no setup in common", |_| "a request"))
                }),
            };
            taken += before - now.len();
            match end {
                Ok(None) if rest.is_empty() => break "cut".to_owned(),
                Ok(None) => {}
                Ok(Some(what)) => break what.to_owned(),
                Err(error) => break format!("{error:?}").split(['(', ' ']).next().unwrap().into(),
            }
        };
        assert!(taken <= 20 + 512, "{taken}");
        *ends.entry(end).or_insert(0) += 1;
    }
    eprintln!("{ends:#?}");
    assert!(ends.len() >= 6, "{ends:?}");
}
