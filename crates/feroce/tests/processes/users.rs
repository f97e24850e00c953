//! Processes of several users on one host. Only root can start them.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::netns::{Cable, with_cable};
use super::process::{self, Process, registry};

/// Two users without privileges.
pub(crate) const USER: u32 = 1234;
pub(crate) const STRANGER: u32 = 65534;

/// Whether this test can start processes of other users.
pub(crate) fn can_be_others() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        eprintln!("SKIPPED: only root can start processes of other users");
    }
    is_root
}

pub(crate) fn by(user: u32) -> impl Fn(&mut Command) {
    move |command| {
        command.uid(user).gid(user);
    }
}

/// Starts a process of [`USER`] at the address of a namespace.
fn start(cable: &Cable) -> Process {
    let mut process = cable.in_a(|| Process::start_with(Cable::A4, by(USER)));
    assert_eq!(process.hear(), "open");
    process
}

/// Connects two processes, and checks that their messages stay inside the host.
fn talk(a: &mut Process, b: &mut Process) {
    process::talk(a, b, 200);
    for process in [a, b] {
        assert_eq!(process.counter("udp_tx_trains"), 0, "all of it inside the host");
    }
}

/// The directories of a user in the namespace of a cable.
fn directories(cable: &Cable, user: u32) -> Vec<PathBuf> {
    let namespace = cable.in_a(|| fs::metadata("/proc/thread-self/ns/net")).expect("/proc").ino();
    let is_meant = |path: &PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy();
        name.starts_with("feroce-")
            && name.contains(&format!("-{namespace}-"))
            && fs::metadata(path).is_ok_and(|found| found.uid() == user)
    };
    let all = fs::read_dir("/dev/shm").expect("/dev/shm").flatten();
    all.map(|entry| entry.path()).filter(is_meant).collect()
}

fn make_directory_of(user: u32, path: &Path) {
    fs::DirBuilder::new().mode(0o777).create(path).expect("a new directory");
    chown(path, Some(user), Some(user)).expect("we are root");
}

#[test]
fn a_name_that_a_stranger_takes_first_disables_nothing() {
    if !can_be_others() {
        return;
    }
    with_cable(1500, |cable| {
        let first = start(cable);
        let [usual] = &directories(cable, USER)[..] else { panic!("one registry") };
        first.finish();
        make_directory_of(STRANGER, usual);
        let (mut a, mut b) = (start(cable), start(cable));
        talk(&mut a, &mut b);
        // Now the usual name is free, and processes still find each other.
        fs::remove_dir(usual).expect("nothing is in it");
        let mut c = start(cable);
        talk(&mut a, &mut c);
        assert_eq!(directories(cable, USER).len(), 1);
        make_directory_of(STRANGER, usual);
        let mut d = start(cable);
        talk(&mut c, &mut d);
        [a, b, c, d].into_iter().for_each(Process::finish);
        assert!(directories(cable, USER).is_empty(), "nothing is left");
        fs::remove_dir(usual).expect("nothing is in it");
    });
}

/// In a user namespace a process is root by name. It is still the user that it was to others.
#[test]
fn a_user_who_plays_root_shares_with_itself_and_is_not_in_the_way_of_root() {
    if !can_be_others() {
        return;
    }
    with_cable(1500, |cable| {
        let play_root = || Process::start_through(&["unshare", "-r"], Cable::A4, by(USER));
        let mut player = cable.in_a(play_root);
        assert_eq!(player.hear(), "open");
        assert_eq!(cable.in_a(registry), PathBuf::new(), "the name of root is free");
        talk(&mut player, &mut start(cable));
        let roots = || cable.in_a(|| Process::start([127, 0, 0, 9]));
        let (mut a, mut b) = (roots(), roots());
        talk(&mut a, &mut b);
        [player, a, b].into_iter().for_each(Process::finish);
        assert!(directories(cable, USER).is_empty() && directories(cable, 0).is_empty());
    });
}

/// A process that opens a device at an address of another user gets an error that says so, and
/// cannot list the files of that user.
#[test]
fn users_do_not_share() {
    if !can_be_others() {
        return;
    }
    with_cable(1500, |cable| {
        let ours = cable.in_a(|| Process::start(Cable::A4));
        let directory = cable.in_a(registry);
        let as_other = by(STRANGER);
        let mut other = cable.in_a(|| Process::start_with(Cable::A4, &as_other));
        let said = other.hear();
        assert!(said.starts_with("error ") && said.contains("user 0 has it"), "{said}");
        let mut other = cable.in_a(|| Process::start_with([127, 0, 0, 9], &as_other));
        assert_eq!(other.hear(), "open", "another address");
        other.tell(&format!("list {}", directory.display()));
        assert_eq!(other.hear(), "list denied");
        other.finish();
        ours.finish();
        assert_eq!(cable.in_a(registry), PathBuf::new());
    });
}
