//! The scenes: every service and every operation, one at a time.

mod atomics;
mod datagrams;
mod one_sided;
mod trouble;
mod two_sided;
mod windows;

use super::code::Code;
use super::stage::Play;

/// A scene: one operation or service.
#[derive(Debug)]
pub(super) struct Scene {
    /// Name on the command line.
    pub(super) name: &'static str,
    /// Heading.
    pub(super) title: &'static str,
    /// What happens.
    pub(super) story: &'static str,
    /// New terms, and their meaning.
    pub(super) terms: &'static [(&'static str, &'static str)],
    /// What to notice in the diagram.
    pub(super) notice: &'static str,
    /// Runs the scene.
    pub(super) play: fn(&mut Play<'_>) -> anyhow::Result<()>,
    /// Its code.
    pub(super) code: Code,
}

/// All scenes, in the order in which they build on each other.
pub(super) const ALL: &[Scene] = &[
    two_sided::SEND,
    two_sided::SEND_IMM,
    one_sided::WRITE,
    one_sided::WRITE_IMM,
    one_sided::READ,
    atomics::CAS,
    atomics::FAA,
    atomics::ATOMIC_WRITE,
    one_sided::FLUSH,
    windows::WINDOW,
    windows::SEND_INV,
    two_sided::SRQ,
    datagrams::UC,
    datagrams::UD,
    datagrams::MULTICAST,
    trouble::RNR,
    trouble::REFUSED,
];

#[cfg(test)]
mod tests {
    use super::ALL;
    use crate::demo::code::{C, function};

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
            assert_eq!(scene.code.in_c().is_empty(), scene.name == "flush", "{}", scene.name);
        }
    }
}
