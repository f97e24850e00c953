//! One seed, one run.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::node::RxStyle;
use crate::oracle::Violation;
use crate::wire::WireStats;
use crate::world::World;

/// Damage done on purpose, to see that the oracles notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// A byte of a payload changes on the way, and no checksum catches it.
    PayloadByte,
    /// A completion is reported twice.
    DoubleCompletion,
    /// A completion is not reported.
    LoseCompletion,
    /// A byte changes that nobody was granted.
    StrayByte,
}

/// How to run a seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Print every event.
    pub trace: bool,
    /// How packets reach every engine, instead of what the seed says.
    pub rx: Option<RxStyle>,
    /// A wire without faults, whatever the seed says.
    pub no_faults: bool,
    /// Nothing whose outcome depends on timing: reliable connections only, without mishaps,
    /// shared receive queues and shared counters.
    pub predictable: bool,
    /// Damage to be done.
    pub sabotage: Option<Sabotage>,
}

/// What a run was like.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// What went over the wire.
    pub wire: WireStats,
    /// Events.
    pub events: u64,
    /// Work requests posted.
    pub posted: u64,
    /// What the engines counted, by name, and completions by outcome.
    pub counts: BTreeMap<String, u64>,
    /// Hash of everything that happened.
    pub trace_hash: u64,
    /// Hash of all completions by queue, and of all memory.
    pub result_hash: u64,
}

/// A run that violated an oracle, or panicked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// What was violated.
    pub violation: Violation,
    /// The shape of the run.
    pub shape: String,
    /// The last events.
    pub trace: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, violation, shape, trace } = self;
        writeln!(f, "FEROCE_SEED={seed}")?;
        writeln!(f, "replay: cargo xtask swarm --seed {seed}")?;
        writeln!(f, "{shape}")?;
        write!(f, "{trace}")?;
        writeln!(f, "violated: {violation}")
    }
}

impl core::error::Error for Failure {}

/// Runs one seed.
pub fn run(seed: u64, options: &Options) -> Result<Summary, Box<Failure>> {
    let made = catch_unwind(AssertUnwindSafe(|| World::new(seed, options)));
    let mut world = match made {
        Ok(world) => world,
        Err(panic) => {
            let violation = panicked(&*panic);
            let (shape, trace) = ("while the run was set up".into(), String::new());
            return Err(Box::new(Failure { seed, violation, shape, trace }));
        }
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| world.run()));
    let violation = match outcome {
        Ok(Ok(())) => return Ok(summary(&world)),
        Ok(Err(violation)) => violation,
        Err(panic) => panicked(&*panic),
    };
    let trace = world.trace.tail();
    Err(Box::new(Failure { seed, violation, shape: shape(&world), trace }))
}

fn panicked(panic: &(dyn core::any::Any + Send)) -> Violation {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    Violation::new("panic", text)
}

fn summary(world: &World) -> Summary {
    let mut result_hash = 0u64;
    let mut mix = |value: u64| {
        result_hash = (result_hash ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(31);
    };
    world.ends.iter().flat_map(|end| end.digests).for_each(&mut mix);
    world.nodes.iter().for_each(|node| mix(node.memory.hash()));
    Summary {
        wire: world.wire.stats,
        events: world.events,
        posted: world.ends.iter().map(|end| end.next as u64).sum(),
        counts: counts(world),
        trace_hash: world.trace.hash(),
        result_hash,
    }
}

fn counts(world: &World) -> BTreeMap<String, u64> {
    let mut counts = world.outcomes.clone();
    for node in &world.nodes {
        let engine = &node.engine;
        for (name, n) in engine.counters().iter().chain(engine.drops().iter()) {
            *counts.entry(name.into()).or_insert(0) += n;
        }
    }
    counts
}

fn shape(world: &World) -> String {
    let mut text = format!("{:?}", world.knobs);
    for (i, node) in world.nodes.iter().enumerate() {
        text += &format!("\nnode {i}: {:?} {:?}", node.style, node.engine.config());
    }
    for (i, end) in world.ends.iter().enumerate() {
        let (kind, node, qpn) = (end.kind, end.node, end.qpn.get());
        text +=
            &format!("\nend {i}: {kind:?} on node {node}, qp {qpn:#x}, {} steps", end.steps.len());
        if let Some(mishap) = end.mishap {
            text += &format!(", {mishap:?}");
        }
    }
    text
}
