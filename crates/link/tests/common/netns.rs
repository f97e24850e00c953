//! Two network namespaces with a cable between them, made for one test and gone with it.
//!
//! Root makes them directly. For other users, the test runs itself again as root of a user
//! namespace of its own.

use std::fs::File;
use std::process::Command;
use std::sync::mpsc;

use feroce_wire::Gid;
use nix::sched::{CloneFlags, setns, unshare};

/// Set where a test runs inside the namespaces made for it.
const INSIDE: &str = "FEROCE_TEST_INSIDE";

/// Two namespaces, `a` and `b`, and a veth pair between them: interface `wire` in both. Addresses:
/// 10.9.0.1 and .2, fd09::1 and ::2, fe80::1 and ::2.
pub(crate) struct Cable {
    before: File,
    a: File,
    b: File,
}

impl Cable {
    pub(crate) const A4: [u8; 4] = [10, 9, 0, 1];
    pub(crate) const B4: [u8; 4] = [10, 9, 0, 2];

    /// Runs `f` with this thread in namespace `a`.
    pub(crate) fn in_a<R>(&self, f: impl FnOnce() -> R) -> R {
        self.inside(&self.a, f)
    }

    /// Runs `f` with this thread in namespace `b`.
    pub(crate) fn in_b<R>(&self, f: impl FnOnce() -> R) -> R {
        self.inside(&self.b, f)
    }

    /// Runs `f` with this thread in another namespace.
    pub(crate) fn inside<R>(&self, ns: &File, f: impl FnOnce() -> R) -> R {
        setns(ns, CloneFlags::CLONE_NEWNET).expect("a namespace of ours");
        let result = f();
        setns(&self.before, CloneFlags::CLONE_NEWNET).expect("where we came from");
        result
    }

    fn new(mtu: u32) -> nix::Result<Self> {
        let before = current();
        unshare(CloneFlags::CLONE_NEWNET)?;
        let a = current();
        unshare(CloneFlags::CLONE_NEWNET)?;
        let b = current();
        setns(&a, CloneFlags::CLONE_NEWNET)?;
        ip("link add wire type veth peer name other");
        give_away("other", &b);
        let cable = Self { before, a, b };
        setns(&cable.before, CloneFlags::CLONE_NEWNET)?;
        cable.in_b(|| ip("link set other name wire"));
        cable.in_a(|| bring_up(mtu, 1));
        cable.in_b(|| bring_up(mtu, 2));
        cable.in_a(wait_for_carrier);
        cable.in_b(wait_for_carrier);
        cable.in_a(|| configure(1, 2));
        cable.in_b(|| configure(2, 1));
        Ok(cable)
    }

    /// Makes the kernel of `a` cut trains into packets before the cable, as hardware without
    /// segmentation offload needs it.
    pub(crate) fn cut_trains(&self) {
        self.in_a(|| ip("link set wire gso_max_segs 1"));
    }

    pub(crate) fn a4() -> Gid {
        Gid::from_ipv4(Self::A4)
    }

    pub(crate) fn b4() -> Gid {
        Gid::from_ipv4(Self::B4)
    }
}

/// `fd09::n`.
pub(crate) fn global(n: u8) -> Gid {
    let mut gid = [0; 16];
    (gid[0], gid[1], gid[15]) = (0xfd, 0x09, n);
    Gid(gid)
}

/// `fe80::n`.
pub(crate) fn link_local(n: u8) -> Gid {
    let mut gid = [0; 16];
    (gid[0], gid[1], gid[15]) = (0xfe, 0x80, n);
    Gid(gid)
}

fn bring_up(mtu: u32, n: u8) {
    ip("link set lo up");
    ip(&format!("link set wire address 02:00:00:00:00:0{n} mtu {mtu} addrgenmode none up"));
}

/// The kernel notices some time later that both ends are up, and drops packets until then.
fn wait_for_carrier() {
    while !ip("link show wire").contains("state UP") {}
}

/// Gives this end addresses, and knowledge of the other end.
fn configure(n: u8, other: u8) {
    ip(&format!("addr add 10.9.0.{n}/24 dev wire"));
    for net in ["fd09", "fe80"] {
        ip(&format!("addr add {net}::{n}/64 dev wire nodad"));
    }
    // The kernel sets up the routes of new addresses some time later.
    let is_local = |net| ip("-6 route show table local").contains(&format!("local {net}::{n} "));
    while !["fd09", "fe80"].into_iter().all(is_local) {}
    for addr in ["10.9.0.", "fd09::", "fe80::"] {
        ip(&format!("neigh add {addr}{other} lladdr 02:00:00:00:00:0{other} dev wire"));
    }
}

/// Moves an interface to another namespace. `ip` knows namespaces by the threads in them.
pub(crate) fn give_away(interface: &str, ns: &File) {
    std::thread::scope(|scope| {
        let (say_id, id) = mpsc::channel();
        let (stop, stopped) = mpsc::channel::<()>();
        scope.spawn(move || {
            setns(ns, CloneFlags::CLONE_NEWNET).expect("a namespace of ours");
            say_id.send(nix::unistd::gettid()).expect("the parent listens");
            let _ = stopped.recv();
        });
        let id = id.recv().expect("the thread says who it is");
        ip(&format!("link set {interface} netns {id}"));
        drop(stop);
    });
}

/// A namespace without interfaces.
pub(crate) fn new_namespace() -> File {
    let before = current();
    unshare(CloneFlags::CLONE_NEWNET).expect("a namespace");
    let new = current();
    setns(&before, CloneFlags::CLONE_NEWNET).expect("where we came from");
    new
}

fn current() -> File {
    File::open("/proc/thread-self/ns/net").expect("/proc is there")
}

/// Runs `ip` in the namespace of this thread and returns what it says.
pub(crate) fn ip(args: &str) -> String {
    let output = Command::new("ip").args(args.split(' ')).output().expect("`ip` is installed");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {args}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The index of an interface in the namespace of this thread.
pub(crate) fn index_of(name: &str) -> u32 {
    nix::net::if_::if_nametoindex(name).expect("the interface is there")
}

/// Runs `body` with a cable. Where that is not permitted, says so and passes; fails on CI.
pub(crate) fn with_cable(mtu: u32, body: fn(&Cable)) {
    match Cable::new(mtu) {
        Ok(cable) => body(&cable),
        Err(e) if std::env::var_os(INSIDE).is_some() => panic!("no namespace inside one: {e}"),
        Err(e) => run_again(e),
    }
}

/// Runs the current test as root of a user namespace.
fn run_again(why: nix::Error) {
    let may = Command::new("unshare").args(["-Urn", "true"]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        let on_ci = std::env::var_os("CI").is_some();
        assert!(!on_ci, "network namespaces are not permitted here: {why}");
        eprintln!("SKIPPED: network namespaces are not permitted here: {why}");
        return;
    }
    let thread = std::thread::current();
    let test = thread.name().expect("tests run in threads of their name");
    let exe = std::env::current_exe().expect("we run");
    let status = Command::new("unshare")
        .args(["-Urn", "--"])
        .arg(exe)
        .args(["--exact", test, "--nocapture", "--test-threads", "2"])
        .env(INSIDE, "1")
        .status()
        .expect("`unshare` is there");
    assert!(status.success(), "the test failed in its user namespace");
}
