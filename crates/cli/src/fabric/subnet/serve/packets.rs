//! Packets between the processes that are attached to ports and the subnet.

use feroce_link::port::{CREDIT_LEN, Record};
use feroce_train::Instant;
use nix::sys::epoll::EpollFlags;

use super::super::conn::ConnId;
use super::super::data::Told;
use super::{Server, now};

/// Messages with packets that are taken from a process before its port leaves a group: as many as
/// the credit of a process allows to be under way, if each has one short packet.
const MAX_BEFORE_LEAVING: usize = 4096;

impl Server {
    /// The socket of a process is ready.
    pub(super) fn take_ready(&mut self, id: ConnId, events: EpollFlags) -> anyhow::Result<()> {
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        if !conn.is_socket() {
            // The process has sent something, or has made room, or has ended.
            if !conn.hear() {
                let _ = self.epoll.delete(&conn.socket);
            }
            self.processes.has_room(id);
            self.mail.awaken(id);
        } else if events.contains(EpollFlags::EPOLLOUT) {
            self.processes.has_room(id);
            self.set_full(id, false)?;
        }
        self.unread.push(id);
        Ok(())
    }

    /// Takes packets that a process has sent, in so many messages at most.
    pub(super) fn read_packets(&mut self, id: ConnId, most: usize) -> anyhow::Result<()> {
        for _ in 0..most {
            if !self.read_message(id) {
                break;
            }
            self.hand_out(now())?;
        }
        Ok(())
    }

    /// Takes the packets of a message of a process. False: there is none.
    fn read_message(&mut self, id: ConnId) -> bool {
        let Some(len) = self.receive(id) else { return false };
        let now = now();
        let message = self.buffer.get(..len).unwrap_or_default();
        let mut rest = message.get(CREDIT_LEN..).unwrap_or_default();
        let mut keeps_to_credit = true;
        while keeps_to_credit && let Some(record) = Record::take(&mut rest) {
            keeps_to_credit = self.processes.send(now, id, &record, &mut self.subnet);
        }
        self.taps.show_data(&mut self.subnet, self.processes.take_passed());
        if !keeps_to_credit {
            eprintln!("feroce: a program has sent more than its credit, and is cut off");
            self.close(id);
        }
        keeps_to_credit
    }

    /// Tells processes what has arrived for them.
    pub(super) fn hand_out(&mut self, now: Instant) -> anyhow::Result<()> {
        for id in self.processes.ready() {
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            let to = (conn, &mut self.message);
            match self.processes.tell(now, id, to, &mut self.subnet) {
                Told::All => {}
                Told::Full => self.set_full(id, true)?,
                Told::Gone => self.close(id),
            }
        }
        self.taps.show_data(&mut self.subnet, self.processes.take_passed());
        Ok(())
    }

    /// Has the ports leave groups that their processes take part in no more.
    pub(super) fn leave_groups(&mut self) -> anyhow::Result<()> {
        for (id, member) in std::mem::take(&mut self.leaving) {
            // When the subnet manager hears of it, switches forward no more from this port to the
            // group. What the port has sent before goes first.
            for process in self.processes.of(member.at) {
                // It is told of no credit meanwhile, so this ends.
                let messages = 0..MAX_BEFORE_LEAVING;
                messages.take_while(|_| self.read_message(process)).for_each(drop);
            }
            self.hand_out(now())?;
            // The answer is nothing that programs wait for; its number is that of the connection.
            if let Some(packet) = member.leave(&self.subnet, id as u32) {
                self.subnet.send(now(), member.at, packet);
            }
        }
        Ok(())
    }
}
