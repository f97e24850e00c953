//! The event loop of a world.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use feroce_engine::Config as EngineConfig;
use feroce_fabric::{Fabric, FlowKey, Output, Packet, Rate, Time, Topology};
use feroce_train::{Ecn, Instant};
use feroce_wire::Gid;

use super::fault::{Fault, HostId};
use super::host::Host;
use super::outcome::{Failure, Report, WorldError};
use super::port::{Body, Port, PortCarrier};
use super::tasks::Tasks;
use super::world::{Running, Slot, World};
use crate::device::Device;
use crate::virtual_time::VirtualTime;
use crate::{Context, Error};

/// Bytes that a packet of RoCEv2 has on a link before its BTH and behind its padding: preamble 8,
/// Ethernet 14, IPv4 20, UDP 8, ICRC 4, frame check sequence 4, gap 12.
const OVERHEAD: u32 = 70;

/// Rate and delay of the links of a world that is not told any.
const RATE: Rate = Rate::from_gbps(100);
const DELAY_PS: u64 = 1_000_000;

/// Prints the seed of a run that panics.
struct SaysSeed(u64);

impl Drop for SaysSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the world of seed {} panicked; the seed replays it", self.0);
        }
    }
}

impl World {
    /// Runs the programs until those of all hosts have ended; those of servers end then, too.
    pub fn run(mut self) -> Result<Report, WorldError> {
        let _seed = SaysSeed(self.seed);
        let topology = match self.topology.take() {
            Some(topology) => topology,
            None => Topology::star(self.slots.len().max(2), RATE, DELAY_PS),
        };
        let wrong = |why: String| self.failed(Failure::Topology(why));
        if topology.hosts().count() < self.slots.len() {
            return Err(wrong(format!("it has fewer hosts than the {}", self.slots.len())));
        }
        let fabric = Fabric::new(topology, self.fabric_config.clone());
        let mut fabric = fabric.map_err(|e| wrong(e.to_string()))?;
        for host in 0..self.slots.len() {
            self.start(host)?;
        }
        while !self.is_over()? {
            self.step(&mut fabric)?;
        }
        for host in 0..self.slots.len() {
            self.crash(host);
        }
        let elapsed = Duration::from_nanos(self.now() - VirtualTime::START_NS);
        let lost = self.lost + fabric.totals().dropped_all().packets;
        Ok(Report { elapsed, delivered: self.delivered, lost, digest: self.digest })
    }

    fn now(&self) -> u64 {
        self.shared.time.ns()
    }

    fn failed(&self, what: Failure) -> WorldError {
        let at = Duration::from_nanos(self.now() - VirtualTime::START_NS);
        WorldError { seed: self.seed, at, what }
    }

    /// Whether all programs that the run waits for have ended.
    fn is_over(&self) -> Result<bool, WorldError> {
        let ended = self.ended.borrow();
        if let Some((&host, Some(why))) = ended.iter().find(|(_, why)| why.is_some()) {
            let name = self.slots[host].name.to_string();
            return Err(self.failed(Failure::Host(name, why.clone())));
        }
        Ok(self.unfinished(&ended).is_empty())
    }

    /// The hosts that the run waits for.
    fn unfinished(&self, ended: &BTreeMap<usize, Option<String>>) -> Vec<String> {
        let is_left = |(number, slot): &(usize, &Slot)| {
            slot.is_awaited && slot.running.is_some() && !ended.contains_key(number)
        };
        let left = self.slots.iter().enumerate().filter(is_left);
        left.map(|(_, slot)| slot.name.to_string()).collect()
    }

    /// Starts the program of a host, with a new device.
    fn start(&mut self, host: usize) -> Result<(), WorldError> {
        let slot = &self.slots[host];
        let port = Port::default();
        let config = EngineConfig { seed: self.random.u64(1..), ..self.engine_config.clone() };
        let open = || -> Result<_, Error> {
            let device = Device::in_world(&slot.name, slot.gid);
            let carrier = Box::new(PortCarrier::new(&port)?);
            let context = Context::in_world(device, config, carrier)?;
            let driver = Arc::clone(context.driver()?);
            Ok((context, driver))
        };
        let (context, driver) = open()
            .map_err(|e| self.failed(Failure::Device(slot.name.to_string(), e.to_string())))?;
        let tasks = Tasks::default();
        let name = Rc::clone(&slot.name);
        let shared = Rc::clone(&self.shared);
        let program = (slot.program)(Host { name, context, tasks: tasks.clone(), shared });
        let ended = Rc::clone(&self.ended);
        ended.borrow_mut().remove(&host);
        tasks.spawn(async move {
            let why = program.await;
            ended.borrow_mut().insert(host, why);
        });
        self.slots[host].running = Some(Running { port, tasks, driver, deadline: None });
        Ok(())
    }

    /// Ends a host at once.
    fn crash(&mut self, host: usize) {
        let slot = &mut self.slots[host];
        slot.run_at = None;
        if let Some(running) = slot.running.take() {
            running.port.lock().is_dead = true;
            running.tasks.clear();
        }
    }

    /// Does one thing, or lets time pass until there is one.
    fn step(&mut self, fabric: &mut Fabric<Body>) -> Result<(), WorldError> {
        let now = self.now();
        if let Some(fault) = self.take_fault(now) {
            return self.suffer(fault, fabric);
        }
        while let Some(waker) = { self.shared.timers.borrow_mut().take_due(now) } {
            waker.wake();
        }
        let due = self.due_hosts(now);
        if !due.is_empty() {
            // Any of them may be first.
            let host = due[self.random.usize(..due.len())];
            self.run_host(host, fabric);
            return Ok(());
        }
        match fabric.poll(Time::from_ns(now - VirtualTime::START_NS)) {
            Some(Output::Delivered(packet)) => self.deliver(packet),
            Some(Output::Ready(host)) => self.feed(host as usize, fabric),
            None => return self.pass_time(fabric),
        }
        Ok(())
    }

    fn take_fault(&mut self, now_ns: u64) -> Option<Fault> {
        let first = self.faults.first_entry()?;
        (first.key().0 <= now_ns).then(|| first.remove())
    }

    /// The hosts that do something now.
    fn due_hosts(&mut self, now_ns: u64) -> Vec<usize> {
        let mut due = Vec::new();
        for (number, slot) in self.slots.iter_mut().enumerate() {
            let Some(running) = &slot.running else { continue };
            if slot.run_at.is_none() && running.has_work(now_ns) {
                slot.run_at = Some(now_ns + slot.lag_ns);
            }
            if slot.run_at.is_some_and(|at| at <= now_ns) {
                due.push(number);
            }
        }
        due
    }

    /// Lets a host do what it has to do.
    fn run_host(&mut self, host: usize, fabric: &mut Fabric<Body>) {
        let slot = &mut self.slots[host];
        slot.run_at = None;
        let Some(running) = &mut slot.running else { return };
        running.driver.drive_in_world();
        running.tasks.run();
        let deadline = running.driver.drive_in_world();
        running.deadline = deadline.map(Instant::as_nanos);
        self.feed(host, fabric);
    }

    /// Gives the packets of a host to the fabric, as long as its link takes them.
    fn feed(&mut self, host: usize, fabric: &mut Fabric<Body>) {
        let now_ns = self.now();
        let Some(port) =
            self.slots.get(host).and_then(|slot| Some(slot.running.as_ref()?.port.clone()))
        else {
            return;
        };
        while fabric.has_room(host as u32) {
            let Some(body) = port.lock().take_outgoing() else { break };
            let receivers = self.receivers(body.meta.dst.gid);
            let Some((&last, others)) = receivers.split_last() else {
                self.lost += 1;
                continue;
            };
            for &to in others {
                self.pass(host, to, body.clone(), fabric);
            }
            self.pass(host, last, body, fabric);
        }
        if port.lock().has_room_again() {
            self.slots[host].run_at.get_or_insert(now_ns);
        }
    }

    /// Gives a packet from one host to another to the fabric, unless a partition is between them.
    fn pass(&mut self, from: usize, to: usize, body: Body, fabric: &mut Fabric<Body>) {
        let now = Time::from_ns(self.now() - VirtualTime::START_NS);
        if to == from {
            self.arrive(to, body);
        } else if self.apart.contains(&to) != self.apart.contains(&from) {
            self.lost += 1;
        } else {
            fabric.inject(now, from as u32, packet_of(from, to, body));
        }
    }

    /// The hosts that packets to an address go to.
    fn receivers(&self, dst: Gid) -> Vec<usize> {
        let takes = |slot: &Slot| match (&slot.running, dst.is_multicast()) {
            (Some(running), true) => running.port.lock().groups.contains(&dst),
            _ => slot.gid == dst,
        };
        (0..self.slots.len()).filter(|&host| takes(&self.slots[host])).collect()
    }

    fn deliver(&mut self, packet: Packet<Body>) {
        let Packet { to, ecn, mut body, .. } = packet;
        body.meta.ecn = ecn;
        self.arrive(to as usize, body);
    }

    fn arrive(&mut self, host: usize, body: Body) {
        let now = self.now();
        let Some(running) = &self.slots[host].running else {
            self.lost += 1;
            return;
        };
        self.delivered += 1;
        let header = body.bytes.iter().take(12).copied();
        let seen = now.to_le_bytes().into_iter().chain([host as u8]).chain(header);
        for byte in seen {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        running.port.lock().incoming.push_back(body);
    }

    fn suffer(&mut self, fault: Fault, fabric: &mut Fabric<Body>) -> Result<(), WorldError> {
        let now = Time::from_ns(self.now() - VirtualTime::START_NS);
        match fault {
            Fault::Crash(HostId(host)) => self.crash(host),
            Fault::Restart(HostId(host)) => {
                self.crash(host);
                self.start(host)?;
            }
            Fault::Partition(hosts) => {
                self.apart = hosts.into_iter().map(|HostId(host)| host).collect();
            }
            Fault::Heal => self.apart.clear(),
            Fault::Loss(loss) => {
                for link in 0..fabric.topology().links().len() {
                    fabric.set_loss(link, loss);
                }
            }
            Fault::Slow(HostId(host), lag) => {
                self.slots[host].lag_ns = u64::try_from(lag.as_nanos()).unwrap_or(u64::MAX);
            }
            Fault::Link(HostId(host), is_up) => {
                let node = fabric.topology().hosts().nth(host);
                let links = fabric.topology().links().iter();
                let link = node.and_then(|node| links.clone().position(|l| l.ends.contains(&node)));
                if let Some(link) = link {
                    fabric.set_link(now, link, is_up);
                }
                self.feed(host, fabric);
            }
        }
        Ok(())
    }

    /// Nothing happens now: goes on to when something does.
    fn pass_time(&mut self, fabric: &Fabric<Body>) -> Result<(), WorldError> {
        let of_hosts = self.slots.iter().filter_map(|slot| {
            let deadline = slot.running.as_ref()?.deadline;
            slot.run_at.or(deadline)
        });
        let of_fabric =
            fabric.next_at().map(|at| VirtualTime::START_NS + at.as_ps().div_ceil(1000));
        let of_timers = self.shared.timers.borrow().next_at();
        let of_faults = self.faults.first_key_value().map(|(&(at, _), _)| at);
        let next = of_hosts.chain(of_fabric).chain(of_timers).chain(of_faults).min();
        let ended = self.ended.borrow();
        let Some(next) = next else {
            return Err(self.failed(Failure::Stuck(self.unfinished(&ended))));
        };
        if u128::from(next - VirtualTime::START_NS) > self.limit.as_nanos() {
            return Err(self.failed(Failure::Limit(self.unfinished(&ended))));
        }
        self.shared.time.set(next.max(self.now()));
        Ok(())
    }
}

fn packet_of(from: usize, to: usize, body: Body) -> Packet<Body> {
    let ports = u32::from(body.meta.udp_sport) | 4791 << 16;
    Packet {
        to: to as u32,
        len: body.bytes.len() as u32 + OVERHEAD,
        priority: body.meta.traffic_class >> 5,
        ecn: Ecn::Capable,
        key: FlowKey { src: from as u32, dst: to as u32, ports },
        body,
    }
}
