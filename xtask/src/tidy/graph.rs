//! Which crate may depend on which.

use super::tree::{Problem, Tree};
use crate::manifest::Manifest;

/// Each crate and the crates of the project that it may use, lower crates first.
const GRAPH: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("ring", &[]),
    ("mem", &["wire"]),
    ("train", &["wire", "mem"]),
    ("fabric", &["train"]),
    ("subnet", &["wire", "train", "fabric"]),
    ("umad", &["wire"]),
    ("engine", &["wire", "mem", "ring", "train"]),
    ("cm", &["wire", "train"]),
    ("abi", &["wire", "mem", "train", "engine", "cm"]),
    ("link", &["wire", "mem", "ring", "train"]),
    ("local", &["wire", "mem", "ring", "train", "link"]),
    ("backend-rdma-core", &["wire", "mem", "train", "engine", "cm", "abi"]),
    ("testkit", &["wire", "mem", "train", "engine"]),
    ("sim", &["wire", "mem", "ring", "train", "fabric", "engine", "cm", "testkit"]),
    (
        "feroce",
        &[
            "wire",
            "mem",
            "ring",
            "train",
            "fabric",
            "engine",
            "cm",
            "link",
            "local",
            "umad",
            "abi",
            "backend-rdma-core",
        ],
    ),
    ("rpc", &["feroce"]),
    ("nvme", &["feroce"]),
    (
        "cli",
        &[
            "wire", "train", "fabric", "subnet", "umad", "link", "local", "feroce", "rpc", "nvme",
            "sim",
        ],
    ),
    ("rsocket", &["feroce", "abi"]),
    ("lint", &["feroce"]),
    ("capi", &["feroce", "abi", "rsocket", "lint", "umad"]),
];

/// The harness that tests of every crate may use, also of those below it: integration tests link
/// the same build of their crate as the harness does.
const HARNESS: &str = "testkit";

/// Dependencies follow the graph; those of tests may leave it, but never upward.
pub(crate) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (name, file) in tree.crates() {
        let Some(allowed) = allowed(name) else {
            let message = format!("crate `{name}` has no place in the crate graph");
            problems.push(Problem::new(&file.path, 1, message));
            continue;
        };
        for dependency in Manifest::parse(&file.text).dependencies() {
            let Some(used) = folder_of(dependency.package) else {
                continue;
            };
            let message = if dependency.dev && used != HARNESS && reaches(used, name) {
                format!("the tests of `{name}` must not use `{used}`, which stands above it")
            } else if !dependency.dev && !allowed.contains(&used) {
                format!("`{name}` must not depend on `{used}`")
            } else {
                continue;
            };
            problems.push(Problem::new(&file.path, dependency.line, message));
        }
    }
    problems
}

fn allowed(name: &str) -> Option<&'static [&'static str]> {
    GRAPH.iter().find(|(krate, _)| *krate == name).map(|(_, allowed)| *allowed)
}

/// The folder of a package of this project: `feroce-wire` lives in `wire`.
pub(super) fn folder_of(package: &str) -> Option<&str> {
    if package == "feroce" { Some(package) } else { package.strip_prefix("feroce-") }
}

/// Whether `upper` depends on `lower`, directly or through others.
fn reaches(upper: &str, lower: &str) -> bool {
    let below = allowed(upper).unwrap_or_default();
    below.iter().any(|&next| next == lower || reaches(next, lower))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(name: &str, manifest: &str) -> usize {
        check(&Tree::of(&[(&format!("crates/{name}/Cargo.toml"), manifest)])).len()
    }

    #[test]
    fn the_graph_stands_on_its_feet() {
        for (index, (name, allowed)) in GRAPH.iter().enumerate() {
            for used in *allowed {
                let lower = GRAPH[..index].iter().any(|(krate, _)| krate == used);
                assert!(lower, "{name} -> {used}");
            }
        }
    }

    #[test]
    fn dependencies_follow_the_graph() {
        assert_eq!(
            problems("mem", "[dependencies]\nferoce-wire.workspace = true\nslab = \"1\""),
            0
        );
        assert_eq!(problems("wire", "[dependencies]\nferoce-mem.workspace = true"), 1);
        assert_eq!(problems("engine", "[dependencies]\nferoce-link = { path = \"../link\" }"), 1);
        assert_eq!(problems("cli", "[dependencies]\nferoce.workspace = true"), 0);
        assert_eq!(problems("cli", "[dependencies]\nx = { package = \"feroce-engine\" }"), 1);
        assert_eq!(problems("wire", "[target.'cfg(unix)'.dependencies]\nferoce-mem = \"1\""), 1);
        assert_eq!(problems("wire", "[build-dependencies.feroce-mem]\nversion = \"1\""), 1);
    }

    #[test]
    fn tests_may_look_sideways_but_not_up() {
        assert_eq!(problems("engine", "[dev-dependencies]\nferoce-cm.workspace = true"), 0);
        assert_eq!(problems("engine", "[dev-dependencies]\nferoce-sim.workspace = true"), 1);
        assert_eq!(problems("engine", "[dev-dependencies]\nferoce-testkit.workspace = true"), 0);
        assert_eq!(problems("engine", "[dependencies]\nferoce-testkit.workspace = true"), 1);
        assert_eq!(problems("wire", "[dev-dependencies]\nferoce-engine.workspace = true"), 1);
        assert_eq!(problems("ring", "[dev-dependencies]\nferoce.workspace = true"), 1);
    }

    #[test]
    fn a_new_crate_needs_a_place() {
        assert_eq!(problems("common", "[package]"), 1);
    }
}
