//! Sockets of one process, with its own adapter between them.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use feroce::cm::Manager;
use feroce::{Device, Settings};
use feroce_rsocket::{Errno, Socket, close, epoll, find, poll};

/// Long enough for everything that happens in these tests.
const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

/// What a device speaks, and the address that it has for that.
#[derive(Clone, Copy)]
enum Over {
    Roce,
    Iwarp,
}

impl Over {
    fn address(self) -> SocketAddr {
        let number = if matches!(self, Self::Roce) { 1 } else { 2 };
        ([127, 0, 91, number], 0).into()
    }

    fn make(self) -> Manager {
        let mut settings = Settings::default();
        let name = if matches!(self, Self::Roce) { "roce" } else { "iwarp" };
        settings.set("transport", name).expect("a transport");
        let context = Device::at([self.address().ip()]).open_with(settings);
        Manager::with([context.expect("a device on the loopback interface")])
            .expect("a connection manager")
    }

    fn manager(self) -> fn() -> Manager {
        fn roce() -> Manager {
            static MANAGER: OnceLock<Manager> = OnceLock::new();
            MANAGER.get_or_init(|| Over::Roce.make()).clone()
        }
        fn iwarp() -> Manager {
            static MANAGER: OnceLock<Manager> = OnceLock::new();
            MANAGER.get_or_init(|| Over::Iwarp.make()).clone()
        }
        match self {
            Self::Roce => roce,
            Self::Iwarp => iwarp,
        }
    }
}

/// A socket that is bound to a port of its own.
fn bound(over: Over, kind: i32) -> (i32, Socket) {
    let fd = Socket::open(libc::AF_INET, kind, 0, over.manager()).expect("a socket");
    let socket = find(fd).expect("it is open");
    socket.bind(over.address()).expect("a free port");
    (fd, socket)
}

/// Two connected streams.
fn streams(over: Over) -> [(i32, Socket); 2] {
    let (listening, listener) = bound(over, libc::SOCK_STREAM);
    listener.listen(4).expect("it is bound");
    let (fd, client) = bound(over, libc::SOCK_STREAM);
    let to = listener.local_addr();
    let (accepted, peer) = thread::scope(|scope| {
        scope.spawn(|| client.connect(to).expect("connected"));
        listener.accept().expect("a connection")
    });
    assert_eq!(peer, Some(client.local_addr()));
    close(listening).expect("it is open");
    [(fd, client), (accepted, find(accepted).expect("it is open"))]
}

fn entry(fd: i32, events: libc::c_short) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}

#[test]
fn a_stream_carries_more_than_its_rings_hold() {
    carry(Over::Roce);
}

#[test]
fn a_stream_over_iwarp_does_without_immediate_data() {
    carry(Over::Iwarp);
}

fn carry(over: Over) {
    let [(client_fd, client), (server_fd, server)] = streams(over);
    let sent: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    let (head, tail) = sent.split_at(1_000_001);
    let receive = || {
        let mut bytes = vec![0; sent.len()];
        let received = server.receive(&mut [&mut bytes], libc::MSG_WAITALL);
        assert_eq!(received.map(|(len, _)| len), Ok(sent.len()));
        assert!(bytes == sent, "other bytes than were sent");
        let mut more = [0; 1];
        assert_eq!(server.receive(&mut [&mut more], 0).map(|(len, _)| len), Ok(0), "the end");
    };
    thread::scope(|scope| {
        scope.spawn(receive);
        assert_eq!(client.send(&[head, tail], 0, None), Ok(sent.len()));
        client.shut_down(libc::SHUT_WR).expect("connected");
    });
    for fd in [client_fd, server_fd] {
        close(fd).expect("it is open");
        assert_eq!(close(fd), Err(Errno(libc::EBADF)), "closed twice");
    }
}

#[test]
fn datagrams_keep_their_boundaries_and_senders() {
    let (a_fd, a) = bound(Over::Roce, libc::SOCK_DGRAM);
    let (b_fd, b) = bound(Over::Roce, libc::SOCK_DGRAM);
    let (to_a, to_b) = (a.local_addr(), b.local_addr());
    for round in 0..3 {
        // The first goes through the kernel, the others from queue pair to queue pair.
        assert_eq!(a.send(&[b"da", b"ta"], 0, Some(to_b)), Ok(4), "round {round}");
        let mut bytes = [0; 64];
        assert_eq!(b.receive(&mut [&mut bytes], 0), Ok((4, Some(to_a))), "round {round}");
        assert_eq!(&bytes[..4], b"data");
        assert_eq!(b.send(&[b"reply"], 0, Some(to_a)), Ok(5));
        assert_eq!(a.receive(&mut [&mut bytes], 0), Ok((5, Some(to_b))));
    }
    let long = vec![0; 65_000];
    assert_eq!(a.send(&[&long], 0, Some(to_b)), Err(Errno(libc::EMSGSIZE)));
    close(a_fd).expect("it is open");
    close(b_fd).expect("it is open");
}

#[test]
fn poll_and_epoll_report_what_arrives() {
    report(Over::Roce);
    report(Over::Iwarp);
}

fn report(over: Over) {
    let [(client_fd, client), (server_fd, server)] = streams(over);
    let mut entries = [entry(server_fd, libc::POLLIN | libc::POLLOUT)];
    assert_eq!(poll(&mut entries, LIMIT), Ok(1));
    assert_eq!(entries[0].revents, libc::POLLOUT, "nothing has arrived");
    let instance = epoll::create().expect("an instance");
    let event = libc::epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: 7 };
    epoll::control(instance, libc::EPOLL_CTL_ADD, server_fd, Some(event)).expect("a member");
    assert_eq!(epoll::wait(instance, 4, Some(Duration::ZERO)).map(|found| found.len()), Ok(0));
    assert_eq!(client.send(&[b"x"], 0, None), Ok(1));
    let found = epoll::wait(instance, 4, LIMIT).expect("an instance");
    assert_eq!(found.iter().map(|event| { event.u64 }).collect::<Vec<_>>(), [7]);
    let mut byte = [0; 1];
    assert_eq!(server.receive(&mut [&mut byte], 0).map(|(len, _)| len), Ok(1));
    let refused = server.receive(&mut [&mut byte], libc::MSG_DONTWAIT);
    assert_eq!(refused, Err(Errno(libc::EAGAIN)), "it is empty again");
    for fd in [instance, client_fd, server_fd] {
        close(fd).expect("it is open");
    }
}

#[test]
fn datagrams_need_a_device_that_has_them() {
    let (fd, socket) = bound(Over::Iwarp, libc::SOCK_DGRAM);
    let refused = socket.send(&[b"data"], 0, Some(([127, 0, 91, 2], 9).into()));
    assert_eq!(refused, Err(Errno(libc::EOPNOTSUPP)));
    close(fd).expect("it is open");
}

#[test]
fn options_have_the_values_that_were_set() {
    let (fd, socket) = bound(Over::Roce, libc::SOCK_STREAM);
    let integer = |level, name| {
        let mut room = [0; 4];
        socket.option(level, name, &mut room).map(|len| (len, i32::from_ne_bytes(room)))
    };
    assert_eq!(integer(libc::SOL_SOCKET, libc::SO_TYPE), Ok((4, libc::SOCK_STREAM)));
    let size = 30_000_i32.to_ne_bytes();
    assert_eq!(socket.set_option(libc::SOL_SOCKET, libc::SO_SNDBUF, &size), Ok(()));
    assert_eq!(integer(libc::SOL_SOCKET, libc::SO_SNDBUF), Ok((4, 60_000)));
    assert_eq!(socket.set_option(libc::SOL_SOCKET, libc::SO_SNDBUF, &[]), Err(Errno::INVALID));
    assert_eq!(socket.control(libc::F_SETFL, libc::O_NONBLOCK), Ok(0));
    assert_eq!(socket.accept().err(), Some(Errno::INVALID), "it does not listen");
    close(fd).expect("it is open");
}
