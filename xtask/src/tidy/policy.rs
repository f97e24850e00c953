//! What the crates have promised: where unsafe code may stand, who does without std, and
//! who never looks at the world outside.

use super::tree::{File, Problem, Tree};
use crate::source::{line_of, lines_before_tests, words};

/// Crates whose library must forbid unsafe code.
const FORBID_UNSAFE: &[&str] = &[
    "wire", "train", "fabric", "subnet", "engine", "cm", "testkit", "sim", "abi", "lint", "rpc",
    "nvme",
];

/// Crates that may contain unsafe code. Nothing else in the tree may. One of them only says the
/// word, in the types of functions of C.
const MAY_BE_UNSAFE: &[&str] =
    &["mem", "ring", "link", "local", "backend-rdma-core", "feroce", "rsocket", "abi", "capi"];

/// Crates without std.
pub(crate) const NO_STD: &[&str] =
    &["wire", "mem", "ring", "train", "fabric", "subnet", "engine", "cm"];

/// What the crates without std must not call, even where a test build has std.
const OUTSIDE_WORLD: &[&str] =
    &["Instant::now", "SystemTime::now", "thread::spawn", "thread::sleep"];

/// Modules of std that the crates without std must not use.
const OUTSIDE_MODULES: &[&str] = &["env", "fs", "io", "net", "process"];

pub(crate) fn unsafe_code(tree: &Tree) -> Vec<Problem> {
    let message = format!("unsafe code belongs in crates/{{{}}}", MAY_BE_UNSAFE.join(","));
    let is_free =
        |file: &&File| MAY_BE_UNSAFE.iter().any(|name| file.is_under(&format!("crates/{name}")));
    let mut problems = Vec::new();
    for file in tree.rust_files().filter(|file| !is_free(file)) {
        for at in words(&file.code, concat!("uns", "afe")) {
            problems.push(Problem::new(&file.path, line_of(&file.code, at), &*message));
        }
    }
    problems.extend(libraries_without(tree, FORBID_UNSAFE, "#![forbid(unsafe_code)]", |line| {
        line == "#![forbid(unsafe_code)]"
    }));
    problems
}

pub(crate) fn no_std(tree: &Tree) -> Vec<Problem> {
    libraries_without(tree, NO_STD, "#![no_std]", |line| {
        line == "#![no_std]" || line.starts_with("#![cfg_attr(not(") && line.ends_with(", no_std)]")
    })
}

/// One problem for each library of `crates` that has no line that is `wanted`.
fn libraries_without(
    tree: &Tree,
    crates: &[&str],
    attribute: &str,
    wanted: fn(&str) -> bool,
) -> Vec<Problem> {
    let libraries = crates.iter().filter_map(|name| tree.get(&format!("crates/{name}/src/lib.rs")));
    libraries
        .filter(|file| !file.code.lines().any(|line| wanted(line.trim_end())))
        .map(|file| Problem::new(&file.path, 1, format!("`{attribute}` is missing")))
        .collect()
}

pub(crate) fn no_outside_world(tree: &Tree) -> Vec<Problem> {
    let is_lower = |file: &&File| {
        NO_STD.iter().any(|name| file.is_under(&format!("crates/{name}/src")))
            && !file.is_unit_tests()
    };
    let mut problems = Vec::new();
    for file in tree.rust_files().filter(is_lower) {
        let last = lines_before_tests(&file.code);
        let calls = OUTSIDE_WORLD.iter().flat_map(|name| {
            words(&file.code, name).map(|at| (line_of(&file.code, at), (*name).to_owned()))
        });
        let uses = std_modules(&file.code)
            .into_iter()
            .filter(|(_, module)| OUTSIDE_MODULES.contains(module))
            .map(|(at, module)| (line_of(&file.code, at), format!("std::{module}")));
        for (line, name) in calls.chain(uses).filter(|(line, _)| *line <= last) {
            let message = format!("`{name}`: this crate gets the outside world as arguments");
            problems.push(Problem::new(&file.path, line, message));
        }
    }
    problems
}

/// The modules of std that the code names, as `std::a` or `std::{a, b::c}`.
fn std_modules(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for at in words(code, "std") {
        let Some(rest) = code[at + 3..].strip_prefix("::") else {
            continue;
        };
        let Some(group) = rest.strip_prefix('{') else {
            found.push((at, first_word(rest)));
            continue;
        };
        let mut depth = 0;
        let names = group.split_inclusive(['{', '}', ',']);
        for name in names {
            if depth == 0 && !first_word(name).is_empty() {
                found.push((at, first_word(name)));
            }
            depth += i32::from(name.ends_with('{')) - i32::from(name.ends_with('}'));
            if depth < 0 {
                break;
            }
        }
    }
    found
}

fn first_word(text: &str) -> &str {
    let text = text.trim_start();
    text.split(|c: char| c != '_' && !c.is_alphanumeric()).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "//! Says unsafe.\n#![no_std]\n#![forbid(unsafe_code)]\n";

    fn count(rule: fn(&Tree) -> Vec<Problem>, path: &str, text: &str) -> usize {
        rule(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn unsafe_code_has_its_places() {
        let text = "unsafe fn f() {}\n";
        assert_eq!(count(unsafe_code, "crates/mem/src/region.rs", text), 0);
        assert_eq!(count(unsafe_code, "crates/wire/src/bth.rs", text), 1);
        assert_eq!(count(unsafe_code, "crates/rpc/tests/all.rs", text), 1);
        assert_eq!(count(unsafe_code, "fuzz/fuzz_targets/view.rs", text), 1);
        assert_eq!(count(unsafe_code, "xtask/src/main.rs", "let x = \"unsafe\"; // unsafe"), 0);
    }

    #[test]
    fn libraries_forbid_it_and_do_without_std() {
        assert_eq!(count(unsafe_code, "crates/wire/src/lib.rs", GOOD), 0);
        assert_eq!(count(unsafe_code, "crates/wire/src/lib.rs", "#![no_std]\n"), 1);
        assert_eq!(count(unsafe_code, "crates/wire/src/lib.rs", "// #![forbid(unsafe_code)]"), 1);
        assert_eq!(count(no_std, "crates/wire/src/lib.rs", GOOD), 0);
        assert_eq!(count(no_std, "crates/wire/src/lib.rs", "// #![no_std]\n"), 1);
        assert_eq!(count(no_std, "crates/ring/src/lib.rs", "#![cfg_attr(not(loom), no_std)]"), 0);
        assert_eq!(count(no_std, "crates/link/src/lib.rs", ""), 0);
    }

    #[test]
    fn the_world_stays_outside() {
        let path = "crates/engine/src/hca/timer.rs";
        let bad = [
            "let now = Instant::now();",
            "use std::env;",
            "use std::{fmt, net::{IpAddr}};",
            "std::thread::spawn(f);",
        ];
        for text in bad {
            assert_eq!(count(no_outside_world, path, text), 1, "{text}");
            assert_eq!(count(no_outside_world, "crates/link/src/udp.rs", text), 0, "{text}");
        }
        let good = ["use core::net::IpAddr;", "use std::{fmt, vec::{env}};", "// Instant::now()"];
        for text in good {
            assert_eq!(count(no_outside_world, path, text), 0, "{text}");
        }
    }

    #[test]
    fn tests_of_the_lower_crates_may_use_threads() {
        let text = "fn f() {}\n\n#[cfg(test)]\nmod tests {\n    use std::thread::spawn;\n}\n";
        assert_eq!(count(no_outside_world, "crates/ring/src/spsc.rs", text), 0);
        assert_eq!(count(no_outside_world, "crates/ring/src/tests.rs", "thread::spawn(f)"), 0);
    }
}
