//! One seed, one run: random programs on the hosts of a kernel, checked by oracles.

mod app;
mod checks;
mod churn;
mod control;
mod draw;
mod finish;
mod flow;
mod knobs;
mod mishap;
mod node;
mod plan;
mod program;
mod reach;
mod shards;
mod step;
mod windows;
mod world;

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::kernel::{Host, RxStyle, Shard};
use crate::mesh::Stats;
use crate::oracle::Violation;
pub use program::program;
use world::World;

/// Damage done on purpose, to see that the oracles notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// A byte of a payload changes on the way, and no checksum catches it.
    PayloadByte,
    /// A completion is reported twice.
    DoubleCompletion,
    /// A completion is not reported.
    LoseCompletion,
    /// A byte changes that no grant covers.
    StrayByte,
    /// The last of several shards does not learn of registrations.
    ForgetReg,
    /// The last of several shards does not learn of deregistrations.
    ForgetDereg,
}

/// How to run a seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Print every event.
    pub trace: bool,
    /// How packets reach every engine, instead of what the seed says.
    pub rx: Option<RxStyle>,
    /// How many shards every node has, 1 to 4, instead of what the seed says.
    pub shards: Option<usize>,
    /// No faults, whatever the seed says.
    pub no_faults: bool,
    /// Nothing whose outcome depends on timing: reliable connections only, without mishaps,
    /// shared receive queues and shared counters.
    pub predictable: bool,
    /// Only what any two adapters can do, so that real ones can run the same program.
    pub portable: bool,
    /// Damage to be done.
    pub sabotage: Option<Sabotage>,
}

/// What a run was like.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// What the mesh carried.
    pub wire: Stats,
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

impl Summary {
    /// One number for the whole run. Two builds that give the same digest for a seed have
    /// simulated the same packets at the same times and have left the same memory.
    pub fn digest(&self) -> u64 {
        (self.trace_hash ^ self.result_hash.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// A run that violated an oracle, or panicked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// How many shards every node had, if not what the seed says.
    pub shards: Option<usize>,
    /// What was violated.
    pub violation: Violation,
    /// The shape of the run.
    pub shape: String,
    /// The last events.
    pub trace: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, shards, violation, shape, trace } = self;
        let shards = shards.map(|count| format!(" --shards {count}")).unwrap_or_default();
        writeln!(f, "FEROCE_SEED={seed}")?;
        writeln!(f, "replay: cargo xtask swarm --seed {seed}{shards}")?;
        writeln!(f, "{shape}")?;
        write!(f, "{trace}")?;
        writeln!(f, "violated: {violation}")
    }
}

impl core::error::Error for Failure {}

/// Every so many seeds a run is compared with others of the same seed.
const COMPARED: u64 = 32;

/// Runs one seed and, now and then, checks that a seed decides everything and that handling a
/// train is handling its packets.
pub fn check(seed: u64, options: &Options) -> Result<Summary, Box<Failure>> {
    let summary = run(seed, options)?;
    if seed.is_multiple_of(COMPARED) && !options.trace {
        if run(seed, options)? != summary {
            return Err(differs(
                seed,
                options.shards,
                "determinism",
                "two runs of this seed differ",
            ));
        }
        compare_trains(seed, options.shards)?;
    }
    Ok(summary)
}

/// Checks that handling a train equals handling its packets one by one.
///
/// If the engine transmits only after all packets of a train, the same packets leave at the same
/// times. If it transmits after each packet, acknowledgements differ, but completions and memory
/// are the same.
pub fn compare_trains(seed: u64, shards: Option<usize>) -> Result<(), Box<Failure>> {
    let with = |rx, predictable| {
        let options = Options { rx: Some(rx), predictable, shards, ..Options::default() };
        run(seed, &options)
    };
    // Timers that were set between the packets of a train may expire in vain: the number of events
    // differs then, and nothing else does.
    let visible = |summary| Summary { events: 0, ..summary };
    if visible(with(RxStyle::Train, false)?) != visible(with(RxStyle::Packets, false)?) {
        let what = "a train is answered differently from its packets";
        return Err(differs(seed, shards, "trains", what));
    }
    let (train, packets) = (with(RxStyle::Train, true)?, with(RxStyle::EachPacket, true)?);
    if train.result_hash != packets.result_hash {
        let what = "trains and packets come to different results";
        return Err(differs(seed, shards, "trains", what));
    }
    Ok(())
}

fn differs(seed: u64, shards: Option<usize>, oracle: &'static str, what: &str) -> Box<Failure> {
    let violation = Violation::new(oracle, what);
    Box::new(Failure { seed, shards, violation, shape: String::new(), trace: String::new() })
}

/// Runs one seed.
pub fn run(seed: u64, options: &Options) -> Result<Summary, Box<Failure>> {
    let shards = options.shards;
    let made = catch_unwind(AssertUnwindSafe(|| World::new(seed, options)));
    let mut world = match made {
        Ok(world) => world,
        Err(panic) => {
            let violation = panicked(&*panic);
            let (shape, trace) = ("while the run was set up".into(), String::new());
            return Err(Box::new(Failure { seed, shards, violation, shape, trace }));
        }
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| world.run()));
    let violation = match outcome {
        Ok(Ok(())) => return Ok(summary(&world)),
        Ok(Err(violation)) => violation,
        Err(panic) => panicked(&*panic),
    };
    let trace = world.kernel.trace.tail();
    Err(Box::new(Failure { seed, shards, violation, shape: shape(&world), trace }))
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
        wire: world.kernel.fabric.stats,
        events: world.kernel.events(),
        posted: world.ends.iter().map(|end| end.next as u64).sum(),
        counts: counts(world),
        trace_hash: world.kernel.trace.hash(),
        result_hash,
    }
}

fn counts(world: &World) -> BTreeMap<String, u64> {
    let mut counts = world.outcomes.clone();
    let passed_on: u64 = world.kernel.hosts.iter().map(Host::passed_on).sum();
    if passed_on > 0 {
        counts.insert("passed_on".into(), passed_on);
    }
    for Shard { engine, .. } in world.kernel.hosts.iter().flat_map(|host| &host.shards) {
        for (name, n) in engine.counters().iter().chain(engine.drops().iter()) {
            *counts.entry(name.into()).or_insert(0) += n;
        }
    }
    counts
}

fn shape(world: &World) -> String {
    let mut text = format!("{:?}", world.knobs);
    for (i, (host, node)) in world.kernel.hosts.iter().zip(&world.nodes).enumerate() {
        let (style, habits, config) = (host.style, node.habits, host.shards[0].engine.config());
        text += &format!("\nnode {i}: {style:?} {habits:?} {config:?}");
    }
    for (i, end) in world.ends.iter().enumerate() {
        let (kind, node, shard, qpn) = (end.kind, end.node, end.shard, end.qpn.get());
        let steps = end.steps.len();
        text += &format!(
            "\nend {i}: {kind:?} on node {node}, shard {shard}, qp {qpn:#x}, {steps} steps"
        );
        if let Some(mishap) = end.mishap {
            text += &format!(", {mishap:?}");
        }
    }
    text
}
