//! The code of the scenes, in Rust and in C, cut out of the files that are compiled.

use super::scenes::Scene;

/// The scenes in C; `examples/c/scenes.c` is this file, and tests compile and run it.
const C: &str = include_str!("scenes.c");

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
pub(super) const LEGEND: &str = "In the Rust of the scenes, `play.connected` makes two connected queue pairs (`Qp::connect`), \
     `play.post` is `Qp::post_send`, `play.post_recv` is `Qp::post_recv`, and `play.done` waits for \
     a completion that must be a success (`Cq::wait`). In the C, `meet_with` makes the two ends and \
     `done` waits; examples/c of the source has both whole.";

impl Scene {
    /// Its functions in Rust.
    pub(super) fn rust(&self) -> String {
        functions(self.code.source, self.code.rust)
    }

    /// Its functions in C; nothing if it has none.
    pub(super) fn c(&self) -> String {
        functions(C, self.code.c)
    }
}

fn functions(source: &str, names: &[&str]) -> String {
    let all: Vec<String> = names.iter().filter_map(|name| function(source, name)).collect();
    all.join("\n")
}

/// The function of this name: its lines, from its head to the brace that closes it.
fn function(source: &str, name: &str) -> Option<String> {
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

#[cfg(test)]
mod tests {
    use super::super::scenes::ALL;
    use super::*;

    #[test]
    fn every_scene_has_its_code() {
        for scene in ALL {
            for (source, names) in [(scene.code.source, scene.code.rust), (C, scene.code.c)] {
                for name in names {
                    let text = function(source, name);
                    let text = text.unwrap_or_else(|| panic!("{}: no {name}", scene.name));
                    assert!(text.lines().count() > 3, "{text}");
                }
            }
            // The function that is shown is the one that plays.
            let played = scene.code.rust.last().expect("a function");
            let heading = format!("    name: \"{}\",", scene.name);
            let (_, rest) = scene.code.source.split_once(&heading).expect("the scene");
            let (_, play) = rest.split_once("    play: ").expect("a function");
            assert!(play.starts_with(&format!("{played},")), "{}", scene.name);
            assert_eq!(scene.c().is_empty(), scene.name == "flush", "{}", scene.name);
        }
    }
}
