//! Nothing below the driver waits: the driver holds the lock of a device while it calls the engine
//! and the links, so that a call that sleeps there stops every queue pair of the device.

use super::tree::{File, Problem, Tree};
use crate::source::{line_of, lines_before_tests, words};

/// Crates that must not block.
const NEVER_BLOCK: &[&str] = &["engine", "link", "local"];

/// Names that only code that waits has a use for.
const WAITING: &[&str] = &[
    "sleep",
    "usleep",
    "nanosleep",
    "clock_nanosleep",
    "yield_now",
    "sched_yield",
    "spin_loop",
    "park",
    "park_timeout",
    "Condvar",
    "Barrier",
    "recv_timeout",
    "epoll_wait",
    "epoll_pwait",
    "F_SETLKW",
    "F_OFD_SETLKW",
];

/// Functions that wait for descriptors. A call is allowed whose arguments say that it does not
/// wait.
const POLLING: &[&str] = &["poll", "ppoll", "select", "pselect"];

/// Timeouts that say so.
const AT_ONCE: &[&str] = &["PollTimeout::ZERO", "EpollTimeout::ZERO"];

pub(crate) fn check(tree: &Tree) -> Vec<Problem> {
    let is_meant = |file: &&File| {
        NEVER_BLOCK.iter().any(|name| file.is_under(&format!("crates/{name}/src")))
            && !file.is_unit_tests()
    };
    let mut problems = Vec::new();
    for file in tree.rust_files().filter(is_meant) {
        let last = lines_before_tests(&file.code);
        let found = waiting(&file.code).chain(polling(&file.code)).chain(epoll(&file.code));
        for (at, name) in found {
            let line = line_of(&file.code, at);
            if line <= last {
                let message = format!("`{name}` may wait: return a deadline, or what to poll");
                problems.push(Problem::new(&file.path, line, message));
            }
        }
    }
    problems
}

fn waiting(code: &str) -> impl Iterator<Item = (usize, &'static str)> {
    let uses = |name: &&'static str| words(code, name).map(|at| (at, *name)).collect::<Vec<_>>();
    // A field or variable of that name is none of our business, nor is a function that is defined.
    let is_used = |(at, name): &(usize, &str)| {
        let (before, after) = (code[..*at].trim_end(), &code[at + name.len()..]);
        let is_type = name.starts_with(char::is_uppercase);
        !before.ends_with("fn") && (is_type || before.ends_with("::") || after.starts_with('('))
    };
    WAITING.iter().flat_map(uses).filter(is_used).collect::<Vec<_>>().into_iter()
}

/// Calls of functions that wait for descriptors.
fn polling(code: &str) -> impl Iterator<Item = (usize, &'static str)> {
    let uses = |name: &&'static str| words(code, name).map(|at| (at, *name)).collect::<Vec<_>>();
    let is_call = |(at, name): &(usize, &str)| {
        let before = code[..*at].trim_end();
        let is_function = !before.ends_with('.') && !before.ends_with("fn");
        is_function && arguments(code, at + name.len()).is_some_and(may_wait)
    };
    POLLING.iter().flat_map(uses).filter(is_call).collect::<Vec<_>>().into_iter()
}

/// Calls of `Epoll::wait`, in files that have one.
fn epoll(code: &str) -> impl Iterator<Item = (usize, &'static str)> {
    let has_epoll = words(code, "Epoll").next().is_some();
    let calls = words(code, "wait").filter(|at| {
        let is_method = code[..*at].trim_end().ends_with('.');
        is_method && arguments(code, at + 4).is_some_and(may_wait)
    });
    calls.filter(|_| has_epoll).map(|at| (at, "wait")).collect::<Vec<_>>().into_iter()
}

fn may_wait(arguments: &str) -> bool {
    !AT_ONCE.iter().any(|timeout| arguments.contains(timeout))
}

/// What is between the parentheses that open at `at`, if any do.
fn arguments(code: &str, at: usize) -> Option<&str> {
    let rest = code[at..].strip_prefix('(')?;
    let mut depth = 1;
    let end = rest.find(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth == 0
    })?;
    Some(&rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn calls_that_wait_are_found() {
        let bad = [
            "std::thread::sleep(pause);",
            "use std::thread::sleep;",
            "thread::yield_now();",
            "core::hint::spin_loop();",
            "thread::park();",
            "struct A { ready: Condvar }",
            "let _ = poll(&mut [], PollTimeout::from(5_u8));",
            "ppoll(&mut fds, None, None);",
            "nix::poll::poll(&mut fds(), PollTimeout::NONE)",
            "unsafe { libc::nanosleep(&t, null()) };",
            "use nix::sys::epoll::Epoll;\nepoll.wait(&mut events, EpollTimeout::NONE);",
            "fcntl(file, FcntlArg::F_OFD_SETLKW(&range))",
        ];
        for text in bad {
            assert_eq!(count("crates/local/src/registry.rs", text), 1, "{text}");
            assert_eq!(count("crates/engine/src/cq.rs", text), 1, "{text}");
            assert_eq!(count("crates/feroce/src/cq.rs", text), 0, "{text}");
        }
    }

    #[test]
    fn calls_that_do_not_wait_are_allowed() {
        let good = [
            "poll(&mut fds, PollTimeout::ZERO)",
            "use nix::sys::epoll::Epoll;\nepoll.wait(&mut events, EpollTimeout::ZERO);",
            "pub fn poll(&mut self) -> Option<Cqe> {",
            "cq.poll(); peers.get(peer).wait(slot);",
            "let sleep = 1;",
            "// thread::sleep",
            "fn f() {}\n\n#[cfg(test)]\nmod tests {\n    fn g() { thread::sleep(x) }\n}\n",
        ];
        for text in good {
            assert_eq!(count("crates/link/src/udp/rx.rs", text), 0, "{text}");
        }
        assert_eq!(count("crates/link/tests/udp.rs", "thread::yield_now()"), 0);
    }
}
