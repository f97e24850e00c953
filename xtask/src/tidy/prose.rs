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

pub(crate) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.rust_files() {
        for (line, word) in vague_words(file) {
            problems.push(Problem::new(&file.path, line, format!("`{word}`: name the actor")));
        }
    }
    problems
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
}
