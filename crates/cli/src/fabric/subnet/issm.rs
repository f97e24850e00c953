//! How subnet managers say that they run: they hold a file of their port open.
//!
//! The file is a FIFO, which a program can open for reading without anything to read. The kernel
//! tells the fabric that a FIFO was opened (inotify); the fabric then opens it for writing, which
//! succeeds as long as there is a reader, and the kernel reports when the last reader has gone.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use feroce_subnet::{PortRef, Subnet};
use nix::fcntl::OFlag;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

#[derive(Debug)]
pub(super) struct IsSm {
    folder: PathBuf,
    inotify: Inotify,
    /// Ports that a subnet manager holds open.
    held: BTreeMap<PortRef, File>,
}

impl IsSm {
    /// Makes the files of all ports of adapters.
    pub(super) fn new(folder: &Path, subnet: &Subnet) -> anyhow::Result<Self> {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let this = Self { folder: folder.to_owned(), inotify, held: BTreeMap::new() };
        for (index, node) in subnet.nodes().iter().enumerate() {
            if node.switch().is_some() || !node.is_here() {
                continue;
            }
            for port in 1..=node.info().num_ports {
                let path = this.path(PortRef { node: index, port });
                mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)
                    .with_context(|| path.display().to_string())?;
            }
        }
        this.inotify.add_watch(folder, AddWatchFlags::IN_OPEN)?;
        Ok(this)
    }

    /// The file of a port.
    pub(super) fn path(&self, at: PortRef) -> PathBuf {
        self.folder.join(format!("{}-{}", at.node, at.port))
    }

    /// The ports whose file was opened, with a file that reports the end of it.
    pub(super) fn opened(&mut self) -> Vec<PortRef> {
        let events = self.inotify.read_events().unwrap_or_default();
        let names = events.iter().filter_map(|event| event.name.as_deref());
        let ports: Vec<PortRef> = names.filter_map(parse).collect();
        ports.into_iter().filter(|at| self.hold(*at)).collect()
    }

    fn hold(&mut self, at: PortRef) -> bool {
        if self.held.contains_key(&at) {
            return false;
        }
        let flags = OFlag::O_NONBLOCK.bits();
        // Without a reader there is nothing to hold (ENXIO).
        let opened = File::options().write(true).custom_flags(flags).open(self.path(at));
        opened.is_ok_and(|file| {
            self.held.insert(at, file);
            true
        })
    }

    /// The file that reports that the reader of a port has gone.
    pub(super) fn holder(&self, at: PortRef) -> Option<&File> {
        self.held.get(&at)
    }

    /// The reader of a port has gone.
    pub(super) fn release(&mut self, at: PortRef) {
        self.held.remove(&at);
    }
}

impl AsFd for IsSm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

fn parse(name: &OsStr) -> Option<PortRef> {
    let (node, port) = name.to_str()?.split_once('-')?;
    Some(PortRef { node: node.parse().ok()?, port: port.parse().ok()? })
}
