//! Which rings of programs the process of a fabric looks at.
//!
//! It looks at those through which packets came a moment ago. At the others it looks again when
//! their programs ring, so that programs that are quiet cost nothing, however many there are.

use std::collections::BTreeMap;

use super::conn::{Conn, ConnId};

/// How often the process finds a ring empty before it looks at it no more.
const PATIENCE: u32 = 4096;

/// The connections whose rings the process looks at.
#[derive(Debug, Default)]
pub(super) struct Mail {
    awake: Vec<Awake>,
}

#[derive(Debug)]
struct Awake {
    id: ConnId,
    /// How often in turn its ring was empty.
    quiet: u32,
}

impl Mail {
    /// A program has rung: the process looks at its ring from now on.
    pub(super) fn awaken(&mut self, id: ConnId) {
        if self.awake.iter().all(|awake| awake.id != id) {
            self.awake.push(Awake { id, quiet: 0 });
        }
    }

    /// The same with the connections themselves. Those with messages are appended to `unread`.
    pub(super) fn of<'a>(
        &'a mut self,
        conns: &'a mut BTreeMap<ConnId, Conn>,
        unread: &'a mut Vec<ConnId>,
    ) -> Looking<'a> {
        Looking { awake: &mut self.awake, conns, unread }
    }
}

/// A look at rings.
#[derive(Debug)]
pub(super) struct Looking<'a> {
    awake: &'a mut Vec<Awake>,
    conns: &'a mut BTreeMap<ConnId, Conn>,
    unread: &'a mut Vec<ConnId>,
}

impl Looking<'_> {
    /// Finds the connections with messages. Returns whether there are some.
    pub(super) fn look(&mut self) -> bool {
        let before = self.unread.len();
        let (conns, unread) = (&mut *self.conns, &mut *self.unread);
        self.awake.retain_mut(|awake| {
            let Some(conn) = conns.get_mut(&awake.id) else { return false };
            if conn.has_mail() {
                unread.push(awake.id);
                awake.quiet = 0;
                return true;
            }
            awake.quiet += 1;
            // A message that comes meanwhile is found by the next look.
            awake.quiet <= PATIENCE || conn.rings().is_some_and(|rings| !rings.arm())
        });
        unread.len() > before
    }

    /// Prepares for a sleep: looks at no ring any more that is empty. Returns whether some are not.
    pub(super) fn sleep(&mut self) -> bool {
        let conns = &mut *self.conns;
        self.awake.retain_mut(|awake| {
            let rings = conns.get_mut(&awake.id).and_then(Conn::rings);
            rings.is_some_and(|rings| !rings.arm())
        });
        self.look()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::thread;

    use feroce_link::Logger;
    use feroce_link::port::{MAX_MESSAGE, PortChannel, PortListener, PortSocket, Received, Sent};
    use feroce_local::RingChannel;

    use super::super::conn::Role;
    use super::*;

    /// A program, and the fabric's connection to it.
    fn program(name: &str) -> (Box<dyn PortChannel>, Conn) {
        let path = PathBuf::from(format!("\0feroce-mail-{name}-{}", std::process::id()));
        let listener = PortListener::bind(&path).unwrap();
        let socket = PortSocket::connect(&path).unwrap();
        let mut conn = Conn::new(listener.accept().unwrap().unwrap());
        conn.role = Role::ATTACHED;
        let channel = thread::scope(|scope| {
            let offering = scope.spawn(|| RingChannel::offer(socket, &Logger::default()).unwrap());
            while conn.rings().is_none() {
                assert!(conn.hear(), "the program is there");
            }
            offering.join().unwrap()
        });
        (channel, conn)
    }

    #[test]
    fn a_quiet_ring_is_left_alone_until_its_program_rings() {
        let (mut busy, one) = program("busy");
        let (mut quiet, two) = program("quiet");
        let mut conns = BTreeMap::from([(1, one), (2, two)]);
        let (mut mail, mut buffer) = (Mail::default(), vec![0; MAX_MESSAGE]);
        for _ in 0..2 {
            mail.awaken(1);
            mail.awaken(2);
        }
        let mut unread = Vec::new();
        assert!(!mail.of(&mut conns, &mut unread).look());
        assert_eq!(quiet.send(b"quiet"), Sent::Done);
        assert!(mail.of(&mut conns, &mut unread).look());
        assert_eq!(std::mem::take(&mut unread), [2]);
        let two = conns.get_mut(&2).unwrap();
        assert_eq!(two.receive(&mut buffer), Received::Message(5));
        assert!(two.hear(), "the process is there");
        for _ in 0..=PATIENCE {
            assert_eq!(busy.send(b"busy"), Sent::Done);
            assert!(mail.of(&mut conns, &mut unread).look());
            let one = conns.get_mut(&1).unwrap();
            assert_eq!(one.receive(&mut buffer), Received::Message(4));
        }
        unread.clear();
        // The process looks at the second ring no more: its program rings.
        assert_eq!(quiet.send(b"again"), Sent::Done);
        assert!(!mail.of(&mut conns, &mut unread).look());
        assert_eq!(conns[&2].socket.receive(&mut buffer), Received::Message(1));
        mail.awaken(2);
        assert!(mail.of(&mut conns, &mut unread).look());
        assert_eq!(std::mem::take(&mut unread), [2]);
        // Before it sleeps, it looks once more, and a program that rings wakes it.
        assert!(mail.of(&mut conns, &mut unread).sleep());
        let two = conns.get_mut(&2).unwrap();
        assert_eq!(two.receive(&mut buffer), Received::Message(5));
        assert!(!mail.of(&mut conns, &mut unread).sleep());
        assert_eq!(busy.send(b"bell"), Sent::Done);
        assert_eq!(conns[&1].socket.receive(&mut buffer), Received::Message(1));
    }
}
