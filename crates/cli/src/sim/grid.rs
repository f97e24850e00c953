//! The points of a sweep: every combination of settings, with every seed.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// Most points of a sweep.
const MOST: usize = 1 << 20;

/// Seeds, and the values of settings.
#[derive(Debug)]
pub(super) struct Grid {
    /// First and last seed.
    pub(super) seeds: (u64, u64),
    /// Settings, and the values that each takes.
    pub(super) axes: Vec<(String, Vec<String>)>,
}

/// One run of a sweep.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Point {
    /// Its number among all points of the sweep.
    pub(super) index: usize,
    /// Settings and their values.
    pub(super) settings: Vec<(String, String)>,
    /// The seed.
    pub(super) seed: u64,
}

/// What a sweep is, so that parts of different sweeps are not taken for one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Header {
    /// The file of the scenario, without its directory.
    scenario: String,
    axes: Vec<(String, Vec<String>)>,
    seeds: (u64, u64),
    /// How many points all parts have together.
    pub(super) points: usize,
}

impl Header {
    pub(super) fn new(scenario: &Path, grid: &Grid) -> Self {
        let name = scenario.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (axes, points) = (grid.axes.clone(), grid.len());
        Self { scenario: name, axes, seeds: grid.seeds, points }
    }
}

impl Header {
    /// The place of a point's combination of settings among all combinations.
    pub(super) fn group_of(&self, index: usize) -> usize {
        index / ((self.seeds.1 - self.seeds.0) as usize + 1)
    }

    /// The settings.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.axes.iter().map(|(key, _)| key.as_str())
    }
}

impl Grid {
    pub(super) fn parse(seeds: &str, sets: &[String]) -> Result<Self, String> {
        let (first, last) = seeds.split_once('-').unwrap_or(("1", seeds));
        let seeds = match (first.parse::<u64>(), last.parse::<u64>()) {
            (Ok(first), Ok(last)) if first <= last => (first, last),
            _ => return Err(format!("--seeds: {seeds:?} is not like 10 or 11-20")),
        };
        let axis = |set: &String| {
            let (key, values) = set.split_once('=').filter(|(key, _)| !key.trim().is_empty())?;
            let values = split(values)?;
            Some((key.trim().to_owned(), values))
        };
        let mut axes = Vec::new();
        for set in sets {
            axes.push(axis(set).ok_or_else(|| format!("--set: {set:?} is not KEY=VALUE,..."))?);
        }
        let grid = Self { seeds, axes };
        match grid.len() > MOST {
            true => Err(format!("more than {MOST} points")),
            false => Ok(grid),
        }
    }

    /// How many points there are.
    pub(super) fn len(&self) -> usize {
        let seeds = usize::try_from(self.seeds.1 - self.seeds.0).unwrap_or(MOST).saturating_add(1);
        self.axes.iter().fold(seeds, |n, (_, values)| n.saturating_mul(values.len()))
    }

    /// A point: seeds change fastest, then the values of the last setting.
    pub(super) fn point(&self, index: usize) -> Point {
        let seeds = (self.seeds.1 - self.seeds.0 + 1) as usize;
        let mut rest = index / seeds;
        let mut settings: Vec<_> = self
            .axes
            .iter()
            .rev()
            .map(|(key, values)| {
                let value = values[rest % values.len()].clone();
                rest /= values.len();
                (key.clone(), value)
            })
            .collect();
        settings.reverse();
        Point { index, settings, seed: self.seeds.0 + (index % seeds) as u64 }
    }
}

/// Splits at the commas that are not in braces, brackets or quotes. `None` if they do not close, or
/// a value is empty.
fn split(values: &str) -> Option<Vec<String>> {
    let (mut parts, mut depth, mut is_quoted) = (vec![String::new()], 0u32, false);
    for c in values.chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            '{' | '[' if !is_quoted => depth += 1,
            '}' | ']' if !is_quoted => depth = depth.checked_sub(1)?,
            ',' if !is_quoted && depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut()?.push(c);
    }
    let parts: Vec<String> = parts.iter().map(|part| part.trim().to_owned()).collect();
    let is_whole = depth == 0 && !is_quoted && parts.iter().all(|part| !part.is_empty());
    is_whole.then_some(parts)
}

/// A part of a sweep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shard {
    index: usize,
    of: usize,
}

impl Shard {
    pub(super) fn parse(word: &Option<String>) -> Result<Self, String> {
        let Some(word) = word else { return Ok(Self { index: 0, of: 1 }) };
        let parts =
            word.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match parts {
            Some((index, of)) if index < of => Ok(Self { index, of }),
            _ => Err(format!("--shard: {word:?} is not I/N with I from 0 to N - 1, such as 3/64")),
        }
    }

    /// Neighbours go to different parts, so that parts take about as long as each other.
    pub(super) fn has(self, point: usize) -> bool {
        point % self.of == self.index
    }

    pub(super) fn is_all(self) -> bool {
        self.of == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_split_outside_of_brackets_and_quotes() {
        let parts = |values| split(values).unwrap_or_default();
        assert_eq!(parts("none,dcqcn"), ["none", "dcqcn"]);
        assert_eq!(parts("{a=1,b=2},\n  \"x,y\""), ["{a=1,b=2}", "\"x,y\""]);
        assert_eq!(split("{a=1"), None);
        assert_eq!(split("a,,b"), None);
    }

    #[test]
    fn shards_have_every_point_once() {
        let sets = ["a=1,2,3".to_owned(), "b=x,y".to_owned()];
        let grid = Grid::parse("11-14", &sets).expect("a grid");
        assert_eq!(grid.len(), 24);
        let word = |i: usize| Shard::parse(&Some(format!("{i}/5"))).expect("a shard");
        let mut all: Vec<usize> =
            (0..5).flat_map(|i| (0..24).filter(move |p| word(i).has(*p))).collect();
        all.sort_unstable();
        assert_eq!(all, (0..24).collect::<Vec<_>>());
        let last = grid.point(23);
        assert_eq!((last.seed, last.settings[0].1.as_str()), (14, "3"));
        assert_eq!(grid.point(4).settings[1], ("b".to_owned(), "y".to_owned()));
    }
}
