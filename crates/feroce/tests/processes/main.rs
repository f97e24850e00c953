//! Several processes on one address: they find each other, survive the death of a peer, and leave
//! no files behind.
//!
//! The children are this program again (see `child`). Each test has network namespaces of its own,
//! and with them a registry of its own.

mod child;
#[path = "../common/mod.rs"]
mod common;
#[path = "../../../link/tests/common/netns.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod netns;
mod portd;
mod process;
mod scarce;
mod users;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use netns::{Cable, with_cable};
use nix::sys::signal::Signal;
use process::{ADDRESS, Process, done, pair, registry, talk};

/// Not a test by itself: the code that child processes run.
#[test]
fn child_process() {
    if let Ok(address) = std::env::var(ADDRESS) {
        match address.as_str() {
            portd::NO_ADDRESS => portd::run(),
            _ => child::run(&address),
        }
    }
}

/// Longer than any test.
const FOR_EVER: u64 = 1 << 40;

fn nothing_is_left(cable: &Cable) {
    assert_eq!(cable.in_a(registry), PathBuf::new());
    assert_eq!(cable.in_b(registry), PathBuf::new());
}

#[test]
fn two_processes_on_one_address() {
    with_cable(1500, |cable| {
        for address in [Cable::A4, [127, 0, 0, 1]] {
            let start = || cable.in_a(|| Process::start(address));
            let (mut a, mut b) = (start(), start());
            talk(&mut a, &mut b, 1000);
            assert_eq!(a.counter("udp_tx_trains"), 0, "all of it inside the host");
            a.finish();
            // A process whose peer has ended can connect to another process.
            let mut c = start();
            talk(&mut b, &mut c, 300);
            b.finish();
            c.finish();
        }
        nothing_is_left(cable);
    });
}

#[test]
fn eight_processes_on_one_address() {
    with_cable(1500, |cable| {
        let start = || cable.in_a(|| Process::start(Cable::A4));
        let mut all: Vec<Process> = (0..8).map(|_| start()).collect();
        for distance in [1, 4] {
            let (left, right) = all.split_at_mut(4);
            for (i, a) in left.iter_mut().enumerate() {
                pair(a, &mut right[(i + distance) % 4], 400);
            }
            all.iter_mut().for_each(|process| assert_eq!(process.result(), done(400)));
        }
        all.into_iter().for_each(Process::finish);
        nothing_is_left(cable);
    });
}

/// Every process exchanges messages with every other, and when the first has finished no pair is
/// far behind. How far depends on the scheduler as well, but a pair that starves would be behind by
/// more than this.
#[test]
fn eight_processes_among_each_other() {
    const ALL: usize = 8;
    with_cable(1500, |cable| {
        let start = || cable.in_a(|| Process::start(Cable::A4));
        let mut all: Vec<Process> = (0..ALL).map(|_| start()).collect();
        let mut ends: Vec<Vec<String>> = Vec::new();
        for process in &mut all {
            process.tell(&format!("mesh {}", ALL - 1));
            let said = (1..ALL).map(|_| process.hear());
            ends.push(said.map(|s| s.replace("endpoint ", "")).collect());
        }
        // The end of `i` for `j` is number `j`, or one less behind its own number.
        let index = |i: usize, j: usize| if j > i { j - 1 } else { j };
        for (i, process) in all.iter_mut().enumerate() {
            for j in (0..ALL).filter(|&j| j != i) {
                process.tell(&format!("reach {} {}", index(i, j), ends[j][index(j, i)]));
                assert_eq!(process.hear(), "reached");
            }
        }
        all.iter_mut().for_each(|process| process.tell("run 4000"));
        // The test waits for the first process here, and hears of the others afterwards.
        assert_eq!(all[0].result(), "enough");
        all.iter_mut().for_each(|process| process.tell("counter shm_rx_trains"));
        let counts: Vec<Vec<u64>> = all
            .iter_mut()
            .map(|process| {
                let said = std::iter::repeat_with(|| process.result()).find(|s| s != "enough");
                assert!(process.result().starts_with("counter "));
                let said = said.expect("it goes on until it is heard");
                said.split(' ').skip(1).map(|n| n.parse().expect("a number")).collect()
            })
            .collect();
        let totals: Vec<u64> = counts.iter().map(|counts| counts.iter().sum()).collect();
        let mean = totals.iter().sum::<u64>() / ALL as u64;
        eprintln!("{totals:?}");
        assert!(totals.iter().all(|total| *total >= mean / 2), "{totals:?}");
        let pairs = || counts.iter().flatten();
        assert!(pairs().all(|n| *n >= mean / ALL as u64 / 10), "{counts:?}");
        all.into_iter().for_each(Process::finish);
        nothing_is_left(cable);
    });
}

/// The process that receives for all processes of the address dies meanwhile; a connection from
/// another process to another host continues.
#[test]
fn connections_to_other_hosts_survive_the_receiver() {
    with_cable(1500, |cable| {
        let here = || cable.in_a(|| Process::start(Cable::A4));
        let (receiver, mut a, mut other) = (here(), here(), here());
        let mut b = cable.in_b(|| Process::start(Cable::B4));
        pair(&mut a, &mut b, 5000);
        assert_eq!(a.hear(), "progress 499");
        receiver.signal(Signal::SIGKILL);
        assert_eq!((a.result(), b.result()), (done(5000), done(5000)));
        let took_over = |process: &mut Process| {
            process.tell("counter shm_taken_over");
            process.result()
        };
        let mut said = [took_over(&mut a), took_over(&mut other)];
        said.sort();
        assert_eq!(said, ["counter 0", "counter 1"], "one of them");
        [a, b, other].into_iter().for_each(Process::finish);
        drop(receiver);
        nothing_is_left(cable);
    });
}

/// The process that receives for all processes of the address is stopped, and other processes
/// receive in its place until it continues.
#[test]
fn connections_to_other_hosts_survive_a_stopped_receiver() {
    with_cable(1500, |cable| {
        let here = || cable.in_a(|| Process::start(Cable::A4));
        let (mut receiver, mut a) = (here(), here());
        let mut b = cable.in_b(|| Process::start(Cable::B4));
        pair(&mut a, &mut b, 3000);
        assert_eq!(a.hear(), "progress 499");
        receiver.signal(Signal::SIGSTOP);
        assert_eq!((a.result(), b.result()), (done(3000), done(3000)));
        receiver.signal(Signal::SIGCONT);
        talk(&mut receiver, &mut b, 300);
        // The process is stopped once more, and killed: then one of the other processes owns the
        // port, but not the socket of the killed process.
        receiver.signal(Signal::SIGSTOP);
        talk(&mut a, &mut b, 3000);
        receiver.signal(Signal::SIGKILL);
        drop(receiver);
        talk(&mut a, &mut b, 500);
        [a, b].into_iter().for_each(Process::finish);
        nothing_is_left(cable);
    });
}

/// Two processes listen at one address, at different ports. Other processes reach the right one by
/// its port, from the same address and from another host.
#[test]
fn connections_find_the_process_that_listens() {
    with_cable(1500, |cable| {
        let here = || cable.in_a(|| Process::start(Cable::A4));
        let (mut first, mut second, mut client) = (here(), here(), here());
        let mut remote = cable.in_b(|| Process::start(Cable::B4));
        for (process, port) in [(&mut first, 7001), (&mut second, 7002)] {
            process.tell(&format!("listen {port}"));
            assert_eq!(process.hear(), "listening");
        }
        second.tell("listen 7001");
        assert_eq!(second.hear(), "refused the port is in use at that address");
        for from in [&mut client, &mut remote] {
            for (to, port) in [(&mut first, 7001), (&mut second, 7002)] {
                to.tell("accept");
                from.tell(&format!("dial 10.9.0.1:{port}"));
                assert_eq!(from.hear(), format!("dialed {port}"));
                assert_eq!(to.hear(), "accepted");
            }
            from.tell("dial 10.9.0.1:7003");
            let said = from.hear();
            assert!(said.contains("refused"), "{said}");
        }
        // A process that listens may also connect.
        first.tell("accept");
        second.tell("dial 10.9.0.1:7001");
        assert_eq!((second.hear(), first.hear()), ("dialed 7001".into(), "accepted".into()));
        // A port is free again when its process has died.
        first.signal(Signal::SIGKILL);
        drop(first);
        second.tell("listen 7001");
        assert_eq!(second.hear(), "listening");
        [second, client, remote].into_iter().for_each(Process::finish);
        nothing_is_left(cable);
    });
}

/// A requester that gives up before it was answered names no connection of the listener. The
/// process that listens hears of it all the same, although another one has the UDP port.
#[test]
fn the_process_that_listens_hears_of_a_withdrawn_request() {
    with_cable(1500, |cable| {
        let here = || cable.in_a(|| Process::start(Cable::A4));
        let (owner, mut listener, client) = (here(), here(), here());
        let remote = cable.in_b(|| Process::start(Cable::B4));
        for mut from in [client, remote] {
            listener.tell("expect 7001");
            assert_eq!(listener.hear(), "expecting");
            from.tell("request 10.9.0.1:7001");
            assert_eq!(listener.hear(), "requested");
            from.tell("withdraw");
            assert_eq!(listener.hear(), "Rejected");
            from.finish();
        }
        [owner, listener].into_iter().for_each(Process::finish);
        nothing_is_left(cable);
    });
}

/// Neither a stopped process nor the peer that sends to it stops other processes.
#[test]
fn a_stopped_process_stops_no_other() {
    with_cable(1500, |cable| {
        let start = || cable.in_a(|| Process::start(Cable::A4));
        let (mut receiver, mut a, mut stopped, mut b) = (start(), start(), start(), start());
        pair(&mut a, &mut stopped, FOR_EVER);
        assert_eq!(a.hear(), "progress 499");
        stopped.signal(Signal::SIGSTOP);
        talk(&mut receiver, &mut b, 500);
        // Its peer loses the connection, but only because the peer waits for an answer.
        assert!(a.result().starts_with("lost "));
        talk(&mut a, &mut b, 500);
        stopped.signal(Signal::SIGCONT);
        assert!(stopped.result().starts_with("lost "), "its peer does not answer any more");
        [receiver, a, stopped, b].into_iter().for_each(Process::finish);
        nothing_is_left(cable);
    });
}

/// How many messages peers have written or read by direct access to the memory of a process.
fn passed(process: &mut Process) -> u64 {
    process.counter("shm_direct")
}

/// A process writes directly to the memory that a peer has registered for it, without the peer's
/// help, as a hardware adapter would; but not longer than the peer lives.
#[test]
fn memory_is_written_without_its_owner() {
    with_cable(1500, |cable| {
        let start = || cable.in_a(|| Process::start(Cable::A4));
        let (mut a, mut b) = (start(), start());
        talk(&mut a, &mut b, 16);
        // The last read of the pair may have used direct access as well.
        let before = passed(&mut b);
        b.signal(Signal::SIGSTOP);
        a.tell("write 5000");
        assert_eq!(a.hear(), "written 5000");
        b.signal(Signal::SIGCONT);
        b.tell("look");
        assert_eq!(b.hear(), "there is 4999");
        assert_eq!(passed(&mut b) - before, 10_000, "writes, each with a read");
        drop(b);
        a.tell(&format!("write {FOR_EVER}"));
        assert_eq!(a.hear(), "failed RetryExceeded");
        a.finish();
        nothing_is_left(cable);
    });
}

/// Processes die at any time; their peers notice, and no other process does. For a longer run, set
/// `FEROCE_TEST_KILL_SECONDS`.
#[test]
fn processes_may_die_at_any_time() {
    with_cable(1500, |cable| {
        let seconds = std::env::var("FEROCE_TEST_KILL_SECONDS").ok().and_then(|s| s.parse().ok());
        let seconds = std::time::Duration::from_secs(seconds.unwrap_or(4));
        #[expect(clippy::disallowed_methods, reason = "how long it runs is up to the clock")]
        let end = std::time::Instant::now() + seconds;
        let kills: u32 = std::thread::scope(|scope| {
            let pairs: Vec<_> =
                (0..4).map(|i| scope.spawn(move || outlive(cable, end, i))).collect();
            pairs.into_iter().map(|pair| pair.join().expect("a pair that is content")).sum()
        });
        eprintln!("{kills} processes were killed");
        nothing_is_left(cable);
    });
}

/// Two processes of which one is killed, again and again until `end`. The first process of the
/// first pair outlives all others, and must not hold more and more descriptors and mappings of
/// processes that are gone.
fn outlive(cable: &Cable, end: std::time::Instant, number: u64) -> u32 {
    let start = || cable.in_a(|| Process::start(Cable::A4));
    let [mut a, mut b] = [start(), start()];
    pair(&mut a, &mut b, FOR_EVER);
    let mut dice = (u64::from(std::process::id()) << 8 | number) | 1;
    let (mut kills, mut held) = (0, None);
    loop {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let pause_ms = (dice >> 33) as u8 & 0x3f;
        let _ = nix::poll::poll(&mut [], nix::poll::PollTimeout::from(pause_ms));
        if number > 0 && dice >> 50 & 1 == 0 {
            std::mem::swap(&mut a, &mut b);
        }
        // Until now the pair made progress: the processes reported nothing but "progress".
        b.signal(Signal::SIGKILL);
        let said = a.result();
        assert!(said.starts_with("lost "), "{said}");
        kills += 1;
        let [descriptors, maps] = a.holds();
        let [first_descriptors, first_maps] = *held.get_or_insert([descriptors, maps]);
        if number == 0 {
            assert!(descriptors <= first_descriptors + 8, "{descriptors} descriptors");
            assert!(maps <= first_maps + 8, "{maps} mappings of files that are gone");
        }
        #[expect(clippy::disallowed_methods, reason = "how long it runs is up to the clock")]
        if std::time::Instant::now() >= end {
            a.finish();
            return kills;
        }
        b = start();
        pair(&mut a, &mut b, FOR_EVER);
    }
}

/// Where one process may not read the memory of the other, all data goes through the rings. Root
/// may always read it, so the processes run as another user, which only root can arrange.
#[test]
fn memory_that_may_not_be_read_is_copied_twice() {
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("SKIPPED: only root can start processes of another user");
    }
    with_cable(1500, |cable| {
        assert!(lent(cable, true) > 0, "long messages are lent");
        assert_eq!(lent(cable, false), 0, "and checked as well if they are not");
    });
}

/// How many trains one process lends to the other, if their memory may be read or not.
fn lent(cable: &Cable, may_be_read: bool) -> u64 {
    let start = || {
        Process::start_with(Cable::A4, |command| {
            command.uid(65534).gid(65534);
            if !may_be_read {
                command.env(child::UNREADABLE, "1");
            }
        })
    };
    let [mut a, mut b] = [0; 2].map(|_| cable.in_a(start));
    assert_eq!([&mut a, &mut b].map(Process::hear), ["open", "open"]);
    talk(&mut a, &mut b, 2000);
    let lent = a.counter("shm_tx_remote_payload");
    [a, b].into_iter().for_each(Process::finish);
    lent
}
