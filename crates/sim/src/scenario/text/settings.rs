//! Settings that replace those of a file.

use toml::{Table, Value};

/// The text with other values. A key names tables and their entries with points between, and
/// entries of lists by their numbers from 0.
pub(super) fn change(text: &str, settings: &[(String, String)]) -> Result<String, String> {
    let mut root: Table = text.parse().map_err(|e: toml::de::Error| e.message().to_owned())?;
    for (key, value) in settings {
        let value = read_value(value);
        let words: Vec<&str> = key.split('.').collect();
        let (last, tables) =
            words.split_last().ok_or_else(|| "a setting without a key".to_owned())?;
        let mut at = &mut root;
        let mut words = tables.iter().peekable();
        while let Some(word) = words.next() {
            let missing = || format!("{key}: the scenario has no {word}");
            // A table that has only defaults need not be there.
            let entry = at.entry(*word).or_insert_with(|| Value::Table(Table::new()));
            let entry = match words.peek().and_then(|next| next.parse::<usize>().ok()) {
                Some(i) => {
                    words.next();
                    entry.as_array_mut().and_then(|list| list.get_mut(i)).ok_or_else(missing)?
                }
                None => entry,
            };
            at = entry.as_table_mut().ok_or_else(missing)?;
        }
        at.insert((*last).to_owned(), value);
    }
    toml::to_string(&root).map_err(|e| e.to_string())
}

/// A value as TOML has it; a word need not have quotes.
fn read_value(word: &str) -> Value {
    let parsed = format!("value = {word}").parse::<Table>();
    let value = parsed.ok().and_then(|mut table| table.remove("value"));
    value.unwrap_or_else(|| Value::String(word.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_replaced_and_added() {
        let text = "stop = \"1s\"\n[host]\nmtu = 1024\n[[pattern]]\nload = 0.5\n";
        let set = |key: &str, value: &str| change(text, &[(key.to_owned(), value.to_owned())]);
        let has = |key, value, line: &str| set(key, value).is_ok_and(|text| text.contains(line));
        assert!(has("host.mtu", "4096", "mtu = 4096"));
        assert!(has("host.congestion", "dcqcn", "congestion = \"dcqcn\""));
        assert!(has("pattern.0.load", "0.7", "load = 0.7"));
        assert!(has("switch.ecn", "{kmin = 1}", "kmin = 1"));
        assert!(has("stop", "5ms", "stop = \"5ms\""));
        assert_eq!(
            set("pattern.1.load", "1").expect_err("one pattern"),
            "pattern.1.load: the scenario has no pattern"
        );
    }
}
