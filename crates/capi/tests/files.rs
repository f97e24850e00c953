//! The files of `/sys/class/infiniband` and `/dev/infiniband` that programs see which run with the
//! library preloaded: ordinary programs, and a C program that tries every call.

use crate::common;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Where one test keeps its files: no other process shares them.
struct Session {
    runtime: PathBuf,
}

impl Session {
    fn new(name: &str) -> Self {
        Self { runtime: common::scratch(name) }
    }

    /// A program that runs with the library preloaded, and one device on loopback.
    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.env("LD_PRELOAD", common::library());
        command.env("XDG_RUNTIME_DIR", &self.runtime);
        command.env("FEROCE_ADDRESS", "127.0.0.1,fd00::1").env("FEROCE_DEVICE_NAME", "mlx5_0");
        command
    }

    fn shell(&self, script: &str) -> Output {
        self.command("/bin/sh").args(["-c", script]).output().expect("a shell")
    }

    /// What a script writes; it must succeed and must not complain.
    fn text(&self, script: &str) -> String {
        let output = self.shell(script);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{script}: {errors}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// The trees of files that are there now.
    fn trees(&self) -> Vec<PathBuf> {
        let bases = fs::read_dir(&self.runtime).expect("a folder").flatten();
        let entries = bases.flat_map(|base| fs::read_dir(base.path()).expect("a folder"));
        entries.flatten().map(|entry| entry.path()).collect()
    }
}

#[test]
fn ordinary_programs_see_the_devices() {
    let session = Session::new("files-ordinary");
    let sys = "/sys/class/infiniband";
    assert_eq!(session.text(&format!("ls {sys}")), "mlx5_0\n");
    assert_eq!(session.text("ls /sys/class/infiniband_verbs/"), "abi_version\nuverbs0\n");
    assert_eq!(session.text("ls /dev/infiniband"), "rdma_cm\nuverbs0\n");
    let port = format!("{sys}/mlx5_0/ports/1");
    let gid = "0000:0000:0000:0000:0000:ffff:7f00:0001\n";
    assert_eq!(session.text(&format!("cat {port}/gids/0")), gid);
    assert_eq!(session.text(&format!("cat {port}/gid_attrs/types/[01]")), "RoCE v2\nRoCE v2\n");
    // Entries without an address are there, and have no type that could be read.
    let entries = session.text(&format!("ls {port}/gids"));
    assert_eq!(session.text(&format!("ls {port}/gid_attrs/types")), entries);
    let empty = session.shell(&format!("cat {port}/gid_attrs/types/2"));
    assert!(String::from_utf8_lossy(&empty.stderr).contains("Invalid argument"), "{empty:?}");
    // The device was chosen by its addresses, so it has no interface.
    let none = session.shell(&format!("cat {port}/gid_attrs/ndevs/0"));
    assert!(String::from_utf8_lossy(&none.stderr).contains("Invalid argument"), "{none:?}");
    assert_eq!(session.text(&format!("cat {port}/pkeys/0 {port}/state")), "0xffff\n4: ACTIVE\n");
    assert_eq!(session.text("cat /sys/class/infiniband_verbs/uverbs0/ibdev"), "mlx5_0\n");
    session.text(&format!("ls -lR {sys} && test -d {sys}/mlx5_0/../.. && test ! -e {sys}/mlx5_1"));
    session.text("test -c /dev/infiniband/uverbs0 -a -r /dev/infiniband/uverbs0");
    session.text("test -w /dev/infiniband/uverbs0 && echo x > /dev/infiniband/uverbs0");
    // A name that only begins like ours is not ours.
    session.text("test ! -e /sys/class/infiniband_other -a ! -e /dev/infinibands");
    assert!(!session.shell("cat /sys/class/infiniband/mlx5_0/nothing").status.success());
}

#[test]
fn devices_have_buses_of_their_own() {
    let session = Session::new("files-pci");
    let paths = |devices: &str| {
        let mut command = session.command("/bin/sh");
        command.env("FEROCE_ADDRESS", devices).env_remove("FEROCE_DEVICE_NAME");
        let script = "for device in $(ls /sys/class/infiniband); do \
                      readlink -f /sys/class/infiniband/$device/device; done";
        let output = command.args(["-c", script]).output().expect("a shell");
        String::from_utf8(output.stdout).expect("text").lines().map(String::from).collect()
    };
    let paths: Vec<String> = paths("127.0.0.1;127.0.0.2");
    let [first, second] = &paths[..] else { panic!("{paths:?}") };
    for path in [first, second] {
        // What NCCL makes of it: the first function of the first device on the bus.
        let (bus, function) = path.split_at(path.len() - 4);
        assert_eq!(function, "00.0", "{path}");
        let (_, busid) = path.rsplit_once('/').expect("a path");
        assert_eq!(busid.len(), "0000:00:00.0".len());
        assert!(bus.contains("/sys/devices/pci"), "{path}");
        assert_eq!(busid.bytes().filter(|byte| *byte == b':').count(), 2);
    }
    assert_ne!(first, second);
}

/// Every call, on a file and on a device; the first failure is the exit status.
const CALLS: &str = r#"
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>
#define FILE_ "/sys/class/infiniband/mlx5_0/node_type"
#define DIR_ "/sys/class/infiniband/mlx5_0"
#define DEV "/dev/infiniband/uverbs0"
#define CHECK(condition) do { if (!(condition)) { perror(#condition); exit(1); } } while (0)

static void reads(int fd)
{
    char byte;
    CHECK(fd >= 0 && read(fd, &byte, 1) == 1 && byte == '1' && close(fd) == 0);
}

static volatile sig_atomic_t handled;

static void handler(int signal)
{
    struct stat st;
    (void)signal;
    handled = stat("/dev/null", &st) == 0 && stat(DEV, &st) == 0;
}

/* Before any other library is initialised, and before main. */
__attribute__((constructor)) static void early(void)
{
    CHECK(access(DIR_, F_OK) == 0);
}

int main(void)
{
    struct stat st;
    struct statx stx;
    struct dirent **list;
    char text[PATH_MAX];
    reads(open(FILE_, O_RDONLY));
    reads(open64(FILE_, O_RDONLY));
    reads(openat(AT_FDCWD, FILE_, O_RDONLY));
    reads(openat64(-1, FILE_, O_RDONLY));
    FILE *file = fopen(FILE_, "r");
    CHECK(file && fgetc(file) == '1' && fclose(file) == 0);
    file = fopen64(FILE_, "re");
    CHECK(file && fgetc(file) == '1' && fclose(file) == 0);
    CHECK(stat(FILE_, &st) == 0 && S_ISREG(st.st_mode));
    CHECK(lstat(DIR_, &st) == 0 && S_ISDIR(st.st_mode));
    CHECK(fstatat(AT_FDCWD, DEV, &st, 0) == 0 && S_ISCHR(st.st_mode));
    CHECK(stat(DEV, &st) == 0 && S_ISCHR(st.st_mode));
    CHECK(statx(AT_FDCWD, DEV, 0, STATX_TYPE, &stx) == 0 && S_ISCHR(stx.stx_mode));
    CHECK(access(DEV, R_OK | W_OK) == 0);
    CHECK(faccessat(AT_FDCWD, DEV, R_OK | W_OK, AT_EACCESS) == 0);
    CHECK(euidaccess(DEV, R_OK) == 0);
    CHECK(readlink(DEV, text, sizeof text) > 0);
    CHECK(readlink(DIR_, text, sizeof text) == -1 && errno == EINVAL);
    CHECK(realpath("/sys/class/infiniband/mlx5_0/../..", text));
    CHECK(realpath(DIR_ "/nothing", text) == NULL && errno == ENOENT);
    DIR *dir = opendir(DIR_);
    CHECK(dir && readdir(dir) && closedir(dir) == 0);
    CHECK(scandir("/sys/class/infiniband", &list, NULL, alphasort) == 3);
    CHECK(getxattr(DIR_, "user.none", text, sizeof text) == -1 && errno != ENOENT);
    int fd = open(DEV, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0 && fstat(fd, &st) == 0 && S_ISCHR(st.st_mode));
    CHECK(ioctl(fd, 0xc0181b01, NULL) == -1 && errno == EFAULT);
    CHECK(realpath(DIR_ "/device/subsystem", text) && !strcmp(strrchr(text, '/'), "/pci"));

    /* Other paths, and errors, pass through. */
    errno = 77;
    CHECK(access("/dev/null", F_OK) == 0 && stat(DEV, &st) == 0 && errno == 77);
    CHECK(open("/no/such/file", O_RDONLY) == -1 && errno == ENOENT);
    CHECK(stat("", &st) == -1 && errno == ENOENT);
    CHECK(open("/tmp", O_RDWR | O_TMPFILE, 0600) >= 0);
    const char *volatile nothing = NULL;
    CHECK(access(nothing, F_OK) == -1 && errno == EFAULT);

    signal(SIGUSR1, handler);
    CHECK(raise(SIGUSR1) == 0 && handled);
    if (fork() == 0) {
        reads(open(FILE_, O_RDONLY));
        return 0;
    }
    return 0;
}
"#;

#[test]
fn every_call_finds_them() {
    let session = Session::new("files-calls");
    let folder = common::scratch("files-calls-program");
    let (source, program) = (folder.join("calls.c"), folder.join("calls"));
    fs::write(&source, CALLS).expect("written");
    let paths = [source.to_str().expect("text"), "-o", program.to_str().expect("text")];
    // With and without checks of buffers, which call functions of their own.
    for options in [["-O0", "-w"], ["-O2", "-D_FORTIFY_SOURCE=2"]] {
        if common::gcc(&[&paths[..], &options, &["-w"]].concat()).is_none() {
            return;
        }
        let output = session.command(&program).output().expect("it starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{options:?}: {errors}");
    }
}

#[test]
fn the_last_one_to_exit_cleans_up() {
    let session = Session::new("files-exit");
    let ls = || session.command("/bin/ls").arg("/sys/class/infiniband").output().expect("ls");
    assert!(ls().status.success());
    assert_eq!(session.trees(), [""; 0].map(PathBuf::from));
    // One that still runs keeps what others would remove.
    let mut other = session.command("/bin/cat");
    other.args(["/sys/class/infiniband/mlx5_0/node_type", "-"]);
    let mut other = other.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("cat");
    let mut line = [0; 6];
    let stdout = other.stdout.as_mut().expect("a pipe");
    std::io::Read::read_exact(stdout, &mut line).expect("the first file");
    assert!(ls().status.success());
    assert_eq!(session.trees().len(), 1);
    other.kill().expect("killed");
    other.wait().expect("gone");
    // It could not clean up, but the next one does.
    assert_eq!(session.trees().len(), 1);
    assert!(ls().status.success());
    assert_eq!(session.trees().len(), 0);
}

#[test]
fn many_at_once_get_on_with_each_other() {
    let session = Session::new("files-many");
    let script = "for i in 1 2 3 4 5 6 7 8; do /bin/ls /sys/class/infiniband & done; wait";
    for _ in 0..5 {
        let output = session.shell(script);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "mlx5_0\n".repeat(8));
    }
    // Two that exit together may each leave it to the other; the next one removes it.
    assert_eq!(session.text("exec /bin/ls /sys/class/infiniband"), "mlx5_0\n");
    assert_eq!(session.trees().len(), 0);
}

/// A program that monitors ports sees what other programs do with the device.
#[test]
fn counters_are_those_of_all_processes() {
    let address = "127.0.77.1";
    let context = feroce::Device::at([address.parse().expect("ip")]).open().expect("a device");
    let pd = context.alloc_pd().expect("a domain");
    let cq = context.create_cq(16).expect("a queue");
    let access = feroce::Access::LOCAL_WRITE | feroce::Access::REMOTE_WRITE;
    let mr = pd.alloc_mr(64, access).expect("memory");
    let cap = feroce::QpCap::new(16, 16);
    let [mut a, mut b] = [0, 1].map(|_| pd.rc_qp(&cq, &cq, cap).create().expect("a queue pair"));
    let ends = [&a, &b].map(|qp| qp.endpoint().expect("an end"));
    a.connect(&ends[1]).expect("a peer");
    b.connect(&ends[0]).expect("a peer");
    let op = feroce::SendOp::Write(mr.remote(0));
    a.post_send([feroce::SendWr::new(1, op, mr.data(32..64))]).expect("room");
    assert_eq!(cq.wait().expect("a completion").status, feroce::WcStatus::Success);

    let session = Session::new("files-counters");
    let read = |path: &str| {
        let path = format!("/sys/class/infiniband/mlx5_0/ports/1/{path}");
        let mut cat = session.command("/bin/cat");
        let output = cat.arg(&path).env("FEROCE_ADDRESS", address).output().expect("cat");
        let text = String::from_utf8(output.stdout).expect("text");
        text.trim().parse::<u64>().unwrap_or_else(|_| panic!("{path}: {text:?}"))
    };
    let counters = context.counters();
    assert!(counters.sent_pkts >= 2 && counters.rdma_sends == 1, "{counters:?}");
    assert_eq!(read("counters/port_xmit_packets"), counters.sent_pkts);
    assert_eq!(read("counters/port_xmit_data"), counters.sent_bytes / 4);
    assert_eq!(read("counters/port_rcv_packets"), counters.rcvd_pkts);
    assert_eq!(read("hw_counters/rdma_sends"), 1);
    assert_eq!(read("hw_counters/drop_unknown_qp"), 0);
    drop((a, b, mr, cq, pd, context));
    assert_eq!(read("hw_counters/rdma_sends"), 0, "no process has the device open");
}
