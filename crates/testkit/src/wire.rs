//! A wire without loss that delivers whole trains and allocates nothing: for measurements.

use feroce_engine::Engine;
use feroce_train::{Ecn, Instant, RxMeta, RxTrain, Train};

use crate::CAPS;

/// Trains that one host sends before the other has its turn, like packets received by one call.
const BURST: u32 = 32;

/// Carries trains between two engines, as bytes in one buffer.
#[derive(Debug)]
pub struct Wire {
    /// The time.
    pub now: Instant,
    bytes: Vec<u8>,
}

impl Wire {
    /// A wire whose clock starts at `now`.
    pub fn new(now: Instant) -> Self {
        Self { now, bytes: vec![0; 1 << 17] }
    }

    /// Carries trains both ways until neither engine has any to send.
    #[inline]
    pub fn run(&mut self, a: &mut Engine, b: &mut Engine) {
        loop {
            self.now = self.now.plus_nanos(1000);
            let there = self.carry(a, b);
            let back = self.carry(b, a);
            if there + back == 0 {
                return;
            }
        }
    }

    /// Carries up to one burst. Returns the number of trains.
    #[inline]
    fn carry(&mut self, from: &mut Engine, to: &mut Engine) -> u32 {
        for sent in 0..BURST {
            // Borrowed from the `Option` instead of moved out of it, because a `Train` is large.
            let next = from.poll_transmit(self.now, &CAPS);
            let Some(train) = &next else {
                from.trains_read();
                return sent;
            };
            self.deliver(train, to);
        }
        from.trains_read();
        BURST
    }

    /// Delivers a train as bytes.
    #[inline]
    fn deliver(&mut self, train: &Train, to: &mut Engine) {
        let mut len = 0;
        for i in 0..train.count {
            len += train.emit(i, &mut self.bytes[len..]);
        }
        let meta = RxMeta { ecn: Ecn::Capable, ..RxMeta::from(&train.path) };
        let (bytes, stride) = (&self.bytes[..len], train.packet_len(0));
        to.handle_rx(self.now, &RxTrain { meta, bytes, stride, trailer: 0, remote: None });
    }
}
