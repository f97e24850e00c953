//! Reading Rust sources just well enough for rules: what is code and what is not, which
//! modules a file declares, where its unit tests begin.

/// The text with comments and the insides of literals turned into spaces. Length and line
/// breaks stay, so that a position in one is the same position in the other.
pub(crate) fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let (blank_from, blank_to, next) = match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                let end = at + find(&bytes[at..], b'\n');
                (at, end, end)
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let end = end_of_block_comment(bytes, at);
                (at, end, end)
            }
            b'"' => {
                let end = end_of_string(bytes, at);
                (at + 1, end, end + 1)
            }
            b'\'' => {
                let end = end_of_char(text, at);
                (at + 1, end.unwrap_or(at + 1), end.unwrap_or(at) + 1)
            }
            byte if is_word(byte) => {
                let end = at + bytes[at..].iter().take_while(|&&byte| is_word(byte)).count();
                match raw_string(bytes, at, end) {
                    Some((start, close, next)) => (start, close, next),
                    None => (at, at, end),
                }
            }
            _ => (at, at, at + 1),
        };
        for byte in &mut code[blank_from..blank_to.min(bytes.len())] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = next;
    }
    // Whole characters are blanked, never a part of one, so this stays UTF-8.
    String::from_utf8(code).unwrap_or_default()
}

fn find(bytes: &[u8], wanted: u8) -> usize {
    bytes.iter().position(|&byte| byte == wanted).unwrap_or(bytes.len())
}

pub(crate) fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric() || !byte.is_ascii()
}

fn end_of_block_comment(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0);
    while at < bytes.len() {
        match &bytes[at..bytes.len().min(at + 2)] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Where the closing quote of the string that opens at `start` stands.
fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at
}

/// Where the closing quote of a character literal stands; `None` if it is a lifetime.
fn end_of_char(text: &str, start: usize) -> Option<usize> {
    let mut rest = text[start + 1..].char_indices();
    let (_, first) = rest.next()?;
    if first == '\\' {
        rest.next()?;
        return rest.find(|&(_, c)| c == '\'').map(|(offset, _)| start + 1 + offset);
    }
    rest.next().filter(|&(_, c)| c == '\'').map(|(offset, _)| start + 1 + offset)
}

/// If the word in `start..end` begins a raw string: its inside, and where the code goes on.
fn raw_string(bytes: &[u8], start: usize, end: usize) -> Option<(usize, usize, usize)> {
    if !matches!(&bytes[start..end], b"r" | b"br" | b"cr") {
        return None;
    }
    let hashes = bytes[end..].iter().take_while(|&&byte| byte == b'#').count();
    let open = end + hashes;
    if bytes.get(open) != Some(&b'"') {
        return None;
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let inside = &bytes[open + 1..];
    let length = inside.windows(close.len()).position(|window| window == close);
    let length = length.unwrap_or(inside.len());
    Some((open + 1, open + 1 + length, open + 1 + length + close.len()))
}

/// Where `word` stands in `text` as a word of its own, as byte offsets.
pub(crate) fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_edge = |byte: Option<&u8>| byte.is_none_or(|&byte| !is_word(byte));
    let bytes = text.as_bytes();
    text.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        is_edge(at.checked_sub(1).and_then(|before| bytes.get(before)))
            && is_edge(bytes.get(at + word.len()))
    })
}

/// The line number, from 1, of a byte offset.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count()
}

/// How many lines of the code stand before the unit tests at its end (`#[cfg(test)] mod …`).
pub(crate) fn lines_before_tests(code: &str) -> usize {
    let lines: Vec<&str> = code.lines().collect();
    let mut end = lines.len();
    // Several test modules may follow each other: take them off one by one.
    while let Some(start) = start_of_last_test_module(&lines[..end]) {
        end = start;
    }
    end
}

fn start_of_last_test_module(lines: &[&str]) -> Option<usize> {
    let close = lines.iter().rposition(|line| !line.trim().is_empty())?;
    let open = lines[..close].iter().rposition(|line| {
        line.starts_with("mod ") || line.starts_with("pub mod ") || *line == "}"
    })?;
    if lines[close] != "}" || !lines[open].ends_with('{') {
        return None;
    }
    let above = lines[..open].iter().rev();
    let attributes = above.take_while(|line| line.starts_with("#[")).count();
    let start = open - attributes;
    let is_test = |line: &&str| line.starts_with("#[cfg(") && words(line, "test").next().is_some();
    lines[start..open].iter().any(is_test).then_some(start)
}

/// A file that another file pulls in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Child {
    /// `mod name;`, inside the inline modules before the last name.
    Module(Vec<String>),
    /// `#[path = "…"]` or `include!("…")`, relative to the folder of the file.
    Path(String),
}

/// The files that a source file declares as modules or includes.
pub(crate) fn children(text: &str, code: &str) -> Vec<Child> {
    let tokens = tokens(code);
    let mut found = Vec::new();
    // For each open brace the inline module that it belongs to, if any.
    let mut braces: Vec<Option<&str>> = Vec::new();
    let literal = |at: usize| text[at + 1..end_of_string(text.as_bytes(), at)].to_owned();
    for index in 0..tokens.len() {
        let ahead: Vec<&str> = tokens[index..].iter().take(4).map(|&(_, token)| token).collect();
        match *ahead.as_slice() {
            ["mod", name, ";", ..] => {
                let path = braces.iter().copied().flatten().chain([name]);
                found.push(Child::Module(path.map(str::to_owned).collect()));
            }
            ["path", "=", "\"", ..] => found.push(Child::Path(literal(tokens[index + 2].0))),
            ["include", "!", "(", "\""] => found.push(Child::Path(literal(tokens[index + 3].0))),
            ["{", ..] => {
                let before =
                    index.checked_sub(2).map(|start| (tokens[start].1, tokens[index - 1].1));
                braces.push(before.filter(|(word, _)| *word == "mod").map(|(_, name)| name));
            }
            ["}", ..] => drop(braces.pop()),
            _ => {}
        }
    }
    found
}

/// Words and single signs, each with its position; a string literal is its two quotes.
fn tokens(code: &str) -> Vec<(usize, &str)> {
    let bytes = code.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let word = bytes[at..].iter().take_while(|&&byte| is_word(byte)).count();
        let length = word.max(1);
        if !bytes[at].is_ascii_whitespace() {
            found.push((at, &code[at..at + length]));
        }
        at += length;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        let cases = [
            ("a // b\nc", "a     \nc"),
            ("a /* /* b */ */ c", "a               c"),
            (r#"f("a\"b", x)"#, r#"f("    ", x)"#),
            (r##"r#"a"b"# x"##, r##"r#"   "# x"##),
            ("br\"a\" x", "br\" \" x"),
            ("r#fn x", "r#fn x"),
            ("'a' 'b: loop", "' ' 'b: loop"),
            (r"'\'' x '\u{1}' y", r"'  ' x '     ' y"),
            ("'\"' x", "' ' x"),
            ("&'a str \"é\"", "&'a str \"  \""),
            ("\"open", "\"    "),
            ("'", "'"),
        ];
        for (text, expected) in cases {
            assert_eq!(code_only(text), expected, "{text}");
            assert_eq!(code_only(text).len(), text.len());
        }
    }

    #[test]
    fn words_have_edges() {
        assert_eq!(words("sea seal asea sea", "sea").collect::<Vec<_>>(), [0, 14]);
        assert_eq!(line_of("a\nb\nc", 4), 3);
    }

    #[test]
    fn tests_at_the_end_do_not_count() {
        let body = "fn a() {\n}\n";
        let tests = "\n#[cfg(test)]\nmod tests {\n    fn b() {\n    }\n}\n";
        let more = "\n#[cfg(all(test, not(loom)))]\n#[expect(x)]\nmod more {\n}\n";
        assert_eq!(lines_before_tests(body), 2);
        assert_eq!(lines_before_tests(&format!("{body}{tests}")), 3);
        assert_eq!(lines_before_tests(&format!("{body}{tests}{more}")), 3);
        assert_eq!(lines_before_tests(&format!("{tests}{body}")), 8);
        assert_eq!(lines_before_tests("mod a {\n}\n"), 2);
    }

    #[test]
    fn children_are_found() {
        let text = "mod a;\nmod b { pub mod c; }\n#[path = \"x/y.rs\"]\nmod d;\n\
                    // mod e;\nfn f() { include!(\"g.rs\") }\nmod h;";
        let module = |path: &[&str]| Child::Module(path.iter().map(|&p| p.to_owned()).collect());
        let expected = [
            module(&["a"]),
            module(&["b", "c"]),
            Child::Path("x/y.rs".to_owned()),
            module(&["d"]),
            Child::Path("g.rs".to_owned()),
            module(&["h"]),
        ];
        assert_eq!(children(text, &code_only(text)), expected);
    }
}
