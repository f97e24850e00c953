//! What the tests need from the system, and how to get it on Debian.

use std::process::Command;

use crate::shell::{ask, is_on_path, run};
use crate::{Failure, Outcome};

/// A Debian package that some check needs.
pub(crate) struct Package {
    name: &'static str,
    /// A program that it brings; if that is there, the package is not needed. Empty if it has none.
    program: &'static str,
    /// What the project does with it.
    reason: &'static str,
    /// What does not run without it.
    without: &'static str,
}

const PACKAGES: &[Package] = &[
    Package {
        name: "git",
        program: "git",
        reason: "says which files belong to the project",
        without: "tidy looks at every file it finds, and cannot tell what is committed",
    },
    Package {
        name: "tshark",
        program: "tshark",
        reason: "a second opinion on every packet we write",
        without: "the tests that let Wireshark decode our packets are skipped",
    },
    Package {
        name: "chromium-headless-shell",
        program: "chromium-headless-shell",
        reason: "a browser, which draws the page of `feroce web`",
        without: "the page of `feroce web` is fetched, but not drawn",
    },
    Package {
        name: "cmake",
        program: "ctest",
        reason: "a recipe of docs/recipes, to use as it is",
        without: "the recipe of CTest is not tried",
    },
    Package {
        name: "python3-pytest",
        program: "pytest-3",
        reason: "a recipe of docs/recipes, to use as it is",
        without: "the recipe of pytest is not tried",
    },
    Package {
        name: "python3-yaml",
        program: "",
        reason: "reads the jobs and manifests of docs/recipes, to run what they say",
        without: "the recipes of GitHub, GitLab and Kubernetes are not tried",
    },
    Package {
        name: "valgrind",
        program: "valgrind",
        reason: "counts instructions, which are the same on every machine",
        without: "instruction counts of the benchmarks are skipped",
    },
    Package {
        name: "gcc",
        program: "gcc",
        reason: "compiles the C programs that the drop-in library is tested with",
        without: "the drop-in library is not compared with the headers of rdma-core",
    },
    Package {
        name: "libibverbs-dev",
        program: "",
        reason: "headers that the drop-in library is compared with",
        without: "layouts of libibverbs are not checked",
    },
    Package {
        name: "librdmacm-dev",
        program: "",
        reason: "headers that the drop-in library is compared with",
        without: "layouts of librdmacm are not checked",
    },
    Package {
        name: "libibumad-dev",
        program: "",
        reason: "headers that the drop-in library is compared with",
        without: "layouts of libibumad are not checked",
    },
    Package {
        name: "opensm",
        program: "opensm",
        reason: "a subnet manager, to run as it is",
        without: "no InfiniBand fabric is brought up by opensm",
    },
    Package {
        name: "infiniband-diags",
        program: "ibnetdiscover",
        reason: "programs that look at InfiniBand fabrics, to run as they are",
        without: "the diagnostics of InfiniBand are not run",
    },
    Package {
        name: "ibutils",
        program: "ibdiagnet",
        reason: "a check of whole InfiniBand fabrics, to run as it is",
        without: "ibdiagnet does not check a fabric",
    },
    Package {
        name: "ibverbs-utils",
        program: "ibv_devinfo",
        reason: "programs of libibverbs, to run as they are",
        without: "the programs of libibverbs are not run",
    },
    Package {
        name: "rdmacm-utils",
        program: "rping",
        reason: "programs of librdmacm, to run as they are",
        without: "the programs of librdmacm are not run",
    },
    Package {
        name: "iperf3",
        program: "iperf3",
        reason: "a program of TCP, to run on rsockets",
        without: "no program of TCP is run on rsockets",
    },
    Package {
        name: "perftest",
        program: "ib_write_bw",
        reason: "programs that measure, to run as they are",
        without: "the programs of perftest are not run",
    },
    Package {
        name: "ucx-utils",
        program: "ucx_perftest",
        reason: "programs of UCX, to run as they are",
        without: "the programs of UCX are not run",
    },
    Package {
        name: "libfabric-bin",
        program: "fi_pingpong",
        reason: "programs of libfabric, to run as they are",
        without: "the programs of libfabric are not run",
    },
    Package {
        name: "qperf",
        program: "qperf",
        reason: "a program that measures, to run as it is",
        without: "qperf is not run",
    },
    Package {
        name: "fio",
        program: "fio",
        reason: "a program that reads and writes over RDMA, to run as it is",
        without: "fio is not run",
    },
    Package {
        name: "netpipe-openmpi",
        program: "NPopenmpi",
        reason: "a program of Open MPI, to run as it is",
        without: "programs of Open MPI are not run",
    },
    Package {
        name: "netpipe-mpich2",
        program: "NPmpich2",
        reason: "a program of MPICH, to run as it is",
        without: "programs of MPICH are not run",
    },
    Package {
        name: "rdma-core",
        program: "",
        reason: "its test-suite for Python, to run as it is",
        without: "the test-suite of rdma-core is not run",
    },
    Package {
        name: "python3-pyverbs",
        program: "",
        reason: "verbs in Python, which that test-suite is written in",
        without: "the test-suite of rdma-core is not run",
    },
    Package {
        name: "iproute2",
        program: "ip",
        reason: "makes the two machines that programs talk between",
        without: "nothing that needs two machines is run",
    },
    Package {
        name: "g++",
        program: "g++",
        reason: "libFuzzer is C++ and is built with the fuzz targets",
        without: "the fuzz targets do not build",
    },
];

/// A package without which a command does nothing, known by a program that it brings.
pub(crate) const fn program(
    name: &'static str,
    program: &'static str,
    reason: &'static str,
) -> Package {
    Package { name, program, reason, without: "nothing is run" }
}

/// The same for a package that brings no program, or one under the name of another.
pub(crate) const fn library(name: &'static str, reason: &'static str) -> Package {
    program(name, "", reason)
}

/// Makes sure that what the tests need is there. Costs nothing if it is. Gives back warnings.
pub(crate) fn install() -> Outcome<Vec<String>> {
    match install_missing(PACKAGES)? {
        missing if missing.is_empty() => Ok(Vec::new()),
        missing => report_missing(&missing),
    }
}

/// Makes sure that all of `packages` are there.
pub(crate) fn require(packages: &[Package]) -> Outcome {
    let missing = install_missing(packages)?;
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|package| package.name).collect();
    Err(Failure::Failed(format!("missing, as root: apt-get install {}", names.join(" "))))
}

/// Installs what is missing where that is possible, and gives back what is still missing.
fn install_missing(packages: &[Package]) -> Outcome<Vec<&Package>> {
    let missing: Vec<&Package> = packages.iter().filter(|package| !package.is_there()).collect();
    if missing.is_empty() {
        println!("all {} packages are there", packages.len());
        return Ok(missing);
    }
    for package in &missing {
        println!("missing: {} ({})", package.name, package.reason);
    }
    if !is_root() || !is_on_path("apt-get") {
        return Ok(missing);
    }
    run(apt_get().arg("update"))?;
    let names = missing.iter().map(|package| package.name);
    run(apt_get().args(["install", "--yes", "--no-install-recommends"]).args(names))?;
    match missing.iter().find(|package| !package.is_there()) {
        None => Ok(Vec::new()),
        Some(package) => {
            Err(Failure::Failed(format!("{} is installed but not usable", package.name)))
        }
    }
}

fn report_missing(missing: &[&Package]) -> Outcome<Vec<String>> {
    let names: Vec<&str> = missing.iter().map(|package| package.name).collect();
    let names = names.join(" ");
    println!("WARNING: cannot install packages (not root, or not Debian). Without them:");
    for package in missing {
        println!("WARNING:   {:<15} {}", package.name, package.without);
    }
    println!("WARNING: to have them, as root: apt-get install {names}");
    let in_ci = std::env::var("CI").is_ok_and(|value| !matches!(&*value, "" | "0" | "false"));
    if in_ci {
        return Err(Failure::Failed(format!("missing packages: {names}")));
    }
    let mut lines = vec![format!("WARNING: missing packages: {names}")];
    lines.extend(missing.iter().map(|p| format!("WARNING:   {:<15} {}", p.name, p.without)));
    Ok(lines)
}

impl Package {
    fn is_there(&self) -> bool {
        (!self.program.is_empty() && is_on_path(self.program)) || self.is_installed()
    }

    fn is_installed(&self) -> bool {
        let mut query = Command::new("dpkg-query");
        let status = ask(query.args(["--show", "--showformat=${db:Status-Status}", self.name]));
        status.is_some_and(|status| status == "installed")
    }
}

/// Whether this is root.
pub(crate) fn is_root() -> bool {
    ask(Command::new("id").arg("-u")).is_some_and(|id| id.trim() == "0")
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").arg("--quiet");
    command
}
