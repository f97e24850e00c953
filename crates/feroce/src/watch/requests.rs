//! Requests to a device: a datagram with the text of the request and the socket for the answer.
//!
//! A snapshot needs no request, and the device answers as soon as a process has connected. What
//! needs one comes in a single datagram, so that the driver thread has all of it at once and never
//! waits for the rest. The kernel adds the user of the sender.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use feroce_local::Ancillary;
use feroce_wire::Qpn;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, bind, sendmsg,
    setsockopt, socket, socketpair, sockopt,
};
use nix::unistd::geteuid;

use super::files::{FLAGS, MOST_AT_ONCE, replace_by_pipe, send_file};

/// What the names of the sockets begin with. The rest is that of the device's other socket.
const PREFIX: &str = "feroce.ask/";

/// Longest request.
const MAX_REQUEST: usize = 4096;

/// What a process asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    /// The last packets of a queue pair.
    Packets(Qpn),
    /// Other faults.
    Fault(String),
}

/// The answer to a request that changes something.
pub(crate) fn outcome(outcome: Result<(), String>) -> String {
    match outcome {
        Ok(()) => "done\n".to_owned(),
        Err(why) => format!("refused\t{}\n", why.replace('\n', " ")),
    }
}

/// Reads such an answer; `None` if it is not complete.
pub(super) fn read_outcome(text: &str) -> Option<Result<(), String>> {
    match text.strip_suffix('\n')?.split_once('\t') {
        None => (text == "done\n").then_some(Ok(())),
        Some((kind, why)) => (kind == "refused").then(|| Err(why.to_owned())),
    }
}

impl Request {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Packets(qpn) => format!("packets\t{}", qpn.get()),
            Self::Fault(text) => format!("fault\t{text}"),
        }
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let (kind, rest) = std::str::from_utf8(text).ok()?.split_once('\t')?;
        match kind {
            "packets" => Some(Self::Packets(Qpn::new(rest.parse().ok()?))),
            "fault" => Some(Self::Fault(rest.to_owned())),
            _ => None,
        }
    }
}

/// The socket at which a device receives requests.
#[derive(Debug)]
pub(super) struct Mailbox {
    fd: OwnedFd,
}

impl Mailbox {
    /// `name` is the random part of the name of the device's sockets.
    pub(super) fn new(name: &str) -> io::Result<Self> {
        let fd = socket(AddressFamily::Unix, SockType::Datagram, FLAGS, None)?;
        setsockopt(&fd, sockopt::PassCred, &true)?;
        bind(fd.as_raw_fd(), &UnixAddr::new_abstract(format!("{PREFIX}{name}").as_bytes())?)?;
        Ok(Self { fd })
    }

    pub(super) fn abandon(&self) {
        replace_by_pipe(&self.fd);
    }

    /// Answers requests of this user, without waiting for any process.
    pub(super) fn answer(&self, mut answer: impl FnMut(Request) -> String) {
        for _ in 0..MOST_AT_ONCE {
            match self.receive() {
                Ok(Some((request, socket))) => {
                    // Where it fails, the process that asked sees the end of its socket.
                    let _ = send_file(&socket, &answer(request));
                }
                // A request of another user, or one that this version does not know.
                Ok(None) => {}
                Err(_) => return,
            }
        }
    }

    fn receive(&self) -> io::Result<Option<(Request, OwnedFd)>> {
        let mut text = [0; MAX_REQUEST];
        let message = Ancillary::receive(self.fd.as_fd(), &mut text, MsgFlags::MSG_DONTWAIT)?;
        let Ancillary { len, is_cut, mut files, user } = message;
        let is_ours = user == Some(geteuid().as_raw());
        let request = Request::parse(text.get(..len).unwrap_or(&[])).filter(|_| is_ours && !is_cut);
        Ok(request.zip(files.pop()))
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Sends a request to the device whose sockets have `name`. The answer comes from the result.
pub(super) fn send(name: &str, request: &Request) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::Stream, None, flags)?;
    let socket = socket(AddressFamily::Unix, SockType::Datagram, FLAGS, None)?;
    let to = UnixAddr::new_abstract(format!("{PREFIX}{name}").as_bytes())?;
    let (text, fds) = (request.text(), [theirs.as_raw_fd()]);
    let (data, rights) = ([IoSlice::new(text.as_bytes())], [ControlMessage::ScmRights(&fds)]);
    sendmsg(socket.as_raw_fd(), &data, &rights, MsgFlags::MSG_NOSIGNAL, Some(&to))?;
    Ok(ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_were_written_and_others_are_not() {
        let request = Request::Packets(Qpn::new(0x123));
        assert_eq!(Request::parse(request.text().as_bytes()), Some(request));
        let request = Request::Fault("loss=1%".to_owned());
        assert_eq!(Request::parse(request.text().as_bytes()), Some(request));
        for said in [Ok(()), Err("no\tlayer".to_owned())] {
            assert_eq!(read_outcome(&outcome(said.clone())), Some(said));
        }
        for wrong in ["", "done", "refused", "refused\n", "a\tb\n"] {
            assert_eq!(read_outcome(wrong), None);
        }
        for wrong in [b"".as_slice(), b"packets", b"packets\t", b"packets\tx", b"\xff\t1", b"a\tb"]
        {
            assert_eq!(Request::parse(wrong), None);
        }
    }

    #[test]
    fn files_that_come_with_nonsense_are_closed() {
        let open = || std::fs::read_dir("/proc/self/fd").expect("a folder").count();
        let name = format!("test-files-{}", std::process::id());
        let mailbox = Mailbox::new(&name).expect("a socket");
        let to = UnixAddr::new_abstract(format!("{PREFIX}{name}").as_bytes()).expect("short");
        let socket = socket(AddressFamily::Unix, SockType::Datagram, FLAGS, None).expect("one");
        let fds = [socket.as_raw_fd(); 9];
        let (data, rights) = ([IoSlice::new(b"nonsense")], [ControlMessage::ScmRights(&fds)]);
        sendmsg(fds[0], &data, &rights, MsgFlags::empty(), Some(&to)).expect("sent");
        let before = open();
        mailbox.answer(|request| unreachable!("{request:?}"));
        assert_eq!(open(), before);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a thread can be of another user")]
    fn a_mailbox_answers_what_it_understands_and_drops_the_rest() {
        let name = format!("test-{}", std::process::id());
        let mailbox = Mailbox::new(&name).expect("a socket");
        let to = UnixAddr::new_abstract(format!("{PREFIX}{name}").as_bytes()).expect("short");
        let socket = socket(AddressFamily::Unix, SockType::Datagram, FLAGS, None).expect("one");
        for bytes in [b"packets\t3".as_slice(), b"", b"nonsense", &[b'x'; 3 * MAX_REQUEST]] {
            let data = [IoSlice::new(bytes)];
            sendmsg(socket.as_raw_fd(), &data, &[], MsgFlags::empty(), Some(&to)).expect("sent");
        }
        let answer = send(&name, &Request::Packets(Qpn::new(7))).expect("sent");
        let mut asked = Vec::new();
        mailbox.answer(|request| {
            asked.push(request);
            "text".to_owned()
        });
        assert_eq!(asked, [Request::Packets(Qpn::new(7))], "those without a socket are dropped");
        let file = super::super::files::receive_file(&answer).expect("an answer");
        let text = io::read_to_string(std::fs::File::from(file)).expect("a file");
        assert_eq!(text, "text");
        // Of another user: the kernel says whose the sending thread is.
        if geteuid().is_root() {
            let name = name.clone();
            let stranger = std::thread::spawn(move || {
                // SAFETY: the call takes numbers, and changes the user of this thread alone.
                let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65534, -1, -1) };
                assert_eq!(changed, 0);
                send(&name, &Request::Packets(Qpn::new(7))).expect("sent")
            });
            let answer = stranger.join().expect("it ends");
            mailbox.answer(|request| unreachable!("{request:?}"));
            assert!(super::super::files::receive_file(&answer).is_err(), "no answer");
        }
        mailbox.abandon();
        assert!(send(&name, &Request::Packets(Qpn::new(7))).is_err(), "the name is free");
    }
}
