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
        if conn.rings().is_some() {
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
            let Some(len) = self.receive(id) else { return Ok(()) };
            let now = now();
            let message = self.buffer.get(..len).unwrap_or_default();
            let mut rest = message.get(CREDIT_LEN..).unwrap_or_default();
            while let Some(record) = Record::take(&mut rest) {
                self.processes.send(now, id, &record, &mut self.subnet);
            }
            self.taps.show_data(&mut self.subnet, self.processes.take_passed());
            self.hand_out(now)?;
        }
        Ok(())
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
                self.read_packets(process, MAX_BEFORE_LEAVING)?;
            }
            // The answer is nothing that programs wait for; its number is that of the connection.
            if let Some(packet) = member.leave(&self.subnet, id as u32) {
                self.subnet.send(now(), member.at, packet);
            }
        }
        Ok(())
    }
}
