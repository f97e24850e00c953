//! `cargo xtask scale`: how traffic spreads over the processors of a larger machine.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::args::Args;
use crate::shell::{build_packed, packed, run, target_dir};
use crate::{Failure, Outcome};

pub(crate) const HELP: &str = "\
Builds what measures how feroce scales over processors: a directory with the stripped command,
iperf3 and ip where this machine has them, and a script, which prints tables: rates of WRITE,
SEND and READ over a veth pair with 1, 4 and 16 queue pairs and 1, 4 and 8 shards, beside iperf3,
and between two processes of the host, and of small messages by a thread for each shard.
Copy the directory to the machine to be measured, and run its scale.sh there.

Usage: cargo xtask scale [--run SECONDS]

Options:
  --run SECONDS  Run the script here as well, with so many seconds for each figure
";

/// Programs that the script uses and a machine may not have.
const TOOLS: [&str; 2] = ["iperf3", "ip"];

/// Libraries that every machine has in the version that its other libraries need.
const OF_LIBC: [&str; 6] = ["libc.", "libm.", "ld-linux", "libpthread.", "libdl.", "librt."];

pub(crate) fn main(mut args: Args) -> Outcome {
    let seconds: Option<u64> = args.value("--run")?;
    args.finish()?;
    build_packed()?;
    let to = target_dir().join("scale");
    let failed = |e: std::io::Error| Failure::Failed(format!("{}: {e}", to.display()));
    fs::create_dir_all(to.join("bin"))
        .and_then(|()| fs::create_dir_all(to.join("lib")))
        .map_err(failed)?;
    let script = to.join("scale.sh");
    fs::write(&script, include_str!("scale/scale.sh")).map_err(failed)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    let feroce = to.join("bin/feroce");
    fs::copy(packed("feroce"), &feroce).map_err(failed)?;
    run(Command::new("strip").arg(&feroce))?;
    for tool in TOOLS.iter().filter_map(|tool| found(tool)) {
        carry(&tool, &to.join("bin")).map_err(failed)?;
        for library in libraries_of(&tool) {
            carry(&library, &to.join("lib")).map_err(failed)?;
        }
    }
    println!("{} is ready: run {} on the machine to be measured", to.display(), script.display());
    seconds.map_or(Ok(()), |seconds| run(Command::new(&script).arg(seconds.to_string())))
}

/// Where a program is, if this machine has it.
fn found(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(tool)).find(|file| file.is_file())
}

fn carry(file: &Path, to: &Path) -> std::io::Result<()> {
    let name = file.file_name().unwrap_or_default();
    fs::copy(file, to.join(name)).map(|_| ())
}

/// The libraries that a program needs beside that of C.
fn libraries_of(program: &Path) -> Vec<PathBuf> {
    let listed = Command::new("ldd").arg(program).output().map(|output| output.stdout);
    let listed = listed.unwrap_or_default();
    let path = |line: &str| line.split_once("=> ")?.1.split(' ').next().map(PathBuf::from);
    let libraries = String::from_utf8_lossy(&listed).lines().filter_map(path).collect::<Vec<_>>();
    let is_ours = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        file.is_file() && !OF_LIBC.iter().any(|start| name.starts_with(start))
    };
    libraries.into_iter().filter(is_ours).collect()
}
