//! Processes of several users at one address, which portd receives for. Only root can start them.

use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use feroce_link::UdpConfig;
use feroce_link::port::{PortSocket, Sent};
use feroce_local::Portd;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::netns::{Cable, with_cable};
use super::process::{Process, done, pair, talk};
use super::users::{STRANGER, USER, by, can_be_others};

/// The address of a child process that is a portd and has none.
pub(crate) const NO_ADDRESS: &str = "0.0.0.0";

/// A child process that is a portd until its input ends.
#[expect(clippy::disallowed_methods, reason = "portd needs a clock")]
pub(crate) fn run() {
    let mut portd = match Portd::new(UdpConfig::default(), None, Path::new("/dev/shm")) {
        Ok(portd) => portd,
        Err(e) => return println!("@error {e}"),
    };
    println!("@open");
    let start = Instant::now();
    let mut stdin = std::io::stdin();
    loop {
        let ends = [portd.wait_fd(), stdin.as_fd()];
        let mut fds = ends.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        poll(&mut fds, PollTimeout::NONE).expect("descriptors");
        if fds[1].any() == Some(true) && stdin.read(&mut [0]).expect("readable") == 0 {
            return;
        }
        let now = start.elapsed().as_nanos().try_into().expect("a short test");
        portd.turn(feroce::Instant::from_nanos(now)).expect("it goes on");
    }
}

/// Starts a portd of a user in namespace A.
fn start_portd(cable: &Cable, user: u32) -> Process {
    let mut portd = cable.in_a(|| Process::start_with([0; 4], by(user)));
    assert_eq!(portd.hear(), "open");
    portd
}

/// Starts a process of a user in namespace A.
fn start(cable: &Cable, user: u32) -> Process {
    start_with(cable, user, |_| {})
}

fn start_with(cable: &Cable, user: u32, change: impl Fn(&mut Command)) -> Process {
    let both = |command: &mut Command| {
        by(user)(command);
        change(command);
    };
    let mut process = cable.in_a(|| Process::start_with(Cable::A4, both));
    assert_eq!(process.hear(), "open");
    process
}

/// Starts a process on the other host.
fn start_there(cable: &Cable) -> Process {
    cable.in_b(|| Process::start(Cable::B4))
}

/// Connects two processes by address: `from` to a port that `to` listens at.
fn dial(from: &mut Process, to: &mut Process, port: u16) {
    to.tell("accept");
    from.tell(&format!("dial 10.9.0.1:{port}"));
    assert_eq!(from.hear(), format!("dialed {port}"));
    assert_eq!(to.hear(), "accepted");
}

fn listen(process: &mut Process, port: u16) -> String {
    process.tell(&format!("listen {port}"));
    process.hear()
}

/// Two users, two processes each, at one address: RC traffic with another host at the same time,
/// between the users, and between the processes of one user, which portd does not see.
#[test]
fn two_users_use_one_address_at_the_same_time() {
    if !can_be_others() {
        return;
    }
    with_cable(1500, |cable| {
        let portd = start_portd(cable, 0);
        let [mut a, mut b, mut c] = [USER, STRANGER, USER].map(|user| start(cable, user));
        let (mut far_a, mut far_b) = (start_there(cable), start_there(cable));
        pair(&mut a, &mut far_a, 500);
        pair(&mut b, &mut far_b, 500);
        for process in [&mut a, &mut far_a, &mut b, &mut far_b] {
            assert_eq!(process.result(), done(500));
        }
        for process in [&mut a, &mut b] {
            assert!(process.counter("portd_rx_trains") > 0, "portd has received for it");
        }
        talk(&mut a, &mut b, 200);
        let before = c.counter("udp_tx_trains");
        talk(&mut a, &mut c, 200);
        assert_eq!(c.counter("udp_tx_trains"), before, "inside the user: shared memory");
        [a, b, c, far_a, far_b, portd].into_iter().for_each(Process::finish);
    });
}

/// Requests reach the user who listens, a service belongs to one process of all users, and is free
/// again when that process has gone.
#[test]
fn connections_reach_the_user_who_listens() {
    if !can_be_others() {
        return;
    }
    with_cable(1500, |cable| {
        let portd = start_portd(cable, 0);
        let (mut a, mut b) = (start(cable, USER), start(cable, STRANGER));
        let mut far = start_there(cable);
        assert_eq!(listen(&mut a, 7001), "listening");
        let said = listen(&mut b, 7001);
        assert!(said.starts_with("refused"), "another user has it: {said}");
        assert_eq!(listen(&mut b, 7002), "listening");
        for _ in 0..3 {
            dial(&mut far, &mut a, 7001);
            dial(&mut far, &mut b, 7002);
            dial(&mut b, &mut a, 7001);
            dial(&mut a, &mut b, 7002);
        }
        far.tell("dial 10.9.0.1:7003");
        let said = far.hear();
        assert!(said.starts_with("refused"), "an answer, and no time-out: {said}");
        a.signal(Signal::SIGKILL);
        drop(a);
        let mut c = start(cable, STRANGER);
        // portd learns of the end of a process by a closed connection, in order with requests.
        assert_eq!(listen(&mut c, 7001), "listening");
        dial(&mut far, &mut c, 7001);
        [b, c, far, portd].into_iter().for_each(Process::finish);
    });
}

/// Whichever end of a connection between two users is killed, the other hears of it from portd.
/// Neither has a request under way, so that no retry would tell.
#[test]
fn the_end_of_a_process_is_told_to_other_users() {
    if !can_be_others() {
        return;
    }
    with_cable(1500, |cable| {
        let portd = start_portd(cable, 0);
        let (mut a, mut b) = (start(cable, USER), start(cable, STRANGER));
        assert_eq!(
            (listen(&mut a, 7001), listen(&mut b, 7002)),
            ("listening".into(), "listening".into())
        );
        let other = start(cable, USER);
        for (from, to, port) in [(USER, &mut b, 7002), (STRANGER, &mut a, 7001)] {
            let mut killed = start(cable, from);
            to.tell("stay");
            killed.tell(&format!("stay 10.9.0.1:{port}"));
            assert_eq!((killed.hear(), to.hear()), ("connected".into(), "connected".into()));
            killed.signal(Signal::SIGKILL);
            drop(killed);
            assert_eq!(to.hear(), "Disconnected");
        }
        a.tell("stay");
        b.tell("stay 10.9.0.1:7001");
        assert_eq!((a.hear(), b.hear()), ("connected".into(), "connected".into()));
        // The end of a process that is not in the connection changes nothing.
        other.signal(Signal::SIGKILL);
        drop(other);
        let (mut c, mut d) = (start(cable, USER), start(cable, STRANGER));
        talk(&mut c, &mut d, 10);
        a.signal(Signal::SIGKILL);
        drop(a);
        assert_eq!(b.hear(), "Disconnected");
        [b, c, d, portd].into_iter().for_each(Process::finish);
    });
}

/// When portd is killed and started again, queue pairs and listeners go on. What is sent meanwhile
/// is lost and sent again.
#[test]
fn processes_outlive_portd() {
    if !can_be_others() {
        return;
    }
    with_cable(1500, |cable| {
        let portd = start_portd(cable, 0);
        let (mut a, mut b) = (start(cable, USER), start(cable, STRANGER));
        let (mut far_a, mut far_b) = (start_there(cable), start_there(cable));
        assert_eq!(listen(&mut a, 7001), "listening");
        pair(&mut a, &mut far_a, 2000);
        pair(&mut b, &mut far_b, 2000);
        assert!(a.hear().starts_with("progress"), "it has begun");
        portd.signal(Signal::SIGKILL);
        drop(portd);
        let portd = start_portd(cable, 0);
        for process in [&mut a, &mut far_a, &mut b, &mut far_b] {
            assert_eq!(process.result(), done(2000));
        }
        assert_eq!(a.counter("portd_connected_again"), 1);
        dial(&mut far_a, &mut a, 7001);
        dial(&mut b, &mut a, 7001);
        [a, b, far_a, far_b, portd].into_iter().for_each(Process::finish);
    });
}

/// What any user can send to portd harms no other: requests that are none, and addresses that are
/// not the host's, or all of them.
#[test]
fn portd_takes_any_request() {
    if !can_be_others() {
        return;
    }
    with_cable(1500, |cable| {
        let portd = start_portd(cable, 0);
        let before = portd.holds()[0];
        let address = |ip: &str, scope: u32| {
            let ip: std::net::Ipv6Addr = ip.parse().expect("an address");
            [&ip.octets()[..], &scope.to_ne_bytes()].concat()
        };
        let lease = |prefix: u8, addresses: &[Vec<u8>]| {
            [&b"feroce portd   1"[..], &[0, prefix], &addresses.concat()].concat()
        };
        let ask = |request: &[u8]| {
            let name = Path::new("\0feroce-portd-0");
            let socket = cable.in_a(|| PortSocket::connect(name)).expect("portd");
            assert_eq!(socket.send(request), Sent::Done);
            let mut answer = [0; 1024];
            let len = socket.await_answer(&mut answer).expect("an answer");
            (socket, answer[..len].to_vec())
        };
        let (leased, taken, refused) = (0xf0, 0xf1, 0xf4);
        for wrong in [&b"\0"[..], b"feroce portd   0\0\x01", &[0xff; 900]] {
            assert_eq!(ask(wrong).1[0], refused, "{wrong:?}");
        }
        let all = (0..33).map(|_| address("::ffff:10.9.0.1", 0)).collect::<Vec<_>>();
        assert_eq!(ask(&lease(3, &all)).1[0], refused, "more addresses than a device has");
        assert_eq!(ask(&lease(0, &[])).1[0], taken, "no process has this number");
        let not_ours = ["::", "::ffff:0.0.0.0", "ff02::1", "::ffff:239.1.1.1", "::ffff:10.9.0.77"];
        for (ip, scope) in not_ours.map(|ip| (ip, 0)).into_iter().chain([("fd09::1", 7)]) {
            let (_socket, answer) = ask(&lease(3, &[address(ip, scope)]));
            assert_eq!((answer[0], answer.len()), (leased, 17), "{ip} is refused");
        }
        // No sockets stay open for interfaces that do not exist.
        let many: Vec<_> = (1000..1030).map(|scope| address("fe80::1", scope)).collect();
        let (socket, answer) = ask(&lease(4, &many));
        assert_eq!(answer.len(), 1 + 16 * many.len());
        assert_eq!(portd.holds()[0], before + 1, "the connection");
        drop(socket);
        let (mut a, mut far) = (start(cable, USER), start_there(cable));
        talk(&mut a, &mut far, 50);
        assert!(a.counter("portd_rx_trains") > 0);
        [a, far, portd].into_iter().for_each(Process::finish);
    });
}

/// Gives a process the same random numbers as others with this setting: the number that it wants is
/// the same, too.
fn alike(command: &mut Command) {
    command.env("FEROCE_SEED", "7");
}

/// The upper bits of the queue pair numbers of a process.
fn prefix(process: &mut Process) -> u32 {
    process.tell("pair");
    let said = process.hear();
    let qpn = said.split(' ').nth(2).and_then(|qpn| qpn.parse::<u32>().ok());
    qpn.unwrap_or_else(|| panic!("{said}")) >> 16
}

/// No two processes of a host have the same number, also if they are of different users. When a
/// process has ended, its peers may go on sending for a while, so another user does not get its
/// number.
#[test]
fn users_do_not_get_the_numbers_of_others() {
    if !can_be_others() {
        return;
    }
    with_cable(1500, |cable| {
        let portd = start_portd(cable, 0);
        let mut a = start_with(cable, USER, alike);
        let mut b = start_with(cable, STRANGER, alike);
        let of_a = prefix(&mut a);
        assert_ne!(prefix(&mut b), of_a);
        let mut far = start_there(cable);
        talk(&mut a, &mut far, 50);
        talk(&mut b, &mut far, 50);
        b.finish();
        a.finish();
        let mut c = start_with(cable, STRANGER, alike);
        assert_ne!(prefix(&mut c), of_a, "of a process that has ended");
        let mut d = start_with(cable, USER, alike);
        assert_eq!(prefix(&mut d), of_a, "the same user may have it");
        [c, d, far, portd].into_iter().for_each(Process::finish);
    });
}

/// While portd is started again, another user gets neither the number nor the service of a process
/// that was too slow to ask for them first.
#[test]
fn users_keep_what_they_have_while_portd_is_started_again() {
    if !can_be_others() {
        return;
    }
    with_cable(1500, |cable| {
        let portd = start_portd(cable, 0);
        let mut a = start_with(cable, USER, alike);
        let mut far = start_there(cable);
        assert_eq!(listen(&mut a, 7001), "listening");
        let of_a = prefix(&mut a);
        a.signal(Signal::SIGSTOP);
        portd.signal(Signal::SIGKILL);
        drop(portd);
        let portd = start_portd(cable, 0);
        let mut b = start_with(cable, STRANGER, alike);
        assert_ne!(prefix(&mut b), of_a, "it wanted the same number");
        let said = listen(&mut b, 7001);
        assert!(said.starts_with("refused"), "{said}");
        assert_eq!(listen(&mut b, 7002), "listening");
        a.signal(Signal::SIGCONT);
        while a.counter("portd_connected_again") == 0 {}
        dial(&mut far, &mut a, 7001);
        dial(&mut b, &mut a, 7001);
        assert_eq!(a.counter("portd_services_lost"), 0);
        a.finish();
        // The service ends with its process, as ever.
        assert_eq!(listen(&mut b, 7001), "listening");
        [b, far, portd].into_iter().for_each(Process::finish);
    });
}

/// A listener is told that its port belongs to another process now. This happens if what portd has
/// written down is gone.
#[test]
fn a_listener_that_has_lost_its_port_is_told() {
    if !can_be_others() {
        return;
    }
    with_cable(1500, |cable| {
        let portd = start_portd(cable, 0);
        let seed = |seed: &'static str| {
            move |command: &mut Command| {
                command.env("FEROCE_SEED", seed);
            }
        };
        let mut a = start_with(cable, USER, seed("7"));
        let mut far = start_there(cable);
        assert_eq!(listen(&mut a, 7001), "listening");
        a.signal(Signal::SIGSTOP);
        portd.signal(Signal::SIGKILL);
        drop(portd);
        let namespace = cable.in_a(|| fs::metadata("/proc/thread-self/ns/net")).expect("/proc");
        fs::remove_file(format!("/dev/shm/feroce-portd-0/{}", namespace.ino())).expect("a ledger");
        let portd = start_portd(cable, 0);
        let mut b = start_with(cable, STRANGER, seed("8"));
        assert_eq!(listen(&mut b, 7001), "listening");
        a.tell("accept");
        a.signal(Signal::SIGCONT);
        let said = a.hear();
        assert!(said.starts_with("lost") && said.contains("in use"), "{said}");
        assert_eq!(a.counter("portd_services_lost"), 1);
        dial(&mut far, &mut b, 7001);
        [a, b, far, portd].into_iter().for_each(Process::finish);
    });
}

/// A process receives through the portd of another user only if its settings name that user. One
/// that takes the first name of portd is not in the way of root's.
#[test]
fn a_stranger_is_not_trusted() {
    if !can_be_others() {
        return;
    }
    with_cable(1500, |cable| {
        let planted = start_portd(cable, STRANGER);
        let mut far = start_there(cable);
        let mut alone = start(cable, USER);
        talk(&mut alone, &mut far, 50);
        assert_eq!(alone.counter("portd_rx_trains"), 0, "it has its own socket");
        alone.finish();

        let name_it = |command: &mut Command| {
            command.env("FEROCE_PORTD", STRANGER.to_string());
        };
        let mut trusting = start_with(cable, USER, name_it);
        talk(&mut trusting, &mut far, 50);
        assert!(trusting.counter("portd_rx_trains") > 0);
        trusting.finish();

        let portd = start_portd(cable, 0);
        let mut second = cable.in_a(|| Process::start_with([0; 4], |_| {}));
        let said = second.hear();
        assert!(said.starts_with("error") && said.contains("already"), "{said}");
        let mut a = start(cable, USER);
        talk(&mut a, &mut far, 50);
        assert!(a.counter("portd_rx_trains") > 0);
        [a, far, portd, planted].into_iter().for_each(Process::finish);
    });
}
