//! Every input of the corpus, through the body of its target.

use std::fs;
use std::path::{Path, PathBuf};

use feroce_fuzz::TARGETS;

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

/// The inputs of a target, in the order of their names.
fn inputs(target: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder(target)).expect("a folder for each target");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("entry").path()).collect();
    paths.sort();
    paths
}

fn replay(target: &str) {
    let (_, body) = TARGETS.iter().find(|(name, _)| *name == target).expect("a target");
    body(&[]);
    let paths = inputs(target);
    assert!(!paths.is_empty(), "no inputs for {target}");
    for path in paths {
        // Shown if the body panics.
        println!("{}", path.display());
        body(&fs::read(&path).expect("an input"));
    }
}

#[test]
fn wire_views() {
    replay("wire_views");
}

#[test]
fn wire_packet() {
    replay("wire_packet");
}

#[test]
fn wire_frame() {
    replay("wire_frame");
}

#[test]
fn wire_ib_frame() {
    replay("wire_ib_frame");
}

#[test]
fn wire_management() {
    replay("wire_management");
}

#[test]
fn wire_iwarp() {
    replay("wire_iwarp");
}

#[test]
fn engine_raw() {
    replay("engine_raw");
}

#[test]
fn engine_structured() {
    replay("engine_structured");
}

#[test]
fn engine_iwarp() {
    replay("engine_iwarp");
}

#[test]
fn mem_table() {
    replay("mem_table");
}

#[test]
fn cm_mad() {
    replay("cm_mad");
}

#[test]
fn cm_manager() {
    replay("cm_manager");
}

#[test]
fn subnet_net() {
    replay("subnet_net");
}

#[test]
fn umad_messages() {
    replay("umad_messages");
}

#[test]
fn subnet_agents() {
    replay("subnet_agents");
}

#[test]
fn subnet_trunk() {
    replay("subnet_trunk");
}

#[test]
fn every_folder_has_a_target() {
    let corpus = folder("").parent().expect("the corpus").join("corpus");
    for entry in fs::read_dir(corpus).expect("the corpus") {
        let name = entry.expect("entry").file_name().to_string_lossy().into_owned();
        assert!(TARGETS.iter().any(|(target, _)| *target == name), "nothing replays {name}");
    }
}

#[test]
fn rpc_header() {
    replay("rpc_header");
}

#[test]
fn nvme() {
    replay("nvme");
}
