//! A device that cannot be opened: the program gets `errno`, and the user a reason on standard
//! error.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{directory, gcc, headers, library, scratch};

/// The program of `tests/c/open.c`, and the folder of the library.
fn program(name: &str) -> Option<(PathBuf, PathBuf)> {
    headers()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/open.c");
    let program = scratch(name).join("open");
    let (source, at) = (source.display().to_string(), program.display().to_string());
    let library = library().display().to_string();
    gcc(&["-Wall", "-Werror", "-D_GNU_SOURCE", &source, "-o", &at, &library])?;
    Some((program, directory(&format!("{name}-lib"))))
}

/// What the program prints, and what is said on standard error.
fn refused(name: &str, settings: &[(&str, &str)]) -> Option<(String, String)> {
    refused_through(&[], name, settings)
}

/// The same for a program that is started through a command that executes its arguments.
fn refused_through(
    wrapper: &[&str],
    name: &str,
    settings: &[(&str, &str)],
) -> Option<(String, String)> {
    let (program, library) = program(name)?;
    let words: Vec<_> = wrapper.iter().map(PathBuf::from).chain([program]).collect();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command.env("LD_LIBRARY_PATH", library).envs(settings.iter().copied());
    let output = command.output().expect("it starts");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some((text(&output.stdout), text(&output.stderr)))
}

#[test]
fn a_capture_that_cannot_be_written_is_said() {
    let address = ("FEROCE_ADDRESS", "127.123.0.1");
    let pcap = ("FEROCE_PCAP", "/no/such/folder/x.pcapng");
    let Some((printed, said)) = refused("refused-capture", &[address, pcap]) else { return };
    assert_eq!(printed, "open: ENOENT\n");
    let reason = "feroce: cannot open the device feroce0: cannot create the capture file \
                  /no/such/folder/x.pcapng: No such file or directory (os error 2)\n";
    assert_eq!(said, reason, "it should be said once");
}

#[test]
fn a_wrong_setting_is_said() {
    let Some((printed, said)) = refused("refused-setting", &[("FEROCE_FAULT", "bogus=1")]) else {
        return;
    };
    assert_eq!(printed, "list: EINVAL\n");
    assert!(said.starts_with("feroce: cannot list the devices: FEROCE_FAULT"), "{said}");
}

#[test]
fn an_address_that_another_program_has_is_said() {
    let address = ("FEROCE_ADDRESS", "127.123.0.2");
    let _taken = UdpSocket::bind(("127.123.0.2", 4791)).expect("a free address");
    let Some((printed, said)) = refused("refused-address", &[address]) else { return };
    assert_eq!(printed, "open: EADDRINUSE\n");
    assert!(said.contains("cannot bind UDP port 4791 of 127.123.0.2"), "{said}");
}

#[test]
fn too_few_descriptors_are_said() {
    let address = ("FEROCE_ADDRESS", "127.123.0.3");
    for limit in [8, 12] {
        let wrapper = ["prlimit", &format!("--nofile={limit}")];
        let Some((printed, said)) = refused_through(&wrapper, "refused-descriptors", &[address])
        else {
            return;
        };
        assert_eq!(printed, "open: EMFILE\n");
        assert!(said.contains("cannot open the device feroce0"), "{said}");
        assert!(said.contains("Too many open files"), "{said}");
    }
}
