//! Prose names its actor: comments and messages do not use pronouns that hide it.

use super::tree::{File, Problem, Tree};
use crate::source::{line_of, words};

/// Pronouns that hide the actor. Spelled in halves so that this file passes its own rule.
const VAGUE: &[&str] = &[
    concat!("who", "ever"),
    concat!("some", "body"),
    concat!("no", "body"),
    concat!("any", "body"),
];

/// Folders whose comments and messages are still to be rewritten. A folder that is clean leaves
/// this list and stays clean from then on.
const STILL_TO_REWRITE: &[&str] = &["crates/backend-rdma-core", "crates/feroce"];

pub(crate) fn check(tree: &Tree) -> Vec<Problem> {
    let is_listed = |file: &&File| STILL_TO_REWRITE.iter().any(|folder| file.is_under(folder));
    let mut problems = Vec::new();
    for file in tree.rust_files().filter(|file| !is_listed(file)) {
        for (line, word) in vague_words(file) {
            problems.push(Problem::new(&file.path, line, format!("`{word}`: name the actor")));
        }
    }
    problems
}

/// What is left to rewrite: each listed folder that exists, and how many words it still has.
pub(crate) fn left(tree: &Tree) -> Vec<(&'static str, usize)> {
    let count = |folder: &&'static str| {
        let mut files = tree.rust_files().filter(|file| file.is_under(folder)).peekable();
        files.peek()?;
        Some((*folder, files.map(|file| vague_words(file).len()).sum()))
    };
    STILL_TO_REWRITE.iter().filter_map(count).collect()
}

/// Vague words in comments and string literals, with their lines. A literal that is nothing but
/// the word is a name and not prose.
fn vague_words(file: &File) -> Vec<(usize, &'static str)> {
    let text = file.text.to_ascii_lowercase();
    let mut found = Vec::new();
    for &word in VAGUE {
        for at in words(&text, word) {
            let end = at + word.len();
            let is_name = text[..at].ends_with('"') && text[end..].starts_with('"');
            if file.code[at..end].trim().is_empty() && !is_name {
                found.push((line_of(&text, at), word));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn comments_and_messages_name_the_actor() {
        for word in VAGUE {
            let shout = word.to_ascii_uppercase();
            assert_eq!(count("xtask/src/a.rs", &format!("// {word} comes\n")), 1);
            assert_eq!(count("xtask/src/a.rs", &format!("/// {shout}\n")), 1);
            assert_eq!(count("xtask/src/a.rs", &format!("fail(\"{word} listens\")\n")), 1);
            assert_eq!(count("xtask/src/a.rs", &format!("user(\"{word}\"); let {word} = 1;\n")), 0);
        }
    }

    #[test]
    fn listed_folders_are_counted() {
        let folder = STILL_TO_REWRITE[0];
        let path = format!("{folder}/src/lib.rs");
        let vague = format!("// {}\n", VAGUE[0]);
        assert_eq!(count(&path, &vague), 0);
        assert_eq!(left(&Tree::of(&[(&path, &vague)])), [(folder, 1)]);
        assert_eq!(left(&Tree::of(&[(&path, "// The driver.\n")])), [(folder, 0)]);
        assert_eq!(left(&Tree::of(&[])), []);
    }
}
