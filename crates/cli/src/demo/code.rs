//! The code of the scenes, in Rust and in C, cut out of the files that are compiled.

/// The scenes in C; `examples/c/scenes.c` is this file, and tests compile and run it.
pub(super) const C: &str = include_str!("scenes.c");

/// Where the functions of a scene are.
#[derive(Debug)]
pub(super) struct Code {
    /// The file of the scene.
    pub(super) source: &'static str,
    /// Its functions there; the last one plays it.
    pub(super) rust: &'static [&'static str],
    /// Its functions in C. Headers of rdma-core before version 46 have no FLUSH, so one has none.
    pub(super) c: &'static [&'static str],
}

/// What the functions in Rust call besides the library.
pub(super) const LEGEND: &str = "In the Rust of the scenes, `play.connected` makes two \
     connected queue pairs (`Qp::connect`), `play.post` is `Qp::post_send`, `play.post_recv` is \
     `Qp::post_recv`, and `play.done` waits for a completion that must be a success (`Cq::wait`). \
     In the C, `meet_with` makes the two ends and `done` waits; examples/c of the source has both \
     whole.";

impl Code {
    /// Its functions in Rust.
    pub(super) fn in_rust(&self) -> String {
        functions(self.source, self.rust)
    }

    /// Its functions in C; nothing if it has none.
    pub(super) fn in_c(&self) -> String {
        functions(C, self.c)
    }
}

fn functions(source: &str, names: &[&str]) -> String {
    let all: Vec<String> = names.iter().filter_map(|name| function(source, name)).collect();
    all.join("\n")
}

/// The function of this name in a source of either language: its lines, from its head
/// to the brace that closes it.
pub(super) fn function(source: &str, name: &str) -> Option<String> {
    let (rust, call) = (format!("fn {name}("), format!("{name}("));
    let is_head = |line: &str| {
        let is_c = line.starts_with("static ") && !line.contains('=') && line.ends_with(')');
        let before = line.split(&call).next().unwrap_or_default();
        line.starts_with(&rust) || (is_c && line.contains(&call) && before.ends_with([' ', '*']))
    };
    let lines: Vec<&str> = source.lines().collect();
    let head = lines.iter().position(|line| is_head(line))?;
    let len = lines.get(head..)?.iter().position(|line| *line == "}")?;
    Some(lines.get(head..=head + len)?.iter().map(|line| format!("{line}\n")).collect())
}
