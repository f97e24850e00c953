//! `feroce run` and `feroce env`: run unmodified programs that use libibverbs and librdmacm on the
//! software adapter.
//!
//! The library that replaces both is a separate file, which this command only looks for
//! ([`library`]). The command puts it first in the search path of the dynamic linker under its four
//! names ([`links`]). It also preloads the library, for programs that bring a copy of libibverbs
//! under another name, and because the preloaded library redirects calls with which programs check
//! files before they use a device.

mod library;
mod links;
mod settings;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::bail;
use feroce::{Device, DeviceKind, Settings};
pub(crate) use library::find as library;
pub(crate) use settings::SettingArgs;

const RUN_EXAMPLES: &str = "\
Examples:
  feroce run -- ibv_devinfo -v
  feroce run -- ib_write_bw 10.0.0.2               the other side runs `feroce run -- ib_write_bw`
  feroce run --pcap run.pcapng -- rping -c -a 10.0.0.2 -C 5 -v
  feroce run --loss 1% --seed 7 -- ib_send_lat 10.0.0.2
  feroce run --stats -- mpirun ./a.out             what every process did, at its end
  feroce run --lint -- ./my-program                mistakes that it makes, on standard error
  feroce run --device-name mlx5_0 -- python3 train.py

The exit status is the program's. FEROCE_LIB names the library if it is not where it is expected.";

const ENV_EXAMPLES: &str = "\
Examples:
  eval \"$(feroce env)\"                          every program from now on, in this shell
  feroce env --shell fish | source
  eval \"$(feroce env --device-name mlx5_0)\"

`feroce run` does the same for one program.";

/// Options of `run`.
#[derive(Debug, clap::Args)]
#[command(after_help = RUN_EXAMPLES)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    settings: SettingArgs,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Options of `env`.
#[derive(Debug, clap::Args)]
#[command(after_help = ENV_EXAMPLES)]
pub(crate) struct EnvArgs {
    #[command(flatten)]
    settings: SettingArgs,
    /// For which shell
    #[arg(long, value_enum, default_value_t = Shell::Sh)]
    shell: Shell,
}

/// How a shell exports a variable.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Shell {
    /// sh, bash, zsh and compatible shells.
    Sh,
    /// fish.
    Fish,
}

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    exec(&args.command, &args.settings, Vec::new())
}

/// Replaces this process with a program (exec), so that no process stands between the program and
/// its parent. The variables come on top of those that the settings ask for.
pub(crate) fn exec(
    command: &[OsString],
    settings: &SettingArgs,
    variables: Vec<(String, OsString)>,
) -> anyhow::Result<ExitCode> {
    let [program, rest @ ..] = command else { bail!("which program?") };
    let mut command = Command::new(program);
    command.args(rest).envs(environment(settings)?).envs(variables);
    let error = command.exec();
    // Exit status as in shells: 127 if the program is not found, 126 if it cannot be run.
    eprintln!("feroce: {}: {error}", program.display());
    Ok(ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 }))
}

/// Prints the commands that make all programs of a shell run as with `run`.
pub(crate) fn env(args: &EnvArgs) -> anyhow::Result<ExitCode> {
    for (name, value) in environment(&args.settings)? {
        let Some(value) = value.to_str() else {
            bail!("{name} would be {}, which is not text", value.display());
        };
        match args.shell {
            Shell::Sh => println!("export {name}={}", quoted(value, r"'\''")),
            Shell::Fish => {
                println!("set -gx {name} {};", quoted(&value.replace('\\', r"\\"), r"\'"))
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Puts text into single quotes; each single quote in it becomes `quote`.
fn quoted(text: &str, quote: &str) -> String {
    format!("'{}'", text.replace('\'', quote))
}

/// The environment variables that make a program load our library, and the settings for it.
fn environment(settings: &SettingArgs) -> anyhow::Result<Vec<(String, OsString)>> {
    let library = library::find()?;
    let folder = links::directory(&library)?;
    let (settings, mut variables) = settings.load()?;
    let ahead = |name: &str, first: &Path| {
        let before = std::env::var_os(name).unwrap_or_default();
        (name.to_owned(), put_first(first.as_os_str(), &before))
    };
    variables.push(ahead("LD_LIBRARY_PATH", &folder));
    // The preloaded path is the one that the dynamic linker finds in the search path, so that it
    // maps the file only once.
    variables.push(ahead("LD_PRELOAD", &folder.join(links::PRELOAD)));
    let loopback = loopback_beside_others(&settings);
    variables.extend(manners(&|name| std::env::var_os(name), loopback.as_deref()));
    Ok(variables)
}

/// The name of the loopback device, if there are others.
fn loopback_beside_others(settings: &Settings) -> Option<String> {
    let devices = Device::list_with(settings).ok()?;
    let is_loopback = |device: &&Device| device.kind() == DeviceKind::Loopback;
    let has_others = !devices.iter().all(|device| is_loopback(&device));
    devices.iter().find(is_loopback).filter(|_| has_others).map(|found| found.name().to_owned())
}

/// Variables for programs that would not get along with a preloaded software adapter, unless the
/// user has set them:
///
/// - NCCL 2.28 crashes on every device without GPU-initiated networking, unless it is turned off.
/// - NCCL uses all devices, also that of the loopback interface, on which no other host answers.
/// - The runtime of AddressSanitizer refuses to start when a library is loaded before it. It works
///   nevertheless: our functions call the next ones in the search order, which are its own.
fn manners(
    set: &dyn Fn(&str) -> Option<OsString>,
    loopback: Option<&str>,
) -> Vec<(String, OsString)> {
    let mut variables = Vec::new();
    if set("NCCL_GIN_TYPE").is_none() {
        variables.push(("NCCL_GIN_TYPE".to_owned(), "0".into()));
    }
    if let Some(name) = loopback.filter(|_| set("NCCL_IB_HCA").is_none()) {
        variables.push(("NCCL_IB_HCA".to_owned(), format!("^={name}").into()));
    }
    let mut options = set("ASAN_OPTIONS").unwrap_or_default();
    if !options.as_encoded_bytes().windows(LINK_ORDER.len()).any(|at| at == LINK_ORDER.as_bytes()) {
        options.push(if options.is_empty() { "" } else { ":" });
        options.push(format!("{LINK_ORDER}=0"));
        variables.push(("ASAN_OPTIONS".to_owned(), options));
    }
    variables
}

/// The option of AddressSanitizer that makes it insist on being first.
const LINK_ORDER: &str = "verify_asan_link_order";

/// The list of paths with `first` moved or added to its head.
fn put_first(first: &OsStr, list: &OsStr) -> OsString {
    let others = std::env::split_paths(list).filter(|path| path.as_os_str() != first);
    let others = others.filter(|path| !path.as_os_str().is_empty());
    others.fold(first.to_owned(), |mut all, path| {
        all.push(":");
        all.push(path);
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_get_a_new_head() {
        let put = |list: &str| put_first("/a".as_ref(), list.as_ref());
        assert_eq!(put(""), "/a");
        assert_eq!(put("/b:/c"), "/a:/b:/c");
        assert_eq!(put("/b:/a::/c"), "/a:/b:/c");
    }

    #[test]
    fn what_the_user_has_set_stays() {
        let with = |name: &'static str, value: &'static str| {
            let set = move |asked: &str| (asked == name).then(|| OsString::from(value));
            let text = |(name, value): (String, OsString)| format!("{name}={}", value.display());
            manners(&set, None).into_iter().map(text).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(with("", ""), "NCCL_GIN_TYPE=0 ASAN_OPTIONS=verify_asan_link_order=0");
        assert_eq!(with("NCCL_GIN_TYPE", "3"), "ASAN_OPTIONS=verify_asan_link_order=0");
        assert_eq!(
            with("ASAN_OPTIONS", "detect_leaks=0"),
            "NCCL_GIN_TYPE=0 ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0"
        );
        assert_eq!(with("ASAN_OPTIONS", "verify_asan_link_order=1"), "NCCL_GIN_TYPE=0");
    }

    #[test]
    fn nccl_leaves_the_loopback_device_beside_others() {
        let variable = |set: Option<&str>| {
            let set = set.map(OsString::from);
            let set = move |name: &str| set.clone().filter(|_| name == "NCCL_IB_HCA");
            let all = manners(&set, Some("feroce1"));
            all.into_iter().find(|(name, _)| name == "NCCL_IB_HCA").map(|(_, value)| value)
        };
        assert_eq!(variable(None).as_deref(), Some("^=feroce1".as_ref()));
        assert_eq!(variable(Some("=feroce0")), None);
    }

    #[test]
    fn values_survive_the_shell() {
        assert_eq!(quoted("it's", r"'\''"), r"'it'\''s'");
    }
}
