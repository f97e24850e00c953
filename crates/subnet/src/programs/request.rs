//! Requests that wait for a response.

use alloc::vec::Vec;

use feroce_train::Instant;
use feroce_wire::mad::MadHeader;

use super::{FileId, Programs, UserMad};
use crate::packet::{MadPacket, PortRef};
use crate::subnet::Subnet;

const NANOS_PER_MILLI: u64 = 1_000_000;

#[derive(Debug)]
pub(super) struct Request {
    pub(super) file: FileId,
    /// Upper half of its transaction.
    pub(super) agent: u32,
    at: PortRef,
    packet: MadPacket,
    /// What the program gets back if no response arrives: the header of the datagram.
    failed: UserMad,
    pub(super) deadline: Instant,
    timeout_ms: u32,
    retries: u32,
}

pub(super) fn after_millis(now: Instant, millis: u32) -> Instant {
    now.plus_nanos(u64::from(millis) * NANOS_PER_MILLI)
}

impl Programs {
    /// Waits for the response to a request.
    pub(super) fn expect(
        &mut self,
        now: Instant,
        file: FileId,
        agent: u32,
        at: PortRef,
        packet: &MadPacket,
        mad: &UserMad,
    ) {
        let Ok((header, _)) = MadHeader::parse(&packet.mad) else {
            return;
        };
        let failed = UserMad {
            status: UserMad::TIMED_OUT,
            data: packet.mad[..MadHeader::LEN].to_vec(),
            ..mad.clone()
        };
        let (timeout_ms, retries) = (mad.timeout_ms, mad.retries);
        let deadline = after_millis(now, timeout_ms);
        let packet = packet.clone();
        let request = Request { file, agent, at, packet, failed, deadline, timeout_ms, retries };
        let serial = self.next_serial();
        self.requests.insert((header.transaction, serial), request);
    }

    /// A response ends the request that it answers; false if there is none.
    pub(super) fn finish(&mut self, header: &MadHeader, packet: &MadPacket) -> bool {
        let range = (header.transaction, 0)..=(header.transaction, u64::MAX);
        let answers = |request: &Request| request.packet.mad[1] == packet.mad[1];
        let found = self.requests.range(range).find(|(_, request)| answers(request));
        let key = found.map(|(key, _)| *key);
        key.is_some_and(|key| self.requests.remove(&key).is_some())
    }

    pub(super) fn repeat_requests(&mut self, now: Instant, subnet: &mut Subnet) {
        let is_due = |request: &Request| request.deadline <= now;
        let due = self.requests.iter().filter(|(_, request)| is_due(request));
        let due: Vec<(u64, u64)> = due.map(|(key, _)| *key).collect();
        for key in due {
            let Some(request) = self.requests.get_mut(&key) else {
                continue;
            };
            if request.retries > 0 {
                request.retries -= 1;
                request.deadline = after_millis(now, request.timeout_ms);
                let (at, packet) = (request.at, request.packet.clone());
                subnet.send(now, at, packet);
            } else if let Some(request) = self.requests.remove(&key) {
                self.deliver(request.file, request.failed);
            }
        }
    }
}
