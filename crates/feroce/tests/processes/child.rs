//! The child processes of these tests. A child reads commands from its standard input, creates
//! queue pairs and exchanges messages with another process; both check every byte.

use std::io::BufRead;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use feroce::cm::{
    CmId, ConnParam, Connection, Connector, EventChannel, EventKind, Listener, Manager, PortSpace,
};
use feroce::{Context, Cq, Cqe, Device, Endpoint, Mr, Pmtu, Psn, Qp, QpAttr, QpCap, QpState, Qpn};
use feroce::{Remote, Rkey, SendOp, SendWr, WcStatus};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::common::ALL;

/// Messages in flight in each direction.
const WINDOW: u64 = 8;
/// Bytes for each of them.
const SLOT: usize = 64 << 10;
/// Offsets of the receive buffers, and of the area that the peer writes to.
const RECEIVES: usize = WINDOW as usize * SLOT;
const SCRATCH: usize = 2 * RECEIVES;
const LEN: usize = 3 * RECEIVES;
/// Work requests below this are receives.
const SENDS: u64 = 1 << 32;

/// Environment variable: set if no other process may read the memory of this one.
pub(crate) const UNREADABLE: &str = "FEROCE_TEST_UNREADABLE";

/// Environment variable: set if this process may not call `memfd_create`, as in some sandboxes.
pub(crate) const NO_MEMFD: &str = "FEROCE_TEST_NO_MEMFD";

/// Makes the kernel refuse `memfd_create` from now on, with `EPERM`.
fn forbid_memfd() {
    let step = |code: u32, jt: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let (ok, not_ok) = (libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    // The number of the system call is the first word of what the filter sees.
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_memfd_create as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, ok),
        step(libc::BPF_RET | libc::BPF_K, 0, not_ok),
    ];
    let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    nix::sys::prctl::set_no_new_privs().expect("that is always possible");
    // SAFETY: the filter and its steps live until the call returns, which copies them.
    let done =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// Prints a line for the test. The `@` marks it, because the test harness prints lines, too.
fn say(text: &str) {
    println!("@{text}");
}

/// The child process: executes commands until its input ends.
pub(crate) fn run(address: &str) {
    if std::env::var_os(UNREADABLE).is_some() {
        nix::sys::prctl::set_dumpable(false).expect("that is always possible");
    }
    if std::env::var_os(NO_MEMFD).is_some() {
        forbid_memfd();
    }
    let ip = address.parse().expect("an address");
    let device = Device::at([ip]);
    let context = match device.open() {
        Ok(context) => context,
        Err(e) => return say(&format!("error {e}")),
    };
    say("open");
    let (mut end, mut listener, mut asked) = (None, None, None);
    let mut mesh: Vec<End> = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line");
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["pair"] => end = Some(End::new(&context)),
            ["connect", ref peer @ .., rounds] => {
                let end = end.as_mut().expect("a pair first");
                end.connect(peer);
                let status = end.exchange(rounds.parse().expect("a number"));
                say(&format!("{} {}", if status { "done" } else { "lost" }, end.received));
            }
            ["write", count] => {
                let end = end.as_mut().expect("a pair first");
                say(&end.write(count.parse().expect("a number")));
            }
            ["look"] => say(&end.as_ref().expect("a pair first").look()),
            ["mesh", count] => {
                mesh = (0..count.parse().expect("a number")).map(|_| End::new(&context)).collect();
            }
            ["reach", i, ref peer @ ..] => {
                mesh[i.parse::<usize>().expect("a number")].connect(peer);
                say("reached");
            }
            ["run", rounds] => run_mesh(&mut mesh, rounds.parse().expect("a number")),
            ["counter", name] => {
                let counters = context.link_counters();
                let value = counters.iter().find(|(n, _)| *n == name).map_or(0, |(_, v)| *v);
                say(&format!("counter {value}"));
            }
            ["listen", port] => {
                let to = SocketAddr::new(ip, port.parse().expect("a port"));
                match Listener::bind(&manager(&context), to) {
                    Ok(bound) => {
                        listener = Some(bound);
                        say("listening");
                    }
                    Err(e) => say(&format!("refused {e}")),
                }
            }
            ["accept"] => say(&accept(listener.as_ref().expect("a listener"))),
            ["dial", to] => say(&dial(&manager(&context), to.parse().expect("an address"))),
            ["stay"] => stay(listener.as_ref().expect("a listener")),
            ["stay", to] => stay_with(&manager(&context), to.parse().expect("an address")),
            ["expect", port] => expect(&manager(&context), ip, port.parse().expect("a port")),
            ["request", to] => {
                asked = Some(request(&manager(&context), to.parse().expect("an address")));
            }
            ["withdraw"] => drop(asked.take()),
            ["list", directory] => {
                let may = std::fs::read_dir(directory).is_ok();
                say(if may { "list allowed" } else { "list denied" });
            }
            _ => panic!("what is {line:?}?"),
        }
    }
}

/// Exchanges messages with every peer until there is more input. Reports once that it has completed
/// `rounds`, and at the end how many messages it has exchanged with each peer.
fn run_mesh(mesh: &mut [End], rounds: u64) {
    let mut is_said = false;
    loop {
        mesh.iter_mut().for_each(End::step);
        if !is_said && mesh.iter().map(|end| end.completed).sum::<u64>() >= rounds {
            is_said = true;
            say("enough");
        }
        let stdin = std::io::stdin();
        let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::ZERO) == Ok(1) {
            break;
        }
    }
    let counts: Vec<String> = mesh.iter().map(|end| end.completed.to_string()).collect();
    say(&format!("counts {}", counts.join(" ")));
}

fn manager(context: &Context) -> Manager {
    Manager::with([context.clone()]).expect("a manager")
}

/// Accepts a connection, receives a message, and reports it.
fn accept(listener: &Listener) -> String {
    let request = match listener.accept() {
        Ok(request) => request,
        Err(e) => return format!("lost {e}"),
    };
    let private_data = listener.local_addr().port().to_be_bytes().to_vec();
    let param = ConnParam { private_data, ..ConnParam::default() };
    let mut connection = request.param(param).accept().expect("accepted");
    let mr = connection.pd().alloc_mr(64, ALL).expect("memory");
    connection.post_recv([mr.recv(1, 0..64)]).expect("room");
    assert_eq!(connection.recv_cq().wait().expect("a message").status, WcStatus::Success);
    let mut bytes = [0; 5];
    mr.read_at(0, &mut bytes).expect("in bounds");
    assert_eq!(&bytes, b"hello");
    "accepted".to_owned()
}

/// Connects, sends a message, and reports which port answered.
fn dial(manager: &Manager, to: SocketAddr) -> String {
    let mut connection = match Connector::new(manager).connect(to) {
        Ok(connection) => connection,
        Err(e) => return format!("refused {e}"),
    };
    let mr = connection.pd().alloc_mr(64, ALL).expect("memory");
    mr.write_at(0, b"hello").expect("in bounds");
    connection.post_send([SendWr::new(1, SendOp::Send, mr.data(0..5))]).expect("room");
    assert_eq!(connection.send_cq().wait().expect("sent").status, WcStatus::Success);
    let port = connection.private_data().first_chunk().map_or(0, |port| u16::from_be_bytes(*port));
    format!("dialed {port}")
}

/// Accepts a connection, and reports its end.
fn stay(listener: &Listener) {
    let request = listener.accept().expect("a request");
    end_of(&request.accept().expect("accepted"));
}

/// Connects, and reports the end of the connection.
fn stay_with(manager: &Manager, to: SocketAddr) {
    end_of(&Connector::new(manager).connect(to).expect("connected"));
}

/// Reports that there is a connection, and what happens to it.
fn end_of(connection: &Connection) {
    say("connected");
    let event = connection.id().channel().wait_event(Some(30_000)).expect("a channel");
    say(&event.map_or_else(|| "nothing".to_owned(), |event| format!("{:?}", event.kind)));
}

/// Takes a request, does not answer it, and reports what comes next for it.
fn expect(manager: &Manager, ip: IpAddr, port: u16) {
    let channel = manager.event_channel().expect("a channel");
    let id = channel.create_id(PortSpace::Tcp).expect("an id");
    id.bind(SocketAddr::new(ip, port)).expect("free");
    id.listen(1).expect("a listener");
    say("expecting");
    let next = || channel.wait_event(Some(30_000)).expect("a channel");
    let request = next().expect("a request");
    assert_eq!(request.kind, EventKind::ConnectRequest);
    say("requested");
    say(&next().map_or_else(|| "nothing".to_owned(), |event| format!("{:?}", event.kind)));
}

/// An id that has requested a connection and has no answer, with its channel.
fn request(manager: &Manager, to: SocketAddr) -> (CmId, EventChannel) {
    let channel = manager.event_channel().expect("a channel");
    let id = channel.create_id(PortSpace::Tcp).expect("an id");
    let is_next = |kind| {
        let event = channel.wait_event(Some(30_000)).expect("a channel");
        assert_eq!(event.map(|event| event.kind), Some(kind));
    };
    id.resolve_addr(None, to, 1000).expect("a device");
    is_next(EventKind::AddrResolved);
    id.resolve_route(1000).expect("a path");
    is_next(EventKind::RouteResolved);
    id.connect(&ConnParam::default()).expect("sent");
    (id, channel)
}

/// One end of a connection.
struct End {
    qp: Qp,
    cq: Cq,
    mr: Mr,
    peer: Option<(Qpn, Remote)>,
    sent: u64,
    completed: u64,
    received: u64,
}

impl End {
    fn new(context: &Context) -> Self {
        let pd = context.alloc_pd().expect("a domain");
        let cq = context.create_cq(256).expect("a queue");
        let mr = pd.alloc_mr(LEN, ALL).expect("memory");
        let qp = pd.rc_qp(&cq, &cq, QpCap::new(64, 64)).create().expect("a queue pair");
        let Endpoint { gid, qpn, psn, mtu, .. } = qp.endpoint().expect("an endpoint");
        let ip = std::net::Ipv4Addr::from(gid.as_ipv4().expect("an IPv4 address"));
        let Remote { addr, rkey } = mr.remote(SCRATCH);
        let (qpn, psn, mtu) = (qpn.get(), psn.get(), mtu.bytes());
        say(&format!("endpoint {ip} {qpn} {psn} {mtu} {addr} {}", rkey.0));
        Self { qp, cq, mr, peer: None, sent: 0, completed: 0, received: 0 }
    }

    fn connect(&mut self, peer: &[&str]) {
        let [ip, qpn, psn, mtu, addr, rkey] = peer else { panic!("what is {peer:?}?") };
        let number = |text: &str| text.parse::<u64>().expect("a number");
        let ip: std::net::Ipv4Addr = ip.parse().expect("an address");
        let peer = Endpoint {
            gid: feroce::Gid::from_ipv4(ip.octets()),
            lid: feroce::Lid(0),
            qpn: Qpn::new(number(qpn) as u32),
            psn: Psn::new(number(psn) as u32),
            mtu: Pmtu::at_most(number(mtu) as usize).expect("an MTU"),
        };
        let recvs: Vec<_> = (0..WINDOW).map(|n| self.mr.recv(n, receive_slot(n))).collect();
        self.qp.connect(&peer).expect("connected");
        self.qp.post_recv(recvs).expect("room");
        // A peer counts as lost after two seconds, because a peer on a busy machine may take that
        // long to answer.
        let quick = QpAttr { timeout: Some(16), retry_cnt: Some(7), ..QpAttr::default() };
        self.qp.modify(&QpAttr::to(QpState::Sqd)).expect("draining");
        self.qp.modify(&QpAttr { state: Some(QpState::Sqd), ..quick }).expect("quick");
        self.qp.modify(&QpAttr::to(QpState::Rts)).expect("sending");
        let remote = Remote { addr: number(addr), rkey: Rkey(number(rkey) as u32) };
        self.peer = Some((peer.qpn, remote));
    }

    /// Sends and receives until `rounds` have passed in both directions. False: the peer is lost.
    fn exchange(&mut self, rounds: u64) -> bool {
        let expected = messages(rounds);
        while self.completed < rounds || self.received < expected {
            while self.sent < rounds && self.sent - self.completed < WINDOW {
                self.post();
            }
            let done = self.cq.wait().expect("a completion");
            if !self.on_completion(&done) {
                return false;
            }
        }
        true
    }

    /// Writes the numbers below `count` to the peer, each after the write before it has completed,
    /// and reads each back. Reports the outcome.
    fn write(&mut self, count: u64) -> String {
        let (_, remote) = self.peer.expect("connected");
        for n in 0..count {
            self.mr.write_at(0, &n.to_ne_bytes()).expect("in bounds");
            for (op, range) in [(SendOp::Write(remote), 0..8), (SendOp::Read(remote), 8..16)] {
                self.qp.post_send([SendWr::new(n, op, self.mr.data(range))]).expect("room");
                let done = self.cq.wait().expect("a completion");
                if done.status != WcStatus::Success {
                    return format!("failed {:?}", done.status);
                }
                assert_eq!(done.wr_id, n);
            }
            self.check(8, &n.to_ne_bytes(), n);
        }
        format!("written {count}")
    }

    /// The last number that the peer wrote.
    fn look(&self) -> String {
        let mut bytes = [0; 8];
        self.mr.read_at(SCRATCH, &mut bytes).expect("in bounds");
        format!("there is {}", u64::from_ne_bytes(bytes))
    }

    /// Sends as many messages as the window permits and takes completions, without waiting.
    fn step(&mut self) {
        while self.sent - self.completed < WINDOW {
            self.post();
        }
        while let Some(done) = self.cq.poll_one() {
            assert!(self.on_completion(&done), "{done:?}");
        }
    }

    /// False: the peer is lost.
    fn on_completion(&mut self, done: &Cqe) -> bool {
        match done.status {
            WcStatus::Success => {}
            WcStatus::RetryExceeded | WcStatus::Flushed => return false,
            other => panic!("{other:?}"),
        }
        if done.wr_id >= SENDS {
            self.on_sent(done.wr_id - SENDS);
        } else {
            self.on_received(done.wr_id, done.byte_len as usize);
        }
        true
    }

    /// Sends a message; some are written to the peer instead, and read back.
    fn post(&mut self) {
        let n = self.sent;
        self.sent += 1;
        let (_, remote) = self.peer.expect("connected");
        let at = (n % WINDOW) as usize * SLOT;
        let there = (n / 16 % WINDOW) as usize * SLOT;
        let remote = Remote { addr: remote.addr + there as u64, ..remote };
        let (op, bytes) = match n % 16 {
            14 => (SendOp::Write(remote), pattern(self.qp.qpn(), n)),
            15 => (SendOp::Read(remote), vec![0; pattern(self.qp.qpn(), n - 1).len()]),
            _ => (SendOp::Send, pattern(self.qp.qpn(), n)),
        };
        self.mr.write_at(at, &bytes).expect("in bounds");
        let wr = SendWr::new(SENDS + n, op, self.mr.data(at..at + bytes.len()));
        self.qp.post_send([wr]).expect("room");
    }

    fn on_sent(&mut self, n: u64) {
        assert_eq!(n, self.completed, "in order");
        self.completed += 1;
        if n % 16 == 15 {
            self.check((n % WINDOW) as usize * SLOT, &pattern(self.qp.qpn(), n - 1), n);
        }
        if n % 500 == 499 {
            say(&format!("progress {n}"));
        }
    }

    fn on_received(&mut self, slot: u64, len: usize) {
        let (peer, _) = self.peer.expect("connected");
        // Fourteen of sixteen are sent.
        let n = self.received / 14 * 16 + self.received % 14;
        self.received += 1;
        let bytes = pattern(peer, n);
        assert_eq!(len, bytes.len(), "message {n}");
        self.check(receive_slot(slot).start, &bytes, n);
        self.qp.post_recv([self.mr.recv(slot, receive_slot(slot))]).expect("room");
    }

    fn check(&self, at: usize, bytes: &[u8], n: u64) {
        let mut got = vec![0; bytes.len()];
        self.mr.read_at(at, &mut got).expect("in bounds");
        assert!(got == bytes, "message {n} is damaged");
    }
}

fn receive_slot(n: u64) -> std::ops::Range<usize> {
    let start = RECEIVES + n as usize * SLOT;
    start..start + SLOT
}

/// How many of `rounds` are messages: two of sixteen are one-sided.
pub(crate) fn messages(rounds: u64) -> u64 {
    rounds / 16 * 14 + (rounds % 16).min(14)
}

/// What message `n` of a queue pair contains; most are short.
fn pattern(qpn: Qpn, n: u64) -> Vec<u8> {
    let mut state = (u64::from(qpn.get()) << 32 | n).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let len = if next() % 8 == 0 { next() % 60_000 } else { next() % 2000 };
    let words: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| next().to_le_bytes()).collect();
    words[..len as usize].to_vec()
}
