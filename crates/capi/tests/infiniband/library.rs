//! Calls of libibumad in a program of C: what they return, and what they say.

use std::process::Command;

use super::fabric::Fabric;
use crate::common;

const NET: &str = "\
Switch 4 \"Switch\"
[1] \"Host1\"[1]
[2] \"Host2\"[1]
Hca 1 \"Host1\"
[1] \"Switch\"[1]
Hca 2 \"Host2\"
[1] \"Switch\"[2]
";

/// Compiles a program of `tests/c` that is linked with libibumad.
fn compile(name: &str) -> Option<String> {
    common::headers()?;
    let folder = common::scratch(&format!("ib-{name}"));
    let (source, program) = (format!("tests/c/{name}.c"), folder.join(name));
    let program = program.to_str().expect("text").to_owned();
    let args = ["-std=gnu11", "-Wall", "-Werror", "-o", &program, &source, "-libumad", "-lpthread"];
    common::gcc(&args)?;
    Some(program)
}

/// The system's library, which needs no device for these calls, says the same.
#[test]
fn names_of_numbers_are_those_of_the_real_library() {
    let Some(program) = compile("umad_names") else { return };
    let theirs = Command::new(&program).output().expect("it runs");
    let ours = Command::new(&program)
        .env("LD_LIBRARY_PATH", common::directory("ib-names"))
        .output()
        .expect("it runs");
    assert!(theirs.status.success() && ours.status.success());
    let lines = |bytes: &[u8]| -> Vec<String> {
        String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect()
    };
    let (ours, theirs) = (lines(&ours.stdout), lines(&theirs.stdout));
    assert!(theirs.len() > 2000, "{}", theirs.len());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(ours.len(), theirs.len());
}

#[test]
fn calls_do_what_programs_rely_on() {
    let Some(program) = compile("umad_calls") else { return };
    let fabric = Fabric::up("ib-calls", NET);
    let (said, status) = fabric.run("Host2", &program);
    assert_eq!(status, 0, "{said}");
    // Without a fabric there is no adapter.
    let output = Command::new(&program)
        .arg("none")
        .env("LD_LIBRARY_PATH", common::directory("ib-none"))
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
