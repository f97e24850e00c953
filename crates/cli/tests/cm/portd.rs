//! `feroce portd --all-users`, with programs of two users. Only root can start them.

use std::os::unix::process::CommandExt;
use std::process::Stdio;

use nix::sys::signal::Signal;
use nix::unistd::geteuid;

use super::netns::with_cable;
use super::{Running, feroce};

/// Two users without privileges.
const USERS: [u32; 2] = [1234, 65534];

/// Starts a command as a user.
fn start_as(user: u32, args: &str) -> Running {
    let mut command = feroce(args);
    command.uid(user).gid(user).env_remove("XDG_RUNTIME_DIR");
    Running::of(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
}

/// Each user serves and calls at the address of the host, at the same time.
#[test]
fn two_users_serve_and_call_at_one_address() {
    if !geteuid().is_root() {
        return eprintln!("SKIPPED: only root can start processes of other users");
    }
    with_cable(1500, |cable| {
        let mut portd = cable.in_a(|| Running::start("portd --all-users"));
        portd.wait_for_output("receiving for the programs of all users");
        let server = |(user, port): (u32, u16)| {
            let args = format!("rping -s -v -C 40 -a 10.9.0.1 -p {port}");
            let mut server = cable.in_a(|| start_as(user, &args));
            server.wait_until_listening(&args);
            server
        };
        let servers = USERS.into_iter().zip([7001, 7002]).map(server);
        let servers: Vec<Running> = servers.collect();
        // The server of the first user is called by the second, on the same host, and the other one
        // from the other host.
        let near = cable.in_a(|| start_as(USERS[1], "rping -c -V -C 40 -a 10.9.0.1 -p 7001"));
        let far = cable.in_b(|| Running::start("rping -c -V -C 40 -a 10.9.0.1 -p 7002"));
        for process in [near, far].into_iter().chain(servers) {
            let (status, output, errors) = process.finish();
            assert_eq!(status, Some(0), "{output}{errors}");
        }
        portd.signal(Signal::SIGTERM);
        let (status, output, errors) = portd.finish();
        assert_eq!(status, Some(0), "{errors}");
        let said = output.split_once("handed on ").and_then(|(_, rest)| rest.split_once(' '));
        let count: u64 = said.and_then(|(count, _)| count.parse().ok()).expect("a number");
        assert!(count > 0, "{output}");
    });
}
