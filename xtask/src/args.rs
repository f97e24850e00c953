//! A very small reader of command lines: flags, options with a value, positional words.

use core::str::FromStr;

use crate::{Failure, Outcome};

/// The words of a command line that were not read yet.
#[derive(Debug)]
pub(crate) struct Args {
    words: Vec<String>,
}

impl Args {
    pub(crate) fn new(words: Vec<String>) -> Self {
        Self { words }
    }

    /// Takes `name` away; says whether it was there.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let before = self.words.len();
        self.words.retain(|word| word != name);
        self.words.len() != before
    }

    /// Takes `name VALUE` or `name=VALUE` away.
    pub(crate) fn value<T: FromStr>(&mut self, name: &str) -> Outcome<Option<T>> {
        let is_ours = |word: &String| {
            word.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        };
        let Some(at) = self.words.iter().position(is_ours) else {
            return Ok(None);
        };
        let word = self.words.remove(at);
        let value = match word.split_once('=') {
            Some((_, value)) => value.to_owned(),
            None if at < self.words.len() => self.words.remove(at),
            None => return Err(Failure::Usage(format!("`{name}` needs a value"))),
        };
        match value.parse() {
            Ok(parsed) => Ok(Some(parsed)),
            Err(_) => Err(Failure::Usage(format!("`{name} {value}`: not a valid value"))),
        }
    }

    /// Takes the first remaining word away, which must not look like an option.
    pub(crate) fn positional(&mut self) -> Outcome<Option<String>> {
        match self.words.first() {
            None => Ok(None),
            Some(word) if word.starts_with('-') => Err(unexpected(word)),
            Some(_) => Ok(Some(self.words.remove(0))),
        }
    }

    /// Ends the reading: a word that was not read is an error.
    pub(crate) fn finish(self) -> Outcome {
        match self.words.first() {
            None => Ok(()),
            Some(word) => Err(unexpected(word)),
        }
    }
}

fn unexpected(word: &str) -> Failure {
    Failure::Usage(format!("unexpected `{word}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Args {
        Args::new(line.split_whitespace().map(str::to_owned).collect())
    }

    #[test]
    fn takes_options_in_any_order() {
        let mut args = args("target --seconds 5 --quick --seed=7");
        assert!(args.flag("--quick"));
        assert!(!args.flag("--quick"));
        assert_eq!(args.value::<u64>("--seed"), Ok(Some(7)));
        assert_eq!(args.value::<u64>("--seconds"), Ok(Some(5)));
        assert_eq!(args.value::<u64>("--jobs"), Ok(None));
        assert_eq!(args.positional(), Ok(Some("target".to_owned())));
        assert_eq!(args.finish(), Ok(()));
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        assert!(args("--what").finish().is_err());
        assert!(args("--seed").value::<u64>("--seed").is_err());
        assert!(args("--seed x").value::<u64>("--seed").is_err());
        assert!(args("--seedling 1").value::<u64>("--seed").is_ok_and(|seed| seed.is_none()));
    }
}
