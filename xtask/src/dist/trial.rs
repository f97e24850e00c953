//! Tries out what was built, where nothing else of the project is.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::clean::Root;
use super::{Built, copy, failed};
use crate::shell::{ask, cargo, is_on_path, packed, run, target_dir};
use crate::{Failure, Outcome};

/// What a program of this system sees and does on the software adapter.
const LISTS: [&str; 4] = ["run", "--", "ls", "/sys/class/infiniband"];
const PINGS: [&str; 4] = ["rc-pingpong", "--both", "-n", "100"];

/// Tries out everything. Says what could not be.
pub(crate) fn all(built: &Built, out: &Path) -> Outcome<Vec<String>> {
    let mut untried = Vec::new();
    if is_on_path("dpkg-query") && is_on_path("unshare") && is_on_path("ip") {
        in_clean_roots(built, out)?;
    } else {
        untried.push("no clean root: dpkg-query, unshare and ip are needed".to_owned());
        in_place(&built.folder)?;
    }
    match &built.wheel {
        Some(wheel) => {
            let lacks = in_python(wheel, &out.join("venv"))?;
            untried.extend(lacks.then(|| "wheel: this Python cannot make environments".to_owned()));
        }
        None => untried.push("wheel: there is no Python here".to_owned()),
    }
    Ok(untried)
}

/// Programs see the devices of the directory where it lies.
fn in_place(folder: &Path) -> Outcome {
    run(Command::new(folder.join("bin/feroce")).args(LISTS))
}

/// The archive, the package and the command that `cargo install` installs, each in a root file
/// system with no more than the package asks for, and programs to run.
fn in_clean_roots(built: &Built, out: &Path) -> Outcome {
    let is_installed = |name: &&str| {
        let mut query = Command::new("dpkg-query");
        let state = ask(query.args(["--show", "--showformat=${db:Status-Abbrev}", name]));
        state.is_some_and(|state| state.starts_with("ii"))
    };
    let mut packages = vec!["libc6", "libgcc-s1", "coreutils", "dash"];
    let programs = Some("ibverbs-utils").filter(is_installed);
    packages.extend(programs);
    let root = |name: &str| Root::new(&out.join(name), &packages);
    let try_out = |root: &Root, feroce: &str| {
        root.run(&[&[feroce], &PINGS[..]].concat())?;
        root.run(&[&[feroce], &LISTS[..]].concat())?;
        match programs {
            Some(_) => root.run(&[feroce, "run", "--", "ibv_devinfo", "-l"]),
            None => Ok(()),
        }
    };

    let archived = root("root-archive")?;
    run(Command::new("tar").arg("-xzf").arg(&built.archive).arg("-C").arg(archived.path("/opt")))?;
    let name = built.folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    try_out(&archived, &format!("/opt/{name}/bin/feroce"))?;

    if let Some(package) = &built.package {
        let packaged = root("root-package")?;
        let into = packaged.path("/");
        run(Command::new("dpkg-deb").arg("--extract").args([package, &into]))?;
        try_out(&packaged, "/usr/bin/feroce")?;
    }

    let installed = root("root-installed")?;
    copy(&cargo_installed(out)?, &installed.path("/usr/bin/feroce"))?;
    try_out(&installed, "/usr/bin/feroce")
}

/// The command as `cargo install` installs it, with the library that was built in it.
fn cargo_installed(out: &Path) -> Outcome<std::path::PathBuf> {
    let root = out.join("installed");
    // Without optimization: the command is as good for this, and built in a fraction of the time.
    let mut install = cargo(["install", "--debug", "--locked", "--path", "crates/cli", "--root"]);
    install.arg(&root).arg("--target-dir").arg(target_dir()).args(["--force", "--quiet"]);
    run(install.env("FEROCE_BUNDLE", packed("libferoce_capi.so")))?;
    Ok(root.join("bin/feroce"))
}

/// The wheel, in an environment of Python of its own. True: there can be none.
fn in_python(wheel: &Path, environment: &Path) -> Outcome<bool> {
    if environment.exists() {
        fs::remove_dir_all(environment).map_err(|e| failed(environment, e))?;
    }
    if ask(Command::new("python3").args(["-c", "import venv, ensurepip"])).is_none() {
        return Ok(true);
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(environment))?;
    let python = environment.join("bin/python");
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]).arg(wheel);
    run(pip.env("PIP_DISABLE_PIP_VERSION_CHECK", "1"))?;
    run(Command::new(environment.join("bin/feroce")).args(LISTS).env_clear())?;
    let mut module = Command::new(&python);
    let seen = ask(module.args(["-m", "feroce"]).args(LISTS));
    let sees = seen.is_some_and(|devices| devices.contains("feroce0"));
    sees.then_some(false)
        .ok_or_else(|| Failure::Failed("python -m feroce run shows no device".into()))
}
