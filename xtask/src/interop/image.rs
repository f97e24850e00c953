//! The boot image of the guest: Debian's unmodified kernel, and an initial file system with the
//! modules to mount the root of the host and with the driver under test.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::apt::Apt;
use super::cpio::Archive;
use super::driver::{self, Driver};
use super::failed;
use crate::shell::{ask, cache_dir, run};
use crate::{Failure, Outcome};

/// What the guest needs before it has the modules of the host: its disk, its network, and the
/// drivers under test. Nothing is loaded later.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_net",
    "9p",
    "9pnet_virtio",
    "crc32_generic",
    "crc32_pclmul",
    "rdma_rxe",
    "libcrc32c",
    "crc32c_generic",
    "crc32c_intel",
    "ib_uverbs",
    "rdma_ucm",
];

const INIT: &str = include_str!("../../../interop/init.sh");

/// Files to boot from.
#[derive(Debug)]
pub(super) struct Image {
    /// Of the kernel, for example `6.1.0-54-amd64`.
    pub(super) version: String,
    /// What the guest loads.
    pub(super) driver: Driver,
    pub(super) kernel: PathBuf,
    pub(super) initrd: PathBuf,
}

impl Image {
    /// Downloads the newest kernel of a suite, or of this machine's, unless it is in the cache, and
    /// makes the first file system.
    pub(super) fn prepare(suite: Option<&str>, driver: Driver) -> Outcome<Self> {
        let cache = cache()?;
        let apt = Apt::new(suite, &cache)?;
        let package = apt.newest_kernel()?;
        let version = package.trim_start_matches("linux-image-").to_owned();
        let tree = cache.join(&package);
        if !tree.exists() {
            unpack(&apt, &package, &version, &tree)?;
        }
        let more = match driver {
            Driver::Rxe => None,
            Driver::Siw => Some(driver::build_siw(&apt, &cache, &package, &version)?),
        };
        let initrd = cache.join(format!("{package}.{}.initrd", driver.name()));
        // Another guest may be booting from the old file.
        let fresh = initrd.with_extension(format!("initrd.{}", std::process::id()));
        let files = first_files(&tree, &version, more.as_deref())?;
        fs::write(&fresh, files).map_err(|e| failed(&fresh, e))?;
        fs::rename(&fresh, &initrd).map_err(|e| failed(&initrd, e))?;
        let kernel = tree.join(format!("boot/vmlinuz-{version}"));
        Ok(Self { version, driver, kernel, initrd })
    }
}

/// The folder for what is downloaded, made if need be.
fn cache() -> Outcome<PathBuf> {
    let cache = cache_dir().join("interop");
    fs::create_dir_all(&cache).map_err(|e| failed(&cache, e))?;
    Ok(cache)
}

/// Downloads a kernel and unpacks it; `tree` appears when it is complete.
fn unpack(apt: &Apt, package: &str, version: &str, tree: &Path) -> Outcome {
    let part = tree.with_file_name(format!("{package}.part"));
    if part.exists() {
        fs::remove_dir_all(&part).map_err(|e| failed(&part, e))?;
    }
    let downloads = part.join("download");
    fs::create_dir_all(&downloads).map_err(|e| failed(&downloads, e))?;
    apt.download(package, &downloads)?;
    let files = fs::read_dir(&downloads).map_err(|e| failed(&downloads, e))?;
    for file in files.flatten() {
        run(Command::new("dpkg-deb").arg("--extract").arg(file.path()).arg(&part))?;
    }
    fs::remove_dir_all(&downloads).map_err(|e| failed(&downloads, e))?;
    if !part.join("lib/modules").exists() {
        // Newer packages have everything below /usr.
        let lib = part.join("lib");
        std::os::unix::fs::symlink("usr/lib", &lib).map_err(|e| failed(&lib, e))?;
    }
    run(Command::new("depmod").arg("-b").args([part.as_os_str(), version.as_ref()]))?;
    fs::rename(&part, tree).map_err(|e| failed(tree, e))
}

/// The first file system: busybox, the modules in the order of loading, one more that is loaded
/// last, and the first process.
fn first_files(tree: &Path, version: &str, more: Option<&Path>) -> Outcome<Vec<u8>> {
    let mut archive = Archive::default();
    for folder in ["bin", "dev", "proc", "sys", "host", "modules"] {
        archive.folder(folder);
    }
    archive.file("init", INIT.as_bytes());
    let busybox = Path::new("/bin/busybox");
    archive.file("bin/busybox", &fs::read(busybox).map_err(|e| failed(busybox, e))?);
    let (mut seen, mut order) = (BTreeSet::new(), String::new());
    for module in MODULES {
        for path in with_dependencies(tree, version, module) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let name = name.trim_end_matches(".xz").to_owned();
            if seen.insert(name.clone()) {
                archive.file(&format!("modules/{name}"), &content(&path)?);
                order += &format!("{name}\n");
            }
        }
    }
    if let Some(more) = more {
        archive.file("modules/more.ko", &content(more)?);
        order += "more.ko\n";
    }
    archive.file("modules/order", order.as_bytes());
    Ok(archive.finish())
}

/// The files of a module and of those that it needs, which come first. There are none if it is
/// part of the kernel itself.
fn with_dependencies(tree: &Path, version: &str, module: &str) -> Vec<PathBuf> {
    let mut modprobe = Command::new("modprobe");
    modprobe.arg("--dirname").arg(tree).args(["--set-version", version]);
    let lines = ask(modprobe.args(["--show-depends", module])).unwrap_or_default();
    let paths = lines.lines().filter_map(|line| line.strip_prefix("insmod "));
    paths.map(|path| PathBuf::from(path.trim())).collect()
}

/// A module, unpacked.
fn content(path: &Path) -> Outcome<Vec<u8>> {
    if path.extension().is_none_or(|extension| extension != "xz") {
        return fs::read(path).map_err(|e| failed(path, e));
    }
    let unpacked = Command::new("xz").args(["--decompress", "--stdout"]).arg(path).output();
    let unpacked = unpacked.map_err(|e| failed("xz", e))?;
    match unpacked.status.success() {
        true => Ok(unpacked.stdout),
        false => Err(Failure::Failed(format!("xz: {}", path.display()))),
    }
}
