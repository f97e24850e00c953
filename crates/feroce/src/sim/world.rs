//! Hosts, the network between them, and what will go wrong.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use feroce_engine::Config as EngineConfig;
use feroce_fabric::{Config as FabricConfig, Topology};
use feroce_wire::Gid;

use super::fault::{Fault, HostId};
use super::host::{Host, Shared, Timers};
use super::outcome::{Failure, Outcome, WorldError};
use super::port::Port;
use super::tasks::Tasks;
use crate::driver::Driver;
use crate::virtual_time::{Inside, VirtualTime};

/// When a world that still has something to do is given up, unless it is told another time.
const LIMIT: Duration = Duration::from_secs(3600);

type Program = Rc<dyn Fn(Host) -> Pin<Box<dyn Future<Output = Option<String>>>>>;

/// A host, whether it runs or not.
pub(super) struct Slot {
    pub(super) name: Rc<str>,
    pub(super) gid: Gid,
    pub(super) program: Program,
    /// The run lasts until its program has ended.
    pub(super) is_awaited: bool,
    pub(super) running: Option<Running>,
    /// How long it takes to notice anything.
    pub(super) lag_ns: u64,
    /// When it does next what it has to do.
    pub(super) run_at: Option<u64>,
}

/// A host that runs.
pub(super) struct Running {
    pub(super) port: Port,
    pub(super) tasks: Tasks,
    pub(super) driver: Arc<Driver>,
    /// When its adapter has something to do, if nothing arrives before.
    pub(super) deadline: Option<u64>,
}

impl Running {
    pub(super) fn has_work(&self, now_ns: u64) -> bool {
        self.tasks.is_ready()
            || self.deadline.is_some_and(|at| at <= now_ns)
            || !self.port.lock().incoming.is_empty()
    }
}

/// How programs ended, noted by the tasks that ran them.
type Ended = Rc<RefCell<BTreeMap<usize, Option<String>>>>;

/// A world: hosts, the network between them, and what will go wrong.
pub struct World {
    pub(super) seed: u64,
    // Before `inside`: devices end while their world still exists.
    pub(super) slots: Vec<Slot>,
    pub(super) shared: Rc<Shared>,
    pub(super) ended: Ended,
    pub(super) topology: Option<Topology>,
    pub(super) fabric_config: FabricConfig,
    pub(super) engine_config: EngineConfig,
    pub(super) faults: BTreeMap<(u64, usize), Fault>,
    /// Hosts on one side of a partition.
    pub(super) apart: BTreeSet<usize>,
    pub(super) random: fastrand::Rng,
    pub(super) limit: Duration,
    pub(super) delivered: u64,
    pub(super) lost: u64,
    pub(super) digest: u64,
    _inside: Inside,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("seed", &self.seed).finish_non_exhaustive()
    }
}

impl World {
    /// An empty world. It has one switch, to which each host has a link of 100 Gb/s and one
    /// microsecond. A thread is inside one world at a time.
    pub fn new(seed: u64) -> Result<Self, WorldError> {
        let nested = WorldError { seed, at: Duration::ZERO, what: Failure::Nested };
        let (inside, time) = Inside::enter(seed).ok_or(nested)?;
        let (timers, addresses) = (RefCell::new(Timers::default()), RefCell::default());
        Ok(Self {
            seed,
            slots: Vec::new(),
            shared: Rc::new(Shared { time, timers, addresses }),
            ended: Ended::default(),
            topology: None,
            fabric_config: FabricConfig { seed, ..FabricConfig::default() },
            engine_config: EngineConfig::default(),
            faults: BTreeMap::new(),
            apart: BTreeSet::new(),
            random: fastrand::Rng::with_seed(seed ^ 0x5eed),
            limit: LIMIT,
            delivered: 0,
            lost: 0,
            digest: 0xcbf2_9ce4_8422_2325,
            _inside: inside,
        })
    }

    /// The network; its hosts are those of the world, in the order in which they are added.
    #[must_use]
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = Some(topology);
        self
    }

    /// How switches behave. The seed stays that of the world.
    #[must_use]
    pub fn fabric(mut self, config: FabricConfig) -> Self {
        self.fabric_config = FabricConfig { seed: self.seed, ..config };
        self
    }

    /// How adapters behave. The seed stays that of the world.
    #[must_use]
    pub fn engine(mut self, config: EngineConfig) -> Self {
        self.engine_config = config;
        self
    }

    /// The run fails if it takes longer than this, in the time of the world.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Adds a host whose program the run waits for.
    pub fn host<F, O>(&mut self, name: &str, program: impl Fn(Host) -> F + 'static) -> HostId
    where
        F: Future<Output = O> + 'static,
        O: Outcome,
    {
        self.add(name, program, true)
    }

    /// Adds a host whose program may go on for ever: the run ends without it.
    pub fn server<F, O>(&mut self, name: &str, program: impl Fn(Host) -> F + 'static) -> HostId
    where
        F: Future<Output = O> + 'static,
        O: Outcome,
    {
        self.add(name, program, false)
    }

    fn add<F, O>(
        &mut self,
        name: &str,
        program: impl Fn(Host) -> F + 'static,
        is_awaited: bool,
    ) -> HostId
    where
        F: Future<Output = O> + 'static,
        O: Outcome,
    {
        let number = self.slots.len();
        let [_, _, high, low] = (number as u32 + 1).to_be_bytes();
        let ip = Ipv4Addr::new(10, 77, high, low);
        self.shared.addresses.borrow_mut().insert(name.to_owned(), IpAddr::from(ip));
        self.slots.push(Slot {
            name: name.into(),
            gid: Gid::from_ipv4(ip.octets()),
            program: Rc::new(move |host| {
                let program = program(host);
                Box::pin(async move { program.await.failure() })
            }),
            is_awaited,
            running: None,
            lag_ns: 0,
            run_at: None,
        });
        HostId(number)
    }

    /// Something happens at this time. Of several at the same time, the one added first is first.
    pub fn at(&mut self, time: Duration, fault: Fault) {
        let at_ns = VirtualTime::START_NS + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX >> 1);
        self.faults.insert((at_ns, self.faults.len()), fault);
    }

    /// A random number below `bound`, which follows from the seed: for the times and kinds of
    /// faults.
    ///
    /// # Panics
    /// If `bound` is zero.
    pub fn random(&mut self, bound: u64) -> u64 {
        self.random.u64(..bound)
    }
}
