//! Builds the library of `feroce run` into the command, where the command travels alone: under
//! `cargo install`, which installs programs and no libraries.
//!
//! In all other builds the library lies beside the command. `FEROCE_BUNDLE` decides otherwise: `1`
//! builds it in, `0` does not, and a path names a library to take.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=FEROCE_BUNDLE");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where to write"));
    let library = match env::var("FEROCE_BUNDLE").as_deref() {
        Ok("0") => None,
        Ok("1") => build(&out),
        Ok("") | Err(_) if is_installing() => build(&out),
        Ok("") | Err(_) => None,
        Ok(path) => Some(PathBuf::from(path)),
    };
    let source = match &library {
        None => "None".to_owned(),
        Some(library) => {
            println!("cargo::rerun-if-changed={}", library.display());
            let path = fs::canonicalize(library);
            let path = path.unwrap_or_else(|e| panic!("{}: {e}", library.display()));
            format!("Some(include_bytes!({path:?}))")
        }
    };
    fs::write(out.join("bundle.rs"), source).expect("the build folder can be written");
}

/// Whether the cargo that runs this program runs as `cargo install`.
fn is_installing() -> bool {
    let cargo = std::os::unix::process::parent_id();
    let line = fs::read(format!("/proc/{cargo}/cmdline")).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0).skip(1);
    words.any(|word| word == b"install")
}

/// Builds the library with a target folder of its own, since cargo holds the lock of the other one.
fn build(out: &Path) -> Option<PathBuf> {
    let own = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let manifest = own.join("../capi/Cargo.toml");
    if !manifest.exists() {
        println!(
            "cargo::warning=the library of `feroce run` is not built in: its source is not beside \
             that of the command"
        );
        return None;
    }
    // A change of its sources builds it again.
    println!("cargo::rerun-if-changed={}", own.join("..").display());
    let target = out.join("library");
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets it"));
    cargo.args(["build", "--release", "--manifest-path"]).arg(&manifest);
    cargo.arg("--target-dir").arg(&target).env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    // These are for the build of the command.
    for variable in ["CARGO_ENCODED_RUSTFLAGS", "RUSTC_WORKSPACE_WRAPPER", "RUSTC_WRAPPER"] {
        cargo.env_remove(variable);
    }
    let status = cargo.status().expect("cargo can be started");
    assert!(status.success(), "cannot build feroce-capi: FEROCE_BUNDLE=0 leaves it out");
    Some(target.join("release/libferoce_capi.so"))
}
