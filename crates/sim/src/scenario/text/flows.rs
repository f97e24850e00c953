//! Flows: one by one, or by a pattern.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use feroce_fabric::{FlowKey, Time, Topology};
use serde::Deserialize;
use toml::Spanned;

use super::values::{Fault, NumberOrWord, Size, Span};
use crate::scenario::Flow;
use crate::scenario::workload::{self, Cdf, Step};

/// `[[flow]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    from: NumberOrWord,
    to: NumberOrWord,
    bytes: Size,
    #[serde(default)]
    start: Span,
    #[serde(default = "priority")]
    priority: u8,
    /// Earlier entries that must have arrived before, counted from 0.
    #[serde(default)]
    after: Vec<usize>,
}

/// `[[pattern]]`: many flows. Which keys it takes depends on the kind.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pattern {
    kind: PatternKind,
    bytes: Option<Size>,
    #[serde(default)]
    start: Span,
    #[serde(default = "priority")]
    priority: u8,
    /// The receiver of an incast.
    to: Option<NumberOrWord>,
    /// By how much a permutation shifts the hosts.
    shift: Option<u32>,
    /// Of what is random; else the seed of the run.
    seed: Option<u64>,
    load: Option<f64>,
    cdf: Option<PathBuf>,
    duration: Option<Span>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PatternKind {
    Incast,
    Permutation,
    RandomPermutation,
    AllToAll,
    AllReduceRing,
    AllReduceButterfly,
    Poisson,
}

const fn priority() -> u8 {
    3
}

/// Hosts by number and by name.
pub(super) struct Hosts {
    names: BTreeMap<String, u32>,
    count: u32,
}

impl Hosts {
    pub(super) fn new(topology: &Topology) -> Self {
        let names = (0..).zip(topology.hosts()).map(|(i, node)| (topology.name(node), i));
        let names: BTreeMap<_, _> = names.collect();
        Self { count: names.len() as u32, names }
    }

    /// The number of a host that is given by its number or its name.
    pub(super) fn find<T>(&self, host: &NumberOrWord, place: &Spanned<T>) -> Result<u32, Fault> {
        let number = match host {
            NumberOrWord::Number(n) => u32::try_from(*n).ok().filter(|&n| n < self.count),
            NumberOrWord::Word(name) => self.names.get(name).copied(),
        };
        let last = self.count.saturating_sub(1);
        number.ok_or_else(|| match host {
            NumberOrWord::Number(n) => Fault::at(place, format!("host {n}; hosts are 0 to {last}")),
            NumberOrWord::Word(name) => Fault::at(place, format!("no host has the name {name}")),
        })
    }
}

/// What flows need to know beside the scenario's text.
pub(super) struct Around<'a> {
    pub(super) topology: &'a Topology,
    pub(super) hosts: &'a Hosts,
    /// Where files are found.
    pub(super) dir: &'a Path,
    pub(super) seed: u64,
}

/// Flows, and which of them wait for which.
#[derive(Default)]
pub(super) struct Flows {
    pub(super) flows: Vec<Flow>,
    pub(super) after: Vec<(usize, usize)>,
}

/// Puts flows together and gives them their ports.
pub(super) fn build(
    entries: &[Spanned<Entry>],
    patterns: &[Spanned<Pattern>],
    around: &Around<'_>,
) -> Result<Flows, Fault> {
    let mut all = Flows::default();
    for (i, place) in entries.iter().enumerate() {
        let entry = place.get_ref();
        let from = around.hosts.find(&entry.from, place)?;
        let to = around.hosts.find(&entry.to, place)?;
        if from == to {
            return Err(Fault::at(place, format!("flow: from host {from} to itself")));
        }
        if let Some(late) = entry.after.iter().find(|&&before| before >= i) {
            let what = format!("flow.after: {late} does not come before this one, which is {i}");
            return Err(Fault::at(place, what));
        }
        let (bytes, start_ps) = (entry.bytes.0, entry.start.0);
        let step = Step { from, to, bytes, start_ps, after: entry.after.clone() };
        all.add(place, entry.priority, 0, step)?;
    }
    for place in patterns {
        let pattern = place.get_ref();
        let base = all.flows.len();
        for mut step in pattern.steps(place, around)? {
            step.start_ps = step.start_ps.saturating_add(pattern.start.0);
            all.add(place, pattern.priority, base, step)?;
        }
    }
    match all.flows.is_empty() {
        true => Err("no flow: add [[flow]] or [[pattern]]".to_owned().into()),
        false => Ok(all),
    }
}

impl Flows {
    /// Adds a flow; `base` is the number of the first flow of its list.
    fn add<T>(
        &mut self,
        place: &Spanned<T>,
        priority: u8,
        base: usize,
        step: Step,
    ) -> Result<(), Fault> {
        if priority > 7 {
            return Err(Fault::at(place, format!("priority {priority} of 0 to 7")));
        }
        let Step { from: src, to: dst, bytes, start_ps, after } = step;
        let number = self.flows.len();
        let key = FlowKey { src, dst, ports: 0x12b7_c000 | number as u32 & 0x3fff };
        let start = Time::from_ps(start_ps);
        self.flows.push(Flow { src, dst, priority, bytes, start, key });
        self.after.extend(after.into_iter().map(|before| (number, base + before)));
        Ok(())
    }
}

impl Pattern {
    fn steps(&self, place: &Spanned<Self>, around: &Around<'_>) -> Result<Vec<Step>, Fault> {
        use PatternKind::{
            AllReduceButterfly, AllReduceRing, AllToAll, Incast, Permutation, Poisson,
            RandomPermutation,
        };
        let fault = |what: &str| Fault::at(place, format!("pattern.{what}"));
        let is_random = matches!(self.kind, Poisson | RandomPermutation);
        let is_poisson = self.kind == Poisson;
        for (key, is_given, fits) in [
            ("to", self.to.is_some(), self.kind == Incast),
            ("shift", self.shift.is_some(), self.kind == Permutation),
            ("seed", self.seed.is_some(), is_random),
            ("bytes", self.bytes.is_some(), !is_poisson),
            ("load", self.load.is_some(), is_poisson),
            ("cdf", self.cdf.is_some(), is_poisson),
            ("duration", self.duration.is_some(), is_poisson),
        ] {
            if is_given && !fits {
                return Err(fault(&format!("{key}: not for this kind")));
            }
        }
        if is_poisson {
            return self.poisson(place, around);
        }
        let hosts = around.hosts.count;
        let bytes = self.bytes.ok_or_else(|| fault("bytes: missing"))?.0;
        Ok(match self.kind {
            Incast => {
                let to = self.to.as_ref().map_or(Ok(0), |to| around.hosts.find(to, place))?;
                workload::incast(hosts, to, bytes)
            }
            Permutation => workload::shift(hosts, self.shift.unwrap_or(1), bytes),
            RandomPermutation => {
                workload::permutation(hosts, self.seed.unwrap_or(around.seed), bytes)
            }
            AllToAll => workload::all_to_all(hosts, bytes),
            AllReduceRing => workload::all_reduce_ring(hosts, bytes),
            AllReduceButterfly => workload::all_reduce_butterfly(hosts, bytes)
                .ok_or_else(|| fault(&format!("kind: {hosts} hosts are not a power of two")))?,
            Poisson => Vec::new(),
        })
    }

    fn poisson(&self, place: &Spanned<Self>, around: &Around<'_>) -> Result<Vec<Step>, Fault> {
        let missing = |key: &str| Fault::at(place, format!("pattern.{key}: missing"));
        let load = self.load.ok_or_else(|| missing("load"))?;
        let duration = self.duration.ok_or_else(|| missing("duration"))?;
        let file = self.cdf.as_ref().ok_or_else(|| missing("cdf"))?;
        if !(load > 0.0 && load <= 1.0) {
            return Err(Fault::at(place, "pattern.load: more than 0, at most 1"));
        }
        let cdf = Cdf::read(&around.dir.join(file));
        let cdf = cdf.map_err(|e| Fault::at(place, e.to_string()))?;
        let seed = self.seed.unwrap_or(around.seed);
        let poisson = workload::Poisson { cdf: &cdf, load, duration_ps: duration.0, seed };
        Ok(poisson.draw(&around.topology.host_rates()))
    }
}
