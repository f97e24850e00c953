//! Messages of several segments that a program sends.

use alloc::vec::Vec;

use feroce_train::Instant;
use feroce_wire::mad::{Class, MAD_LEN, MadHeader, Rmpp, RmppType};

use super::request::after_millis;
use super::{FileId, Programs, RMPP_AT, SendError, UserMad, rmpp};
use crate::packet::{MadPacket, PortRef};
use crate::subnet::Subnet;

/// How long the receiver may take to acknowledge a window, and the whole message.
const ACK_MS: u32 = 2000;
const TOTAL_MS: u32 = 40_000;
/// Bytes of a segment behind the header of transfers, of which the class has some.
pub(super) const SEGMENT_LEN: usize = MAD_LEN - RMPP_AT - Rmpp::LEN;

#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) file: FileId,
    /// Upper half of the transactions of the agent that sends it.
    pub(super) agent: u32,
    at: PortRef,
    /// The first segment, whose headers all others have as well.
    first: MadPacket,
    /// Bytes of headers in each segment.
    head: usize,
    /// The message behind its headers.
    data: Vec<u8>,
    segments: u32,
    sent: u32,
    acknowledged: u32,
    /// The last segment that the receiver has room for.
    window: u32,
    /// The acknowledged segment behind which it was last repeated because of a gap.
    gap: Option<u32>,
    pub(super) deadline: Instant,
    ends: Instant,
    /// A request: what to wait for when it has arrived.
    request: Option<UserMad>,
}

impl Transfer {
    fn segment(&self, number: u32) -> MadPacket {
        let room = MAD_LEN - self.head;
        let from = (number as usize - 1) * room;
        let part = self.data.get(from..).unwrap_or_default();
        let part = &part[..part.len().min(room)];
        let (is_first, is_last) = (number == 1, number == self.segments);
        // Headers of the class count as payload, in every segment (IBTA vol1 13.6.2.1).
        let class_head = (self.head - RMPP_AT - Rmpp::LEN) as u32;
        let length = match (is_first, is_last) {
            (true, _) => self.segments * class_head + self.data.len() as u32,
            (false, true) => class_head + part.len() as u32,
            (false, false) => 0,
        };
        let mut packet = self.first.clone();
        let before = rmpp(&packet.mad).unwrap_or_default();
        let header = Rmpp {
            version: 1,
            kind: RmppType::DATA,
            is_active: true,
            is_first,
            is_last,
            status: 0,
            segment: number,
            length_or_window: length,
            ..before
        };
        packet.mad[RMPP_AT..RMPP_AT + Rmpp::LEN].copy_from_slice(&header.to_bytes());
        packet.mad[self.head..].fill(0);
        packet.mad[self.head..self.head + part.len()].copy_from_slice(part);
        packet
    }

    /// The segments that the window allows.
    fn send(&mut self, now: Instant, subnet: &mut Subnet) {
        while self.sent < self.window.min(self.segments) {
            self.sent += 1;
            let packet = self.segment(self.sent);
            subnet.send(now, self.at, packet);
        }
    }
}

impl Programs {
    pub(super) fn begin_transfer(
        &mut self,
        now: Instant,
        subnet: &mut Subnet,
        file: FileId,
        agent: u32,
        first: MadPacket,
        mad: &UserMad,
    ) -> Result<(), SendError> {
        let head = Class(first.mad[1]).rmpp_header_len();
        let data = mad.data.get(head..).ok_or(SendError::Invalid)?.to_vec();
        let segments = data.len().div_ceil(MAD_LEN - head).max(1);
        let segments = u32::try_from(segments).map_err(|_| SendError::Invalid)?;
        let at = self.files.get(&file).ok_or(SendError::Invalid)?.at;
        let mut transfer = Transfer {
            file,
            agent,
            at,
            first,
            head,
            data,
            segments,
            sent: 0,
            acknowledged: 0,
            window: 1,
            gap: None,
            deadline: after_millis(now, ACK_MS),
            ends: after_millis(now, TOTAL_MS),
            request: (mad.timeout_ms != 0).then(|| mad.clone()),
        };
        transfer.send(now, subnet);
        let serial = self.next_serial();
        self.transfers.insert(serial, transfer);
        Ok(())
    }

    /// The receiver of a message acknowledges segments, or ends the transfer.
    pub(super) fn answer_of_receiver(
        &mut self,
        now: Instant,
        subnet: &mut Subnet,
        at: PortRef,
        packet: &MadPacket,
        answer: &Rmpp,
    ) {
        let transaction = |mad: &[u8]| MadHeader::parse(mad).map(|(header, _)| header.transaction);
        let is_meant = |transfer: &Transfer| {
            let first = &transfer.first;
            transfer.at == at
                && first.dlid == packet.slid
                && first.mad[1] == packet.mad[1]
                && transaction(&first.mad) == transaction(&packet.mad)
        };
        let found = self.transfers.iter().find(|(_, transfer)| is_meant(transfer));
        let Some(key) = found.map(|(key, _)| *key) else {
            return;
        };
        let Some(transfer) = self.transfers.get_mut(&key) else {
            return;
        };
        let (segment, window) = (answer.segment, answer.length_or_window);
        let is_plausible = segment <= transfer.sent && window >= transfer.window;
        if answer.kind == RmppType::ACK && is_plausible && segment < transfer.segments {
            // Nothing new arrived: what follows was lost.
            if segment == transfer.acknowledged && transfer.gap != Some(segment) {
                transfer.gap = Some(segment);
                transfer.sent = segment;
            }
            transfer.acknowledged = transfer.acknowledged.max(segment);
            transfer.window = window;
            transfer.deadline = after_millis(now, ACK_MS);
            return transfer.send(now, subnet);
        }
        if answer.kind == RmppType::ACK && segment != transfer.segments {
            return;
        }
        // All of it has arrived, or the receiver has ended the transfer.
        if let Some(Transfer { file, agent, first, request: Some(mad), .. }) =
            self.transfers.remove(&key)
        {
            self.expect(now, file, agent, at, &first, &mad);
        }
    }

    pub(super) fn repeat_transfers(&mut self, now: Instant, subnet: &mut Subnet) {
        let mut over = Vec::new();
        for (key, transfer) in &mut self.transfers {
            if transfer.ends <= now {
                over.push(*key);
            } else if transfer.deadline <= now {
                transfer.sent = transfer.acknowledged;
                transfer.deadline = after_millis(now, ACK_MS);
                transfer.send(now, subnet);
            }
        }
        for key in over {
            if let Some(Transfer { file, first, request: Some(mad), .. }) =
                self.transfers.remove(&key)
            {
                let data = first.mad[..MadHeader::LEN].to_vec();
                self.deliver(file, UserMad { status: UserMad::TIMED_OUT, data, ..mad });
            }
        }
    }
}
