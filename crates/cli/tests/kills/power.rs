//! A file system that can lose its power: ext4 on a loop device.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system in a file. It is unmounted when this is dropped.
#[derive(Debug)]
pub(super) struct FileSystem {
    image: PathBuf,
    mounted: PathBuf,
}

fn run(program: &str, args: &[&str]) {
    let out = Command::new(program).args(args).output();
    let out = out.unwrap_or_else(|e| panic!("{program} does not start: {e}"));
    assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
}

fn name(path: &Path) -> &str {
    path.to_str().expect("a name")
}

impl FileSystem {
    /// Makes one in a folder. This needs root, e2fsprogs and xfsprogs.
    pub(super) fn make(folder: &Path) -> Self {
        let this = Self { image: folder.join("ext4"), mounted: folder.join("mounted") };
        let image = std::fs::File::create(&this.image).and_then(|file| file.set_len(32 << 20));
        image.expect("a file");
        std::fs::create_dir(&this.mounted).expect("a folder");
        run("mkfs.ext4", &["-q", name(&this.image)]);
        this.mount();
        this
    }

    pub(super) fn folder(&self) -> &Path {
        &self.mounted
    }

    fn mount(&self) {
        run("mount", &["-o", "loop", name(&self.image), name(&self.mounted)]);
    }

    /// Nothing that is not on the device reaches it any more.
    pub(super) fn lose_power(&self) {
        run("xfs_io", &["-x", "-c", "shutdown", name(&self.mounted)]);
    }

    /// The computer starts again. No process has a file open.
    pub(super) fn restore(&self) {
        run("umount", &[name(&self.mounted)]);
        self.mount();
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        // A test that fails may have left files open.
        let _ = Command::new("umount").args(["-l", name(&self.mounted)]).status();
    }
}
