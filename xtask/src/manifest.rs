//! As much TOML as Cargo.toml files need: tables, keys, and values as written.

/// One `key = value` of a manifest.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The table it stands in, as written between the brackets.
    pub(crate) table: String,
    /// Which of the headings of the file it stands under: tells `[[bin]]`s apart.
    heading: usize,
    pub(crate) key: String,
    pub(crate) value: String,
    /// Line number, from 1.
    pub(crate) line: usize,
}

impl Entry {
    /// The value without its quotes.
    pub(crate) fn text(&self) -> &str {
        self.value.trim_matches(['"', '\''])
    }
}

/// A dependency that a manifest names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Dependency<'a> {
    /// The package, also where the manifest gives it another name.
    pub(crate) package: &'a str,
    /// True for `[dev-dependencies]`.
    pub(crate) dev: bool,
    pub(crate) line: usize,
}

/// A Cargo.toml.
#[derive(Debug)]
pub(crate) struct Manifest {
    entries: Vec<Entry>,
}

impl Manifest {
    pub(crate) fn parse(text: &str) -> Self {
        let mut entries: Vec<Entry> = Vec::new();
        let (mut table, mut heading) = (String::new(), 0);
        let mut open_brackets = 0;
        for (index, line) in text.lines().enumerate() {
            let line = without_comment(line).trim();
            if open_brackets > 0 {
                if let Some(entry) = entries.last_mut() {
                    entry.value.push_str(line);
                }
                open_brackets += brackets(line);
            } else if line.starts_with('[') {
                table = line.trim_matches(['[', ']']).trim().to_owned();
                heading += 1;
            } else if let Some((key, value)) = line.split_once('=') {
                open_brackets = brackets(value);
                entries.push(Entry {
                    table: table.clone(),
                    heading,
                    key: key.trim().to_owned(),
                    value: value.trim().to_owned(),
                    line: index + 1,
                });
            }
        }
        Self { entries }
    }

    pub(crate) fn get(&self, table: &str, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.table == table && entry.key == key)
    }

    /// Whether `table` says `key.workspace = true`, in either spelling.
    pub(crate) fn inherits(&self, table: &str, key: &str) -> bool {
        let dotted = self.get(table, &format!("{key}.workspace"));
        let inline = self.get(table, key);
        dotted.is_some_and(|entry| entry.value == "true")
            || inline.is_some_and(|entry| inline_value(&entry.value, "workspace") == Some("true"))
    }

    /// The names of the `[[bin]]` tables.
    pub(crate) fn binaries(&self) -> Vec<&str> {
        let names = self.entries.iter().filter(|entry| entry.table == "bin" && entry.key == "name");
        names.map(Entry::text).collect()
    }

    /// The files that targets name with `path`.
    pub(crate) fn target_paths(&self) -> impl Iterator<Item = &str> {
        const TARGETS: [&str; 5] = ["lib", "bin", "test", "bench", "example"];
        let paths = self.entries.iter().filter(|entry| entry.key == "path");
        paths.filter(|entry| TARGETS.contains(&entry.table.as_str())).map(Entry::text)
    }

    /// The names of the `[[test]]` tables: without a `path`, each is a file or folder of `tests`.
    pub(crate) fn tests(&self) -> impl Iterator<Item = &str> {
        let names =
            self.entries.iter().filter(|entry| entry.table == "test" && entry.key == "name");
        names.map(Entry::text)
    }

    /// Every dependency, of every kind and for every target.
    pub(crate) fn dependencies(&self) -> Vec<Dependency<'_>> {
        let mut found: Vec<Dependency<'_>> = Vec::new();
        let mut last_heading = None;
        for entry in &self.entries {
            let dev = entry.table.contains("dev-dependencies");
            if entry.table.ends_with("dependencies") {
                let key = entry.key.split('.').next().unwrap_or_default().trim_matches('"');
                let package = inline_value(&entry.value, "package").unwrap_or(key);
                found.push(Dependency { package, dev, line: entry.line });
            } else if let Some((_, name)) = entry.table.rsplit_once("dependencies.") {
                // `[dependencies.name]`: one table for one dependency.
                if last_heading != Some(entry.heading) {
                    last_heading = Some(entry.heading);
                    let package = name.trim_matches('"');
                    found.push(Dependency { package, dev, line: entry.line });
                }
                if let (true, Some(dependency)) = (entry.key == "package", found.last_mut()) {
                    dependency.package = entry.text();
                }
            }
        }
        found
    }
}

/// The value of `key` in an inline table such as `{ package = "x", workspace = true }`.
fn inline_value<'a>(table: &'a str, key: &str) -> Option<&'a str> {
    let inside = table.strip_prefix('{')?.strip_suffix('}')?;
    let mut pairs = inside.split(',').filter_map(|pair| pair.split_once('='));
    pairs.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().trim_matches('"'))
}

/// How many more brackets a line opens than it closes, outside strings.
fn brackets(line: &str) -> i32 {
    let outside = line.split('"').step_by(2).flat_map(str::chars);
    outside.map(|c| i32::from("[{".contains(c)) - i32::from("]}".contains(c))).sum()
}

fn without_comment(line: &str) -> &str {
    let mut in_string = false;
    for (at, c) in line.char_indices() {
        match c {
            '"' => in_string = !in_string,
            '#' if !in_string => return &line[..at],
            _ => {}
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = r##"
[package]
name = "sample" # a comment
description = "has a # and a [ in it"
license.workspace = true
version = { workspace = true }
keywords = [
  "a = b", # more
  "c",
]

[dependencies]
feroce-wire = { workspace = true }
feroce-mem.workspace = true
alias = { package = "feroce-ring", path = "../ring" }

[target.'cfg(loom)'.dependencies]
loom = "0.7"

[dev-dependencies.other]
version = "1"
package = "feroce-sim"

[[bin]]
name = "one"
path = "src/one.rs"

[[bin]]
name = "two"
"##;

    #[test]
    fn reads_keys_and_lines() {
        let manifest = Manifest::parse(SAMPLE);
        let description = manifest.get("package", "description").expect("is there");
        assert_eq!((description.text(), description.line), ("has a # and a [ in it", 4));
        assert!(manifest.inherits("package", "license"));
        assert!(manifest.inherits("package", "version"));
        assert!(!manifest.inherits("package", "name"));
        assert!(manifest.get("package", "\"a").is_none());
    }

    #[test]
    fn finds_every_kind_of_dependency() {
        let manifest = Manifest::parse(SAMPLE);
        let found: Vec<_> =
            manifest.dependencies().iter().map(|d| (d.package.to_owned(), d.dev)).collect();
        let expected = [
            ("feroce-wire", false),
            ("feroce-mem", false),
            ("feroce-ring", false),
            ("loom", false),
            ("feroce-sim", true),
        ];
        assert_eq!(found, expected.map(|(name, dev)| (name.to_owned(), dev)));
    }

    #[test]
    fn finds_binaries() {
        let manifest = Manifest::parse(SAMPLE);
        assert_eq!(manifest.binaries(), ["one", "two"]);
        assert_eq!(manifest.target_paths().collect::<Vec<_>>(), ["src/one.rs"]);
    }
}
