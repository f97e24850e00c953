//! Files of other simulators, line by line, and what is wrong with them.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// What is wrong with an input.
#[derive(Debug)]
pub struct ReadError {
    file: PathBuf,
    line: usize,
    what: String,
}

impl ReadError {
    /// In a line of a file; 0 if it is no line.
    pub(super) fn new(file: &Path, line: usize, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if self.line > 0 {
            write!(f, "{}:", self.line)?;
        }
        write!(f, " {}", self.what)
    }
}

impl std::error::Error for ReadError {}

/// Reads a whole file.
pub(super) fn read(file: &Path) -> Result<String, ReadError> {
    fs::read_to_string(file).map_err(|e| ReadError::new(file, 0, e.to_string()))
}

/// The lines of a file that have words.
pub(super) struct Lines {
    file: PathBuf,
    lines: std::vec::IntoIter<(usize, Vec<String>)>,
    line: usize,
}

impl Lines {
    pub(super) fn open(file: &Path) -> Result<Self, ReadError> {
        let text = read(file)?;
        let words = |line: &str| -> Vec<String> {
            let line = line.split('#').next().unwrap_or_default();
            line.split_whitespace().map(str::to_owned).collect()
        };
        let lines = (1..).zip(text.lines().map(words)).filter(|(_, words)| !words.is_empty());
        let lines: Vec<_> = lines.collect();
        Ok(Self { file: file.to_owned(), lines: lines.into_iter(), line: 0 })
    }

    /// The words of the next line.
    pub(super) fn next_words(&mut self) -> Option<Vec<String>> {
        let (line, words) = self.lines.next()?;
        self.line = line;
        Some(words)
    }

    /// The number of the line.
    pub(super) fn line(&self) -> usize {
        self.line
    }

    /// What is wrong with it.
    pub(super) fn error(&self, what: impl Into<String>) -> ReadError {
        self.error_at(self.line, what)
    }

    /// What is wrong with another one.
    pub(super) fn error_at(&self, line: usize, what: impl Into<String>) -> ReadError {
        ReadError::new(&self.file, line, what)
    }
}
