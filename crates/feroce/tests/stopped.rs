//! A process that is stopped in the middle of a copy. Operations that revoke access to the memory
//! that it copies to wait for it; other queue pairs do not.

use std::io::{BufRead, BufReader, Write as _};
use std::num::NonZeroUsize;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::common::{ALL, Host, connect};
use feroce::{
    Endpoint, Gid, Iova, Lid, Mr, Pmtu, Psn, Qp, Qpn, Remote, Rkey, SendOp, SendWr, WcStatus,
};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Set in the child: the third byte of its address.
const NET: &str = "FEROCE_TEST_NET";

const PAGE: usize = 4096;

/// How many operations other queue pairs complete meanwhile.
const MEANWHILE: u64 = 5000;

/// The page whose bytes the child is about to write when it stops.
static SOURCE: AtomicPtr<std::ffi::c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The copy has reached the page: stops the process, and lets the copy continue when the process
/// does.
extern "C" fn stop_in_copy(_: i32) {
    let Some(page) = std::ptr::NonNull::new(SOURCE.load(Ordering::Relaxed)) else { return };
    // SAFETY: this touches no memory.
    unsafe { libc::raise(libc::SIGSTOP) };
    // SAFETY: a page that the child has mapped, which becomes readable again.
    let _ = unsafe { mprotect(page, PAGE, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE) };
}

fn describe(qp: &Qp, mr: &Mr) -> String {
    let Endpoint { gid, qpn, psn, mtu, .. } = qp.endpoint().expect("an endpoint");
    let ip = std::net::Ipv4Addr::from(gid.as_ipv4().expect("an IPv4 address"));
    let Remote { addr, rkey } = mr.remote(0);
    format!("{ip} {} {} {} {addr} {}", qpn.get(), psn.get(), mtu.bytes(), rkey.0)
}

fn understand(text: &str) -> (Endpoint, Remote) {
    let words: Vec<&str> = text.trim().split(' ').collect();
    let [ip, qpn, psn, mtu, addr, rkey] = words[..] else { panic!("what is {text:?}?") };
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let ip: std::net::Ipv4Addr = ip.parse().expect("an address");
    let endpoint = Endpoint {
        gid: Gid::from_ipv4(ip.octets()),
        lid: Lid(0),
        qpn: Qpn::new(number(qpn) as u32),
        psn: Psn::new(number(psn) as u32),
        mtu: Pmtu::at_most(number(mtu) as usize).expect("an MTU"),
    };
    (endpoint, Remote { addr: number(addr), rkey: Rkey(number(rkey) as u32) })
}

/// Not a test by itself: the code that the child runs. It writes until its writes use direct
/// access, and then stops in the middle of a write.
#[test]
fn child_process() {
    let Ok(net) = std::env::var(NET) else { return };
    let host = Host::new(net.parse().expect("a number"), 2);
    let mut qp = host.rc();
    let len = NonZeroUsize::new(2 * PAGE).expect("not empty");
    let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping takes nothing from anything else.
    let pages = unsafe { mmap_anonymous(None, len, prot, MapFlags::MAP_PRIVATE) }.expect("memory");
    // SAFETY: it stays until the process ends, and nothing else leads to it.
    let source =
        unsafe { host.pd.register_raw(pages.as_ptr().cast(), 2 * PAGE, Iova::Natural, ALL) };
    let source = source.expect("registered");
    println!("@{}", describe(&qp, &source));
    let mut input = std::io::stdin().lock();
    let mut line = String::new();
    input.read_line(&mut line).expect("a line");
    let (peer, remote) = understand(&line);
    qp.connect(&peer).expect("connected");
    source.write_at(0, &[0x11; 2 * PAGE]).expect("in bounds");
    let mut write = || {
        let wr = SendWr::new(1, SendOp::Write(remote), source.data(0..2 * PAGE));
        qp.post_send([wr]).expect("room");
        let done = host.wait();
        println!("@{:?}", done.status);
    };
    loop {
        line.clear();
        input.read_line(&mut line).expect("a line");
        match line.trim() {
            "write" => write(),
            "stop" => {
                let second = pages.map_addr(|at| at.checked_add(PAGE).expect("in bounds"));
                SOURCE.store(second.as_ptr(), Ordering::Relaxed);
                // SAFETY: plain data, for which all zeros is a valid value.
                let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
                action.sa_sigaction = stop_in_copy as extern "C" fn(i32) as usize;
                // SAFETY: a handler of the kind that the flags say.
                unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()) };
                // SAFETY: a page of its own, which the handler makes readable again.
                unsafe { mprotect(second, PAGE, ProtFlags::PROT_NONE) }.expect("protected");
                write();
            }
            "" => return,
            other => panic!("what is {other:?}?"),
        }
    }
}

/// The child process. It is killed when this is dropped.
struct Stopping {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Stopping {
    fn start(net: u8) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("we run"))
            .args(["--exact", "stopped::child_process", "--nocapture"])
            .env(NET, net.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, input, output }
    }

    fn tell(&mut self, text: &str) {
        writeln!(self.input, "{text}").expect("it listens");
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).expect("readable") > 0, "it lives");
            if let Some((_, said)) = line.trim_end().split_once('@') {
                return said.to_owned();
            }
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Waits until it has stopped.
    fn await_stop(&self) {
        let status = waitpid(self.pid(), Some(WaitPidFlag::WUNTRACED)).expect("our child");
        assert!(matches!(status, WaitStatus::Stopped(_, Signal::SIGSTOP)), "{status:?}");
    }
}

impl Drop for Stopping {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How many messages peers have written or read by direct access to the memory of a host.
fn passed(host: &Host) -> u64 {
    let counters = host.context.link_counters();
    counters.iter().find(|(name, _)| *name == "shm_direct").map_or(0, |(_, n)| *n)
}

/// A host, memory of it, a queue pair, and a process that has stopped in the middle of a copy to
/// that memory.
fn stopped_in_copy(net: u8) -> (Host, Mr, Qp, Stopping) {
    let host = Host::new(net, 1);
    let target = host.pd.alloc_mr(2 * PAGE, ALL).expect("memory");
    let mut qp = host.rc();
    let mut child = Stopping::start(net);
    let (peer, _) = understand(&child.hear());
    qp.connect(&peer).expect("connected");
    child.tell(&describe(&qp, &target));
    while passed(&host) == 0 {
        child.tell("write");
        assert_eq!(child.hear(), "Success");
    }
    target.write_at(0, &[0; 2 * PAGE]).expect("in bounds");
    child.tell("stop");
    child.await_stop();
    (host, target, qp, child)
}

/// Exchanges messages between two other queue pairs, `times`, each after the one before.
fn ping_pong(a: &Host, qa: &mut Qp, b: &Host, qb: &mut Qp, times: u64) {
    for i in 0..times {
        qb.post_recv([b.mr.recv(i, 0..8)]).expect("room");
        qa.post_send([SendWr::new(i, SendOp::Send, a.mr.data(0..8))]).expect("room");
        let done = [a.wait(), b.wait()].map(|done| (done.wr_id, done.status));
        assert_eq!(done, [(i, WcStatus::Success); 2]);
    }
}

/// Deregisters memory that a stopped process copies to. Meanwhile other queue pairs make progress,
/// also those that are created and destroyed meanwhile. `signal` ends the copy.
fn dereg_waits_alone(net: u8, signal: Signal) {
    let (host, target, qp, mut child) = stopped_in_copy(net);
    let other = Host::new(net, 3);
    let (mut here, mut there) = (host.rc(), other.rc());
    connect(&mut here, &mut there);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let dereg = scope.spawn(|| {
            target.dereg().expect("no window is bound");
            is_over.store(true, Ordering::Release);
        });
        ping_pong(&host, &mut here, &other, &mut there, MEANWHILE);
        ping_pong(&other, &mut there, &host, &mut here, MEANWHILE);
        let (mut a, mut b) = (host.rc(), other.rc());
        connect(&mut a, &mut b);
        ping_pong(&host, &mut a, &other, &mut b, 10);
        drop((a, b));
        assert!(!is_over.load(Ordering::Acquire), "the process is still copying");
        kill(child.pid(), signal).expect("our child");
        dereg.join().expect("no panic");
    });
    // No process writes to the memory any more.
    let region = target.region();
    region.write_at(0, &[0xee; 2 * PAGE]).expect("in bounds");
    if signal == Signal::SIGCONT {
        assert_eq!(child.hear(), "Success", "the copy ended before the key did");
    }
    let mut bytes = [0; 2 * PAGE];
    region.read_at(0, &mut bytes).expect("in bounds");
    assert!(bytes == [0xee; 2 * PAGE], "something came after the registration ended");
    drop(qp);
}

#[test]
fn a_stopped_copy_delays_its_deregistration_alone() {
    dereg_waits_alone(176, Signal::SIGCONT);
}

#[test]
fn a_killed_copy_ends_its_deregistration() {
    dereg_waits_alone(177, Signal::SIGKILL);
}

/// A SEND with invalidate that arrives meanwhile completes after the copy.
#[test]
fn a_stopped_copy_delays_an_invalidation_and_what_follows_it() {
    let (host, _target, _qp, child) = stopped_in_copy(178);
    let (sender, other) = (Host::new(178, 3), Host::new(178, 4));
    let (mut from, mut to, mut here, mut there) = (sender.rc(), host.rc(), host.rc(), other.rc());
    connect(&mut from, &mut to);
    connect(&mut here, &mut there);
    let mut mw = host.pd.alloc_mw(feroce::MwType::Two).expect("a window");
    let key = mw.next_rkey();
    let binding = feroce::Bind {
        mr: host.mr.lkey(),
        addr: host.mr.addr(),
        len: PAGE as u64,
        access: feroce::Access::REMOTE_WRITE,
        zero_based: false,
    };
    let bind = SendOp::BindMw { mw: mw.rkey(), new_rkey: key, binding };
    // A binding changes what keys mean, so it waits as well.
    to.post_send([SendWr::new(7, bind, feroce::Data::EMPTY)]).expect("room");
    mw.set_rkey(key);
    to.post_recv([host.mr.recv(8, 0..8), host.mr.recv(9, 0..8)]).expect("room");
    let inv = SendWr::new(1, SendOp::SendInv(key), sender.mr.data(0..8));
    from.post_send([inv, SendWr::new(2, SendOp::Send, sender.mr.data(0..8))]).expect("room");
    assert_eq!([sender.wait(), sender.wait()].map(|done| done.wr_id), [1, 2]);
    ping_pong(&host, &mut here, &other, &mut there, MEANWHILE);
    assert!(host.cq.poll_one().is_none(), "the process is still copying");
    kill(child.pid(), Signal::SIGCONT).expect("our child");
    let done = [host.wait(), host.wait(), host.wait()].map(|done| (done.wr_id, done.status));
    assert_eq!(done, [7, 8, 9].map(|id| (id, WcStatus::Success)));
}
