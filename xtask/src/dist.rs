//! `cargo xtask dist`: what to give to people who do not build.

mod clean;
mod deb;
mod trial;

pub(crate) use trial::all as try_out;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::args::Args;
use crate::shell::{ask, build_packed, is_on_path, packed, root, run, target_dir};
use crate::{Failure, Outcome};

pub(crate) const HELP: &str = "\
Builds feroce for others: a directory that can be put anywhere, with the command, the library
that stands in for libibverbs and librdmacm, manual pages and completions; and the same as an
archive, a Debian package and a wheel for pip.

Usage: cargo xtask dist [--out DIR] [--try]

Options:
  --out DIR   Where to put them (default: dist in the target directory)
  --try       Try each of them, and the command as `cargo install` installs it, in a root file
              system that has nothing else (needs a Debian, which need not be root)
";

/// The names under which programs look for the library.
const NAMES: [&str; 6] = [
    "libibumad.so",
    "libibumad.so.3",
    "libibverbs.so",
    "libibverbs.so.1",
    "librdmacm.so",
    "librdmacm.so.1",
];

/// Shells, and where each looks for completions.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "bash-completion/completions/feroce"),
    ("zsh", "zsh/site-functions/_feroce"),
    ("fish", "fish/vendor_completions.d/feroce.fish"),
];

const DOCUMENTS: &[&str] = &[
    "README.md",
    "CHANGELOG.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "docs/DROP-IN.md",
    "docs/CONFIGURATION.md",
];

/// What was built.
pub(crate) struct Built {
    /// The directory that can be put anywhere.
    folder: PathBuf,
    /// The same in one file.
    archive: PathBuf,
    /// The package, where there are the tools to make one.
    package: Option<PathBuf>,
    /// The wheel, where there is a Python to make one.
    wheel: Option<PathBuf>,
}

pub(crate) fn main(mut args: Args) -> Outcome {
    let out: Option<PathBuf> = args.value("--out")?;
    let tries = args.flag("--try");
    args.finish()?;
    let out = out.unwrap_or_else(|| target_dir().join("dist"));
    let built = build(&out)?;
    println!("dist: {}", built.folder.display());
    println!("dist: {}", built.archive.display());
    match &built.package {
        Some(package) => println!("dist: {}", package.display()),
        None => println!("dist: no Debian package, since dpkg-deb is not here"),
    }
    match &built.wheel {
        Some(wheel) => println!("dist: {}", wheel.display()),
        None => println!("dist: no wheel, since python3 is not here"),
    }
    if tries {
        try_out(&built, &out)?.iter().for_each(|untried| println!("dist: untried: {untried}"));
    }
    Ok(())
}

/// Builds all of them into `out`.
pub(crate) fn build(out: &Path) -> Outcome<Built> {
    build_packed()?;
    let version = version()?;
    let folder = out.join(format!("feroce-{version}-{}", std::env::consts::ARCH));
    tree(&folder)?;
    let package = match is_on_path("dpkg-deb") {
        true => Some(deb::build(out, &folder, &version)?),
        false => None,
    };
    let archive = archive(out, &folder)?;
    let wheel = match is_on_path("python3") {
        true => Some(wheel(out, &folder, &version)?),
        false => None,
    };
    Ok(Built { folder, archive, package, wheel })
}

/// Packs the directory into one file, which is the same for the same content.
fn archive(out: &Path, folder: &Path) -> Outcome<PathBuf> {
    let name = folder.file_name().unwrap_or_default();
    let archive = out.join(name).with_added_extension("tar.gz");
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0"]);
    run(tar.arg("-czf").arg(&archive).arg("-C").arg(out).arg(name))?;
    Ok(archive)
}

/// Packs command and library as a wheel for this processor, and C libraries from this one on.
fn wheel(out: &Path, folder: &Path, version: &str) -> Outcome<PathBuf> {
    let binaries = ["bin/feroce", "lib/feroce/libferoce.so"].map(|path| folder.join(path));
    let libc = deb::newest_libc(&binaries)?.replace('.', "_");
    let platform = format!("manylinux_{libc}_{}", std::env::consts::ARCH);
    let mut pack = Command::new("python3");
    pack.arg(root().join("xtask/src/dist/wheel.py")).arg(folder).args([version, &platform]);
    let wheel = ask(pack.arg(root().join("README.md")).arg(out));
    let wheel = wheel.ok_or_else(|| Failure::Failed("the wheel cannot be packed".into()))?;
    Ok(PathBuf::from(wheel.trim()))
}

/// The version of the workspace.
fn version() -> Outcome<String> {
    let text =
        fs::read_to_string(root().join("Cargo.toml")).map_err(|e| failed("Cargo.toml", e))?;
    let line = text.lines().find_map(|line| line.strip_prefix("version = \""));
    let version = line.and_then(|rest| rest.strip_suffix('"'));
    version.map(str::to_owned).ok_or_else(|| Failure::Failed("Cargo.toml has no version".into()))
}

/// Lays out the directory: `bin`, `lib/feroce`, `share`.
fn tree(folder: &Path) -> Outcome {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|e| failed(folder, e))?;
    }
    let command = folder.join("bin/feroce");
    copy(&packed("feroce"), &command)?;
    let library = folder.join("lib/feroce/libferoce.so");
    copy(&packed("libferoce_capi.so"), &library)?;
    for name in NAMES {
        let link = library.with_file_name(name);
        symlink("libferoce.so", &link).map_err(|e| failed(&link, e))?;
    }
    if is_on_path("strip") {
        // What is exported stays: it is in the dynamic symbol table.
        run(Command::new("strip").arg("--strip-unneeded").args([&command, &library]))?;
    }
    let share = folder.join("share");
    run(Command::new(&command).arg("man").arg(share.join("man/man1")))?;
    for (shell, place) in COMPLETIONS {
        let script = ask(Command::new(&command).args(["completions", shell]));
        let script = script.ok_or_else(|| Failure::Failed(format!("no completions: {shell}")))?;
        write(&share.join(place), &script)?;
    }
    for document in DOCUMENTS {
        let name = Path::new(document).file_name().unwrap_or_default();
        copy(&root().join(document), &share.join("doc/feroce").join(name))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Outcome {
    make_room(to)?;
    fs::copy(from, to).map(|_| ()).map_err(|e| failed(from, e))
}

fn write(path: &Path, text: &str) -> Outcome {
    make_room(path)?;
    fs::write(path, text).map_err(|e| failed(path, e))
}

/// Makes the folder that a file is to be in.
fn make_room(file: &Path) -> Outcome {
    let folder = file.parent().unwrap_or(file);
    fs::create_dir_all(folder).map_err(|e| failed(folder, e))
}

fn failed(path: impl AsRef<Path>, error: std::io::Error) -> Failure {
    Failure::Failed(format!("{}: {error}", path.as_ref().display()))
}
