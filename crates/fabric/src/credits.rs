//! Link credits of InfiniBand (IBTA vol1 7.9): counters of 64-byte blocks, modulo 4096.
//!
//! The sender counts the blocks that it has sent. The receiver tells it up to which count it may
//! send, and the sender tells the receiver its count from time to time, so that blocks of lost
//! packets do not stay lost as credits.

/// Bytes of a block.
const BLOCK: u32 = 64;
/// Counters have twelve bits.
const MASK: u16 = 0xfff;
/// A limit is at most half of the counter's range ahead, so that it can be told from one behind.
const AHEAD: u16 = 2048;

/// Blocks of a packet.
pub fn blocks(len: u32) -> u16 {
    u16::try_from(len.div_ceil(BLOCK)).unwrap_or(u16::MAX)
}

/// What a flow control packet says about a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowControl {
    /// Blocks that its sender has sent (FCTBS).
    pub sent: u16,
    /// Up to which count its receiver may send (FCCL).
    pub limit: u16,
}

/// One virtual lane of a port: what it may send, and what it receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CreditLane {
    /// Blocks sent, and up to which count it may send.
    sent: u16,
    limit: u16,
    /// Blocks received (ABR).
    received: u16,
    /// Blocks of the receive buffer: all, and those that are occupied.
    capacity: u16,
    used: u16,
}

impl CreditLane {
    /// After initialization of the link, with empty buffers of so many bytes at both ends.
    pub fn new(bytes: u64) -> Self {
        let capacity = u16::try_from(bytes / u64::from(BLOCK)).unwrap_or(u16::MAX);
        Self { sent: 0, limit: capacity.min(AHEAD), received: 0, capacity, used: 0 }
    }

    /// The link was initialized again: counters start anew, but the buffer keeps what it holds.
    pub fn restart(&mut self) {
        *self = Self { sent: 0, limit: 0, received: 0, ..*self };
    }

    /// Whether a packet of so many blocks may be sent.
    pub fn may_send(&self, blocks: u16) -> bool {
        self.limit.wrapping_sub(self.sent).wrapping_sub(blocks) & MASK <= AHEAD
    }

    /// Such a packet is sent.
    pub fn send(&mut self, blocks: u16) {
        self.sent = self.sent.wrapping_add(blocks) & MASK;
    }

    /// A packet arrives. False: it does not fit, which a sender that obeys never causes.
    pub fn accept(&mut self, blocks: u16) -> bool {
        if self.capacity - self.used < blocks {
            return false;
        }
        self.used += blocks;
        self.received = self.received.wrapping_add(blocks) & MASK;
        true
    }

    /// A packet leaves the receive buffer.
    pub fn release(&mut self, blocks: u16) {
        self.used -= blocks;
    }

    /// Blocks in the receive buffer.
    pub fn used(&self) -> u16 {
        self.used
    }

    /// What to tell the peer now.
    pub fn flow_control(&self) -> FlowControl {
        let free = (self.capacity - self.used).min(AHEAD);
        FlowControl { sent: self.sent, limit: self.received.wrapping_add(free) & MASK }
    }

    /// The peer tells how much it has sent and how much it takes. True: blocks were lost, and the
    /// peer should hear of the credits that they free.
    pub fn hear(&mut self, flow_control: FlowControl) -> bool {
        self.limit = flow_control.limit;
        let has_lost = self.received != flow_control.sent;
        self.received = flow_control.sent;
        has_lost
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::collections::VecDeque;

    use super::*;

    /// What travels in one direction.
    enum Frame {
        Packet(u16),
        FlowControl(FlowControl),
    }

    /// A sender and a receiver at the ends of a link, with random orders of everything.
    fn play(seed: u64, capacity_blocks: u64, loss: f64) -> (u64, u64) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let bytes = capacity_blocks * u64::from(BLOCK);
        let (mut sender, mut receiver) = (CreditLane::new(bytes), CreditLane::new(bytes));
        let (mut there, mut back) = (VecDeque::new(), VecDeque::new());
        let mut held: VecDeque<u16> = VecDeque::new();
        let (mut sent, mut left) = (0, 0);
        for _ in 0..20_000 {
            match rng.u8(..8) {
                0 | 1 => {
                    let size = rng.u16(1..=66);
                    if sender.may_send(size) {
                        sender.send(size);
                        sent += 1;
                        there.push_back(Frame::Packet(size));
                    }
                }
                2 => there.push_back(Frame::FlowControl(sender.flow_control())),
                3 => back.push_back(receiver.flow_control()),
                4 => {
                    if let Some(flow_control) = back.pop_front()
                        && rng.f64() >= loss
                    {
                        sender.hear(flow_control);
                    }
                }
                5 => {
                    if let Some(size) = held.pop_front() {
                        receiver.release(size);
                        left += 1;
                    }
                }
                _ => match there.pop_front() {
                    Some(_) if rng.f64() < loss => {}
                    Some(Frame::Packet(size)) => {
                        assert!(receiver.accept(size), "seed {seed}: a buffer overflows");
                        held.push_back(size);
                    }
                    Some(Frame::FlowControl(flow_control)) => {
                        receiver.hear(flow_control);
                    }
                    None => {}
                },
            }
            assert!(u64::from(receiver.used()) <= capacity_blocks);
        }
        (sent, left)
    }

    #[test]
    fn a_buffer_never_overflows_and_packets_go_on() {
        for seed in 0..200 {
            let (sent, left) = play(seed, [66, 100, 512, 2048, 4000][seed as usize % 5], 0.0);
            assert!(sent > 300 && left > 290, "seed {seed}: {sent} {left}");
        }
    }

    #[test]
    fn lost_packets_and_lost_flow_control_heal() {
        for seed in 0..200 {
            let (sent, left) = play(seed, [66, 128, 2048][seed as usize % 3], 0.2);
            assert!(sent > 250 && left > 200, "seed {seed}: {sent} {left}");
        }
    }

    #[test]
    fn the_limit_is_exact_and_counters_wrap() {
        let mut lane = CreditLane::new(10 * u64::from(BLOCK));
        assert!(lane.may_send(10) && !lane.may_send(11));
        lane.send(10);
        assert!(!lane.may_send(1));
        // The counters stand just before their end.
        let mut lane = CreditLane { sent: 4090, limit: 4, ..lane };
        assert!(lane.may_send(10) && !lane.may_send(11));
        lane.send(10);
        assert_eq!(lane.sent, 4);
    }
}
