use std::path::PathBuf;

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

    fn join(&self) -> Member {
        Member::join(&self.0, 1).unwrap()
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
fn kill(member: Member) {
    member.left.store(true, Ordering::Relaxed);
    drop(member);
}

fn gid(last: u8) -> Gid {
    Gid::from_ipv4([192, 0, 2, last])
}

#[test]
fn members_have_prefixes_of_their_own_and_leave_nothing() {
    let root = Root::new("leave");
    let members: Vec<Member> = (0..8).map(|_| root.join()).collect();
    let mut prefixes: Vec<u8> = members.iter().map(Member::prefix).collect();
    prefixes.sort_unstable();
    prefixes.dedup();
    assert_eq!(prefixes.len(), 8);
    assert_eq!(members[0].others().count(), 7);
    drop(members);
    assert!(root.is_empty());
}

#[test]
fn the_same_seed_gives_the_same_prefix() {
    let root = Root::new("seed");
    let first = root.join().prefix();
    assert_eq!(root.join().prefix(), first);
}

#[test]
fn a_full_registry_says_so() {
    let root = Root::new("full");
    let members: Vec<Member> = (0..SLOTS).map(|_| root.join()).collect();
    let error = Member::join(&root.0, 1).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
    drop(members);
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
    assert!(a.lives(slot) && !a.bury_if_dead(slot));
    kill(b);
    assert!(!a.lives(slot));
    assert!(a.contact(slot).is_err());
    let mut fds = [nix::poll::PollFd::new(watched.life(), nix::poll::PollFlags::empty())];
    assert_eq!(poll(&mut fds, PollTimeout::ZERO), Ok(1), "the kernel tells who watches");
    let epoch = a.epoch();
    assert!(a.bury_if_dead(slot));
    assert_ne!(a.epoch(), epoch);
    assert_eq!(a.generation_of(slot), None);
    assert!(a.try_receive_at(gid(1)).unwrap());

    // The next member is another one, without addresses, in the same slot.
    let next = Member::join(&root.0, 1).unwrap();
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
    let member = root.join();
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
    drop(member);
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
    for member in [&a, &b] {
        let refused = member.claim_service(gid(1), 7).unwrap_err();
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
fn a_directory_of_others_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let root = Root::new("others");
    let member = root.join();
    let directory = std::fs::read_dir(&root.0).unwrap().next().unwrap().unwrap().path();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777)).unwrap();
    let refused = Member::join(&root.0, 1).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    drop(member);
    assert!(root.is_empty());
    // A symbolic link to a valid directory is refused.
    let elsewhere = Root::new("elsewhere");
    std::os::unix::fs::symlink(&elsewhere.0, &directory).unwrap();
    assert!(Member::join(&root.0, 1).is_err());
}
