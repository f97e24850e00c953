//! `feroce run` and `feroce env`, without the library: the environment that they pass on, and their
//! exit status.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder of this test with a file in place of the library.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("runtime")).expect("a folder");
        fs::write(folder.join("libferoce.so"), "").expect("a file");
        Self(folder)
    }

    fn feroce(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("it starts")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_feroce"));
        command.args(args).env("FEROCE_LIB", &self.0);
        command.env("XDG_RUNTIME_DIR", self.0.join("runtime"));
        command.env_remove("NCCL_GIN_TYPE").env_remove("ASAN_OPTIONS");
        command.env_remove("LD_PRELOAD").env("LD_LIBRARY_PATH", "/some/where");
        command
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

#[test]
fn the_end_of_the_program_is_the_end_of_the_command() {
    let place = Place::new("run-ends");
    let status = |script| place.feroce(&["run", "--", "sh", "-c", script]).status;
    assert_eq!(status("exit 0").code(), Some(0));
    assert_eq!(status("exit 7").code(), Some(7));
    assert_eq!(status("kill -TERM $$").signal(), Some(15));
    assert_eq!(place.feroce(&["run", "--", "/no/such/program"]).status.code(), Some(127));
    assert_eq!(place.feroce(&["run", "--", "/"]).status.code(), Some(126));
    assert_eq!(place.feroce(&["run"]).status.code(), Some(2));
}

#[test]
fn the_program_finds_the_library_first_and_its_settings() {
    let place = Place::new("run-passes");
    let script = "echo $LD_LIBRARY_PATH; echo $LD_PRELOAD; echo $FEROCE_FAULT; \
                  echo $NCCL_GIN_TYPE $ASAN_OPTIONS";
    let output = place.feroce(&["run", "--loss", "1%", "--seed", "7", "--", "sh", "-c", script]);
    let text = text(&output.stdout);
    let [search, preload, fault, manners] = text.lines().collect::<Vec<_>>()[..] else {
        panic!("{text}")
    };
    let folder = search.strip_suffix(":/some/where").expect("what was there comes after ours");
    assert_eq!(preload, format!("{folder}/libibverbs.so.1"));
    assert_eq!(fault, "loss=1%,seed=7");
    assert_eq!(manners, "0 verify_asan_link_order=0");
    for name in
        ["libibumad.so.3", "libibverbs.so", "libibverbs.so.1", "librdmacm.so", "librdmacm.so.1"]
    {
        let to = Path::new(folder).join(name).canonicalize().expect("a link");
        assert_eq!(to, place.0.join("libferoce.so").canonicalize().unwrap());
    }
}

/// A stranger has the names of the directories that a user would create. Only root can start
/// programs of another user.
#[test]
fn names_that_a_stranger_took_are_avoided() {
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("SKIPPED: only root can start programs of another user");
    }
    let place = Place::new("run-taken");
    let script = "for at in /dev/shm /tmp; do
            mount -t tmpfs -o mode=1777 tmpfs $at
            mkdir $at/feroce-1234 && chown 65534 $at/feroce-1234
        done
        unset XDG_RUNTIME_DIR
        for i in 1 2; do setpriv --reuid 1234 --regid 1234 --clear-groups \"$@\" || exit; done
        ls /dev/shm";
    let feroce = env!("CARGO_BIN_EXE_feroce");
    let args = ["-m", "sh", "-c", script, "sh", feroce, "run", "--", "true"];
    let output = Command::new("unshare").args(args).env("FEROCE_LIB", &place.0).output();
    let output = output.expect("unshare is installed");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let made = text(&output.stdout);
    let ours: Vec<_> = made.lines().filter(|name| name.starts_with("feroce-1234.")).collect();
    assert_eq!(ours.len(), 1, "one directory for both runs: {made}");
}

#[test]
fn a_shell_understands_the_environment() {
    let place = Place::new("env");
    let pcap = place.0.join("it's here.pcapng");
    let output = place.feroce(&["env", "--pcap", pcap.to_str().unwrap()]);
    assert!(output.status.success());
    let script = format!("{}\necho \"$FEROCE_PCAP\"", text(&output.stdout));
    let shell = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(text(&shell.stdout).trim_end(), pcap.to_str().unwrap());
    let fish = text(&place.feroce(&["env", "--shell", "fish"]).stdout);
    assert!(fish.lines().all(|line| line.starts_with("set -gx ")), "{fish}");
}

#[test]
fn mistakes_are_explained_before_the_program_starts() {
    let place = Place::new("run-mistakes");
    let explain = |args: &[&str]| {
        let output = place.feroce(&[&["run"], args, &["--", "echo", "started"]].concat());
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()));
        text(&output.stderr)
    };
    assert!(explain(&["--loss", "often"]).contains("loss=often"));
    assert!(explain(&["--address", "nowhere"]).contains("nowhere"));
    assert!(explain(&["--backend", "rdma-core"]).contains("without `feroce run`"));
    let with = |name: &str, value: &str| {
        let mut command = place.command(&["run", "--", "echo", "started"]);
        let output = command.env(name, value).output().unwrap();
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()));
        text(&output.stderr)
    };
    assert!(with("FEROCE_FAULT", "bogus=1").contains("FEROCE_FAULT=\"bogus=1\""));
    assert!(with("FEROCE_FALT", "loss=1%").contains("did you mean FEROCE_FAULT?"));
    assert!(with("FEROCE_CONFIG", "/nowhere").contains("/nowhere: No such file"));
    assert!(with("FEROCE_LOG", "loud").contains("FEROCE_LOG=\"loud\": expected"));
    fs::remove_file(place.0.join("libferoce.so")).unwrap();
    assert!(explain(&[]).contains("FEROCE_LIB"));
}
