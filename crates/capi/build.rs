//! Gives the linker the version nodes of the libraries.

use std::path::Path;
use std::{env, fs};

/// Nodes of one library in order, each inheriting from the one before.
const CHAINS: &[(&str, &[&str])] = &[
    (
        "IBVERBS_",
        &[
            "1.0", "1.1", "1.5", "1.6", "1.7", "1.8", "1.9", "1.10", "1.11", "1.12", "1.13",
            "1.14", "1.15", "1.16", "1.17", "1.18",
        ],
    ),
    ("IBUMAD_", &["1.0", "1.1", "1.2", "1.3", "1.4"]),
    ("RDMACM_", &["1.0", "1.1", "1.2", "1.3", "1.4", "1.5"]),
];

/// Nodes that stand alone: what libibverbs gives to the rest of rdma-core, by release.
const PRIVATE: &[&str] = &["34", "57", "59", "64", "65"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = env::var("OUT_DIR").expect("cargo says where to write");
    let map = Path::new(&out).join("nodes.map");
    fs::write(&map, version_script()).expect("the version script can be written");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
    // A program that was linked with libibverbs.so.1 does not load another one once this file is
    // there, whatever name it was found under.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    // Its threads run on when a program unloads it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // GNU ld refuses a second version script beside the one of rustc. lld, which is the default
    // for this one target, takes both.
    if env::var("TARGET").is_ok_and(|target| target != "x86_64-unknown-linux-gnu") {
        println!("cargo::rustc-cdylib-link-arg=-fuse-ld=lld");
    }
}

/// Nodes without symbols: `.symver` directives put the symbols into them (see `exports`).
fn version_script() -> String {
    let mut script = String::new();
    for (family, versions) in CHAINS {
        let mut before = String::new();
        for version in *versions {
            script += &format!("{family}{version} {{ }}{before};\n");
            before = format!(" {family}{version}");
        }
    }
    for release in PRIVATE {
        script += &format!("IBVERBS_PRIVATE_{release} {{ }};\n");
    }
    script
}
