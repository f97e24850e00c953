//! What portd has given out, in a file that outlives it.
//!
//! When portd ends, its processes keep their prefixes and services, and ask the next portd for them
//! within milliseconds. Another user may be faster. So portd writes down which user has what before
//! it answers, and the next portd keeps it for that user.
//!
//! The file belongs to the user of portd and to its network namespace, and only that user can
//! access it. It has places of a fixed size, and each change is one write, so the file is complete
//! whenever portd is killed. It is in memory and ends with the machine, as the processes do.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use feroce_wire::Gid;

use super::message::Address;
use crate::directory::{Directory, network_namespace};
use crate::lock;

/// The first bytes of the file. The number at the end counts the versions of the format.
const MAGIC: [u8; 16] = *b"feroce ledger  1";
/// Where the users of prefixes begin, and the bytes of each: whether it is used, and the user.
const PREFIXES: u64 = MAGIC.len() as u64;
const PREFIX_LEN: u64 = 8;
/// Where services begin, and the bytes of each: whether it is used, the user, address, interface
/// and number.
const SERVICES: u64 = PREFIXES + 256 * PREFIX_LEN;
const SERVICE_LEN: usize = 40;
/// The most services that are read: 1024 of each of 255 processes.
const MAX_SERVICES: u64 = 255 * 1024;

/// The file of a network namespace that no portd has touched for so long is removed.
const FORGET: Duration = Duration::from_secs(600);

/// A service at an address.
pub(super) type Service = (Address, u64);

/// What the last portd had given out: users by prefix and by service.
#[derive(Debug, Default)]
pub(super) struct Given {
    pub(super) prefixes: BTreeMap<u8, u32>,
    pub(super) services: BTreeMap<Service, u32>,
}

/// The file, and which of its places is whose.
#[derive(Debug)]
pub(super) struct Ledger {
    file: File,
    places: BTreeMap<Service, u64>,
    free: Vec<u64>,
    /// How many places for services the file has.
    count: u64,
}

impl Ledger {
    /// Opens the file of this user and network namespace below `root`, and reads what the last
    /// portd has written.
    pub(super) fn open(root: &Path) -> io::Result<(Self, Given)> {
        let directory = Directory::own(root, "feroce-portd")?;
        let own = network_namespace()?.to_string();
        let file = directory.file(&own, true)?;
        if !lock::try_hold(&file, 0)? {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another portd writes to it"));
        }
        let mut ledger = Self { file, places: BTreeMap::new(), free: Vec::new(), count: 0 };
        let given = ledger.read()?;
        remove_old(&directory, &own, &ledger.file);
        Ok((ledger, given))
    }

    fn read(&mut self) -> io::Result<Given> {
        let mut magic = [0; MAGIC.len()];
        let is_known = self.file.read_exact_at(&mut magic, 0).is_ok() && magic == MAGIC;
        if !is_known {
            self.file.set_len(0)?;
            self.file.set_len(SERVICES)?;
        }
        // Also if it is there: this tells other portds that the file is in use.
        self.file.write_all_at(&MAGIC, 0)?;
        let mut given = Given::default();
        for prefix in 0..=u8::MAX {
            let mut bytes = [0; PREFIX_LEN as usize];
            self.file.read_exact_at(&mut bytes, place_of(prefix))?;
            if let Some(user) = parse_user(&bytes) {
                given.prefixes.insert(prefix, user);
            }
        }
        let len = self.file.metadata()?.len().saturating_sub(SERVICES);
        self.count = (len / SERVICE_LEN as u64).min(MAX_SERVICES);
        for place in 0..self.count {
            let mut bytes = [0; SERVICE_LEN];
            self.file.read_exact_at(&mut bytes, place_of_service(place))?;
            match parse_service(&bytes) {
                Some((service, user)) => {
                    given.services.insert(service, user);
                    self.places.insert(service, place);
                }
                None => self.free.push(place),
            }
        }
        Ok(given)
    }

    /// A prefix belongs to a user; `None`: to no user any more.
    pub(super) fn set_prefix(&mut self, prefix: u8, user: Option<u32>) -> io::Result<()> {
        let bytes: Vec<u8> = user_bytes(user).concat();
        self.file.write_all_at(&bytes, place_of(prefix))
    }

    /// A service belongs to a user; `None`: to no user any more.
    pub(super) fn set_service(&mut self, service: Service, user: Option<u32>) -> io::Result<()> {
        let ((gid, scope), id) = service;
        let place = match (self.places.get(&service), user) {
            (Some(place), _) => *place,
            (None, None) => return Ok(()),
            (None, Some(_)) => self.free.pop().unwrap_or(self.count),
        };
        let mut bytes = user_bytes(user).concat();
        bytes.extend(gid.0);
        bytes.extend(scope.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(id.to_ne_bytes());
        self.file.write_all_at(&bytes, place_of_service(place))?;
        self.count = self.count.max(place + 1);
        if user.is_some() {
            self.places.insert(service, place);
        } else {
            self.places.remove(&service);
            self.free.push(place);
        }
        Ok(())
    }
}

/// Removes the files of network namespaces in which no portd runs, or was started again, for long:
/// possibly no process enters them any more.
fn remove_old(directory: &Directory, own: &str, file: &File) {
    // The time of the file system: this portd has just written to its own file.
    let written = |file: &File| file.metadata().and_then(|found| found.modified());
    let Ok(now) = written(file) else { return };
    for name in directory.names().iter().filter(|name| *name != own) {
        let Ok(other) = directory.file(name, false) else { continue };
        let is_old = written(&other)
            .is_ok_and(|at| now.duration_since(at).is_ok_and(|since| since > FORGET));
        if is_old && lock::try_hold(&other, 0).unwrap_or(false) {
            directory.remove(name);
        }
    }
}

fn place_of(prefix: u8) -> u64 {
    PREFIXES + u64::from(prefix) * PREFIX_LEN
}

fn place_of_service(place: u64) -> u64 {
    SERVICES + place * SERVICE_LEN as u64
}

fn user_bytes(user: Option<u32>) -> [[u8; 4]; 2] {
    [u32::from(user.is_some()).to_ne_bytes(), user.unwrap_or(0).to_ne_bytes()]
}

fn parse_user(bytes: &[u8]) -> Option<u32> {
    let (is_used, rest) = bytes.split_first_chunk()?;
    let (user, _) = rest.split_first_chunk()?;
    (u32::from_ne_bytes(*is_used) == 1).then(|| u32::from_ne_bytes(*user))
}

fn parse_service(bytes: &[u8; SERVICE_LEN]) -> Option<(Service, u32)> {
    let user = parse_user(bytes)?;
    let (gid, rest) = bytes[8..].split_first_chunk()?;
    let (scope, rest) = rest.split_first_chunk()?;
    let id = rest.last_chunk()?;
    let address = (Gid(*gid), u32::from_ne_bytes(*scope));
    Some(((address, u64::from_ne_bytes(*id)), user))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A directory that ends with the test.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("feroce-ledger-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).expect("a new directory");
            Self(path)
        }

        fn open(&self) -> (Ledger, Given) {
            Ledger::open(&self.0).expect("a ledger")
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn service(id: u64) -> Service {
        ((Gid([id as u8; 16]), id as u32), id)
    }

    #[test]
    fn the_next_portd_reads_what_this_one_wrote() {
        let root = Root::new("next");
        let (mut ledger, given) = root.open();
        assert!(given.prefixes.is_empty() && given.services.is_empty());
        ledger.set_prefix(1, Some(0)).expect("room");
        ledger.set_prefix(255, Some(1234)).expect("room");
        ledger.set_prefix(7, Some(5)).expect("room");
        ledger.set_prefix(7, None).expect("room");
        for id in 1..=5 {
            ledger.set_service(service(id), Some(100 + id as u32)).expect("room");
        }
        ledger.set_service(service(2), None).expect("room");
        drop(ledger);
        let (mut ledger, given) = root.open();
        assert_eq!(given.prefixes, BTreeMap::from([(1, 0), (255, 1234)]));
        let users: Vec<_> = given.services.into_iter().collect();
        assert_eq!(users, [1, 3, 4, 5].map(|id| (service(id), 100 + id as u32)));
        // The place of the second is free, and is used again.
        ledger.set_service(service(9), Some(9)).expect("room");
        assert_eq!(ledger.count, 5);
    }

    #[test]
    fn one_portd_writes_at_a_time_and_a_file_of_another_version_is_begun_again() {
        let root = Root::new("one");
        let (mut ledger, _) = root.open();
        assert_eq!(Ledger::open(&root.0).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        ledger.set_prefix(3, Some(3)).expect("room");
        ledger.file.write_all_at(b"feroce ledger  0", 0).expect("room");
        drop(ledger);
        assert!(root.open().1.prefixes.is_empty());
    }

    #[test]
    fn files_of_namespaces_that_ended_long_ago_are_removed() {
        let root = Root::new("old");
        drop(root.open());
        let directory = Directory::own(&root.0, "feroce-portd").expect("there");
        let (old, new) =
            (directory.file("1", true).expect("new"), directory.file("2", true).expect("new"));
        let ago = |file: &File, seconds| {
            let now = file.metadata().and_then(|found| found.modified()).expect("a time");
            file.set_modified(now - Duration::from_secs(seconds)).expect("our file");
        };
        ago(&old, 700);
        ago(&new, 500);
        let _ledger = root.open();
        let mut names = directory.names();
        names.retain(|name| name.len() == 1);
        assert_eq!(names, ["2"]);
    }
}
