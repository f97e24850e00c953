use std::path::PathBuf;

use feroce_link::Logger;
use nix::poll::{PollTimeout, poll};

use super::*;

/// A directory that is removed with the test.
struct Root(PathBuf);

impl Root {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("feroce-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn join(&self) -> Registry {
        Registry::join(&self.0, 1).unwrap()
    }

    fn is_empty(&self) -> bool {
        std::fs::read_dir(&self.0).unwrap().next().is_none()
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Ends like a killed process: the kernel closes its files, and nothing else happens.
fn kill(registry: Registry) {
    registry.left.store(true, Ordering::Relaxed);
    drop(registry);
}

fn gid(last: u8) -> Gid {
    Gid::from_ipv4([192, 0, 2, last])
}

#[test]
fn slots_have_prefixes_of_their_own_and_leave_nothing() {
    let root = Root::new("leave");
    let processes: Vec<Registry> = (0..8).map(|_| root.join()).collect();
    let mut prefixes: Vec<u8> = processes.iter().map(Registry::prefix).collect();
    prefixes.sort_unstable();
    prefixes.dedup();
    assert_eq!(prefixes.len(), 8);
    assert_eq!(processes[0].others().count(), 7);
    drop(processes);
    assert!(root.is_empty());
}

#[test]
fn the_same_seed_gives_the_same_prefix() {
    let root = Root::new("seed");
    let first = root.join().prefix();
    assert_eq!(root.join().prefix(), first);
}

/// Queue pair numbers begin with the prefix, so that it must not be predictable either.
#[test]
fn prefixes_follow_the_seed_and_not_the_order() {
    let root = Root::new("seeds");
    let alone = |seed| Registry::join(&root.0, seed).unwrap().prefix();
    let mut prefixes: Vec<u8> = (0..40).map(alone).collect();
    prefixes.sort_unstable();
    prefixes.dedup();
    assert!(prefixes.len() > 20, "{prefixes:?}");
}

#[test]
fn a_full_registry_says_so() {
    let root = Root::new("full");
    let processes: Vec<Registry> = (0..SLOTS).map(|_| root.join()).collect();
    let error = Registry::join(&root.0, 1).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
    drop(processes);
    assert!(root.join().prefix() > 0);
}

#[test]
fn the_dead_are_noticed_and_their_place_can_be_had() {
    let root = Root::new("dead");
    let (a, b) = (root.join(), root.join());
    let (slot, generation) = (b.slot(), b.generation);
    b.show_addresses(&[(gid(1), Some(3))]).unwrap();
    assert!(b.try_receive_at(gid(1)).unwrap());
    assert!(!a.try_receive_at(gid(1)).unwrap());
    let watched = a.contact(slot).unwrap();
    assert!(a.lives(slot) && !a.reap_if_dead(slot));
    kill(b);
    assert!(!a.lives(slot));
    assert!(a.contact(slot).is_err());
    let mut fds = [nix::poll::PollFd::new(watched.life(), nix::poll::PollFlags::empty())];
    assert_eq!(poll(&mut fds, PollTimeout::ZERO), Ok(1), "the kernel tells who watches");
    let epoch = a.epoch();
    assert!(a.reap_if_dead(slot));
    assert_ne!(a.epoch(), epoch);
    assert_eq!(a.generation_of(slot), None);
    assert!(a.try_receive_at(gid(1)).unwrap());

    // The next process is another one, without addresses, in the same slot.
    let next = Registry::join(&root.0, 1).unwrap();
    assert_eq!((next.slot() == slot, a.addresses_of(next.slot()).len()), (true, 0));
    assert!(next.generation > generation);
    drop((a, next));
    assert!(root.is_empty());
}

#[test]
fn who_joins_finds_what_the_dead_left_behind() {
    let root = Root::new("ruin");
    let (a, b) = (root.join(), root.join());
    drop(a.new_ring(b.slot()).unwrap());
    kill(a);
    kill(b);
    assert!(!root.is_empty());
    drop(root.join());
    assert!(root.is_empty());
}

#[test]
fn what_is_left_of_other_namespaces_is_removed_if_nobody_lives_there() {
    let root = Root::new("namespaces");
    let registry = root.join();
    let ours = std::fs::read_dir(&root.0).unwrap().next().unwrap().unwrap().path();
    let beside = |name: &str| {
        use std::os::unix::fs::DirBuilderExt;
        let path = root.0.join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        File::create(path.join(REGISTRY)).unwrap()
    };
    let user = nix::unistd::geteuid();
    let (dead, living) = (format!("feroce-{user}-1-v1"), format!("feroce-{user}-2-v9"));
    let (file, _) = (beside(&living), beside(&dead));
    assert!(lock::try_hold(&file, byte_of_slot(7)).unwrap());
    std::fs::create_dir(root.0.join("feroce-else")).unwrap();
    drop(root.join());
    assert!(ours.exists() && root.0.join(&living).exists() && !root.0.join(&dead).exists());
    assert!(root.0.join("feroce-else").exists());
    drop(registry);
}

#[test]
fn a_ring_reaches_its_receiver_even_after_its_sender_has_gone() {
    let root = Root::new("ring");
    let (a, b) = (root.join(), root.join());
    let mut ring = a.new_ring(b.slot()).unwrap();
    assert_eq!(ring.stage(5, |out| out.copy_from_slice(b"hello")), Ok(true));
    ring.publish();
    assert!(b.has_new_senders());
    let from = a.slot();
    drop((ring, a));
    assert_eq!(b.new_senders(), [from]);
    assert!(!b.has_new_senders());
    let mut rings = b.rings_from(from, &Logger::default());
    assert_eq!(rings.len(), 1);
    let mut out = [0; 16];
    assert_eq!(rings[0].1.pop(&mut out), Ok(Some(5)));
    assert_eq!(&out[..5], b"hello");
    assert!(b.rings_from(from, &Logger::default()).is_empty(), "a ring is taken once");
}

#[test]
fn a_service_is_taken_by_one() {
    let root = Root::new("service");
    let (a, b) = (root.join(), root.join());
    a.claim_service(gid(1), 7).unwrap();
    for registry in [&a, &b] {
        let refused = registry.claim_service(gid(1), 7).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    }
    b.claim_service(gid(2), 7).unwrap();
    b.claim_service(gid(1), 8).unwrap();
    assert!(b.serves(a.slot(), gid(1), 7) && !b.serves(a.slot(), gid(2), 7));
    a.release_service(gid(1), 7);
    assert!(!b.serves(a.slot(), gid(1), 7));
    b.claim_service(gid(1), 7).unwrap();
    kill(b);
    a.claim_service(gid(1), 7).unwrap();
}

#[test]
fn a_directory_of_others_is_left_alone() {
    use std::os::unix::fs::PermissionsExt;
    let root = Root::new("others");
    let path = {
        let _registry = root.join();
        std::fs::read_dir(&root.0).unwrap().next().unwrap().unwrap().path()
    };
    // Others may write to it.
    std::fs::create_dir(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    let (a, b) = (root.join(), root.join());
    assert_eq!((a.others().count(), b.others().count()), (1, 1));
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
    drop((a, b));
    // It leads elsewhere.
    std::fs::remove_dir(&path).unwrap();
    let elsewhere = Root::new("elsewhere");
    std::os::unix::fs::symlink(&elsewhere.0, &path).unwrap();
    let (a, b) = (root.join(), root.join());
    assert_eq!((a.others().count(), b.others().count()), (1, 1));
    assert!(elsewhere.is_empty());
    drop((a, b));
    std::fs::remove_file(&path).unwrap();
    assert!(root.is_empty());
}

/// Tells a thread to end.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Names come and go while processes join: at the end all have found the same registry.
#[test]
fn processes_agree_while_a_stranger_takes_names_and_gives_them_back() {
    let root = Root::new("agree");
    let usual = {
        let _registry = root.join();
        std::fs::read_dir(&root.0).unwrap().next().unwrap().unwrap().path()
    };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // A link is not a directory of this user, even if this user made it.
                if std::os::unix::fs::symlink("/", &usual).is_ok() {
                    std::thread::yield_now();
                    std::fs::remove_file(&usual).unwrap();
                }
                std::thread::yield_now();
            }
        });
        // Also if the test fails: otherwise it would never end.
        let _end = EndOnDrop(&is_over);
        for _ in 0..100 {
            let join = || loop {
                match Registry::join(&root.0, 1) {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                    joined => return joined.unwrap(),
                }
            };
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(join)).collect();
            let joined: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
            let seen: Vec<_> = joined.iter().map(|registry| registry.others().count()).collect();
            assert_eq!(seen, [2, 2, 2]);
        }
    });
}
