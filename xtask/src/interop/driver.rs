//! The drivers of the kernel that are at the other end, and how to get the one that Debian's kernel
//! comes without.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::apt::Apt;
use super::failed;
use crate::packages::is_root;
use crate::shell::run;
use crate::{Failure, Outcome};

/// A driver of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Driver {
    /// Soft-RoCE.
    #[default]
    Rxe,
    /// Soft-iWARP.
    Siw,
}

impl Driver {
    fn named(name: &str) -> Option<Self> {
        [Self::Rxe, Self::Siw].into_iter().find(|driver| driver.name() == name)
    }

    /// The one that an option names, or the usual one.
    pub(super) fn of_option(name: Option<String>) -> Outcome<Self> {
        let Some(name) = name else { return Ok(Self::default()) };
        Self::named(&name).ok_or_else(|| Failure::Usage(format!("no driver `{name}`: rxe or siw")))
    }

    /// Variables with which feroce speaks as it does.
    pub(super) fn settings(self) -> Option<(&'static str, &'static str)> {
        (self == Self::Siw).then_some(("FEROCE_TRANSPORT", "iwarp"))
    }

    /// Its name for `rdma link add`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rxe => "rxe",
            Self::Siw => "siw",
        }
    }

    /// Its device in the guest.
    pub(super) fn device(self) -> &'static str {
        match self {
            Self::Rxe => "rxe0",
            Self::Siw => "siw0",
        }
    }
}

/// The switch of the kernel's configuration.
const SWITCH: &str = "CONFIG_RDMA_SIW=m";

/// Soft-iWARP for a kernel of Debian, which has its source but not the module: built as it is,
/// against the headers of that kernel, unless it is in the cache.
pub(super) fn build_siw(apt: &Apt, cache: &Path, package: &str, version: &str) -> Outcome<PathBuf> {
    let module = cache.join(format!("{package}.siw.ko"));
    if module.exists() {
        return Ok(module);
    }
    let headers = format!("linux-headers-{version}");
    let tree = Path::new("/usr/src").join(&headers);
    if !tree.exists() {
        if !is_root() {
            return Err(Failure::Failed(format!("as root: apt-get install {headers}")));
        }
        apt.install(&headers)?;
    }
    let folder = cache.join(format!("{package}.siw"));
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|e| failed(&folder, e))?;
    }
    fs::create_dir_all(&folder).map_err(|e| failed(&folder, e))?;
    let mut numbers = version.split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let revision = apt.version_of(package)?;
    apt.download(&format!("linux-source-{major}.{minor}={revision}"), &folder)?;
    let line = "dpkg-deb --fsys-tarfile ./*.deb | tar -xf - --wildcards './usr/src/*.tar.xz' && \
                tar -xJf usr/src/*.tar.xz --strip-components=5 --wildcards \
                '*/drivers/infiniband/sw/siw/*' && rm -r ./*.deb usr";
    run(Command::new("sh").args(["-c", line]).current_dir(&folder))?;
    let mut make = Command::new("make");
    make.arg("-C").arg(&tree).arg(format!("M={}", folder.display()));
    run(make.args([SWITCH, "modules"]))?;
    let built = folder.join("siw.ko");
    let fresh = cache.join(format!("{package}.siw.ko.{}", std::process::id()));
    run(Command::new("strip").arg("-g").arg("-o").arg(&fresh).arg(&built))?;
    fs::rename(&fresh, &module).map_err(|e| failed(&module, e))?;
    Ok(module)
}
