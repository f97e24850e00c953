//! What the tests of the shared library have in common: where it is, and a C compiler.
#![allow(dead_code, reason = "every test uses a part")]

use std::io::{ErrorKind, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::{env, fs};

/// The names under which programs look for the library.
pub(crate) const NAMES: [&str; 6] = [
    "libibumad.so",
    "libibumad.so.3",
    "libibverbs.so",
    "libibverbs.so.1",
    "librdmacm.so",
    "librdmacm.so.1",
];

/// The library, built if it is not up to date: cargo does not do so for tests, which cannot link
/// to a library of C.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| built(["--package=feroce-capi", "--lib"]).join("libferoce_capi.so"))
}

/// The `feroce` command, built if it is not up to date.
pub(crate) fn command() -> &'static Path {
    static COMMAND: OnceLock<PathBuf> = OnceLock::new();
    COMMAND.get_or_init(|| built(["--package=feroce-cli", "--bin=feroce"]).join("feroce"))
}

/// Builds something as this test was built, and says where it is.
fn built(what: [&str; 2]) -> PathBuf {
    let (mut cargo, folder) = cargo("build");
    let built = cargo.args(what).output().expect("cargo");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    folder
}

/// A command of cargo that builds as this test was built, and where it puts what it builds.
pub(crate) fn cargo(verb: &str) -> (Command, PathBuf) {
    // target/debug/deps/this-test
    let test = env::current_exe().expect("the path of this test");
    let folder = test.parent().and_then(Path::parent).expect("the folder of a profile");
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") => "dev",
        Some(name) => name,
        None => panic!("{} is not in a folder of cargo", test.display()),
    };
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args([verb, "--profile", profile]).current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.arg("--target-dir").arg(folder.parent().expect("the folder of cargo"));
    (cargo, folder.to_owned())
}

/// A folder of this test, made anew.
pub(crate) fn scratch(name: &str) -> PathBuf {
    // LD_PRELOAD and LD_LIBRARY_PATH end a path at a colon.
    let name = format!("capi-{}", name.replace("::", "-"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    match fs::remove_dir_all(&folder) {
        Err(e) if e.kind() != ErrorKind::NotFound => panic!("{}: {e}", folder.display()),
        _ => fs::create_dir_all(&folder).expect("a folder"),
    }
    folder
}

/// A folder with the library under its names, as `feroce run` makes it.
pub(crate) fn directory(name: &str) -> PathBuf {
    let folder = scratch(name);
    for name in NAMES {
        symlink(library(), folder.join(name)).expect("a link");
    }
    folder
}

/// Runs a command to its end; `None`, said aloud, if it is not installed and need not be.
pub(crate) fn output(command: &mut Command, package: &str) -> Option<Output> {
    match command.output() {
        Ok(output) => Some(output),
        Err(e) if e.kind() == ErrorKind::NotFound => skip(command.get_program(), package),
        Err(e) => panic!("{}: {e}", command.get_program().display()),
    }
}

/// Says that a test cannot run for want of a package. In CI it must.
pub(crate) fn skip<T>(what: impl AsRef<Path>, package: &str) -> Option<T> {
    let what = what.as_ref().display();
    assert!(env::var_os("CI").is_none(), "{what} must be there in CI: apt-get install {package}");
    // Straight to the stream: the test harness hides what the macros print.
    let line = format!("SKIPPED: {what} is missing (apt-get install {package})\n");
    std::io::stderr().write_all(line.as_bytes()).expect("stderr");
    None
}

/// Whether the headers of the libraries are there.
pub(crate) fn headers() -> Option<()> {
    let wanted = ["infiniband/verbs.h", "infiniband/umad.h", "rdma/rdma_cma.h"];
    let mut wanted = wanted.iter().map(|header| Path::new("/usr/include").join(header));
    match wanted.find(|header| !header.exists()) {
        None => Some(()),
        Some(header) => skip(header, "libibverbs-dev libibumad-dev librdmacm-dev"),
    }
}

/// Runs the C compiler with the arguments; its output must be empty of errors.
pub(crate) fn gcc(args: &[&str]) -> Option<Output> {
    let output = output(Command::new("gcc").args(args), "gcc")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "gcc {}:\n{errors}", args.join(" "));
    Some(output)
}
