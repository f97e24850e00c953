//! Moves packets between the processes of hosts and the fabric. It reads no clock and no socket.

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::rc::Rc;

use anyhow::ensure;
use feroce_fabric::{
    Config, Ecn, Fabric, MULTICAST, NodeId, Passed, PriorityMap, Rate, Time, Topology,
};
use feroce_link::port::{Answer, CREDIT_LEN, MAX_MESSAGE, RECORD_LEN, Request, Welcome, wire_len};
use feroce_local::Target;
use feroce_wire::Gid;

use super::groups::{ConnId, Groups, Member};
use super::pace::Pace;
use super::packet::{Arriving, Body, Run};

/// How long a host's link is busy with what may wait for it: as long as a process may take to be
/// told that there is room again, on a machine that is not overloaded.
const CREDIT_NS: u64 = 1_000_000;

/// Bytes that may wait at least: two of the longest packets, so that the link does not run dry.
const CREDIT_LEAST: u64 = 2 * 4400;

/// And at most, on fast links.
const CREDIT_MOST: u64 = 1 << 20;

/// How long the link is busy with a train, if that is longer than a packet: so queue pairs take
/// turns.
const TRAIN_NS: u64 = 100_000;

/// Most bytes that wait for a process that does not read them; more are dropped, as by a socket
/// that is full.
const MAX_WAITING: usize = 8 << 20;

/// A host.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) node: NodeId,
    pub(super) address: Ipv4Addr,
    rate: Rate,
    /// The processes, by their numbers.
    pub(super) slots: BTreeMap<u8, ConnId>,
    /// Which process receives the requests for a service, and the connection that says so.
    pub(super) services: BTreeMap<u64, (u8, ConnId)>,
    /// Whose packets wait for the link, first in, first out.
    waiting: VecDeque<(ConnId, u32)>,
    waiting_bytes: u64,
}

/// A process.
#[derive(Debug)]
struct Process {
    host: usize,
    /// Bytes that it may have waiting.
    limit: u32,
    /// Bytes that have left since it was told so last.
    credit: u32,
    arriving: VecDeque<Arriving>,
    arriving_bytes: usize,
}

/// Packets that no switch dropped.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lost {
    /// To addresses that no host has.
    pub(super) no_host: u64,
    /// To queue pairs or services that no process of the host has.
    pub(super) no_process: u64,
    /// To processes that do not read.
    pub(super) not_read: u64,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Pump {
    pub(super) fabric: Fabric<Body>,
    pub(super) hosts: Vec<Host>,
    by_address: BTreeMap<Gid, usize>,
    processes: BTreeMap<ConnId, Process>,
    pub(super) groups: Groups,
    priorities: PriorityMap,
    pub(super) marks: bool,
    pub(super) lost: Lost,
}

impl Pump {
    /// Hosts get the addresses `prefix`.0.1 and so on.
    pub(super) fn new(topology: Topology, config: Config, prefix: [u8; 2]) -> anyhow::Result<Self> {
        ensure!(
            config.infiniband.is_none(),
            "programs send RoCEv2, which InfiniBand switches do not forward: choose Ethernet"
        );
        let (marks, priorities) = (config.ecn != Ecn::Off, config.priorities);
        let config = Config { announce: true, log_pauses: false, ..config };
        let fabric = Fabric::new(topology, config)?;
        let topology = fabric.topology();
        let host = |(i, node): (usize, NodeId)| Host {
            name: topology.name(node),
            node,
            address: address(prefix, i),
            rate: fabric.host_rate(i as u32),
            slots: BTreeMap::new(),
            services: BTreeMap::new(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
        };
        let hosts: Vec<Host> = topology.hosts().enumerate().map(host).collect();
        let gid = |host: &Host| Gid::from_ipv4(host.address.octets());
        let by_address = hosts.iter().enumerate().map(|(i, host)| (gid(host), i)).collect();
        let processes = BTreeMap::new();
        let (groups, lost) = (Groups::default(), Lost::default());
        Ok(Self { fabric, hosts, by_address, processes, groups, priorities, marks, lost })
    }

    /// A program wants something on a new connection.
    pub(super) fn open(&mut self, conn: ConnId, request: Request) -> Answer {
        let (Request::Port(address)
        | Request::Claim { address, .. }
        | Request::Join { address, .. }) = request;
        let Some(&number) = self.by_address.get(&address) else {
            return Answer::Refused(format!("no host has the address {address}"));
        };
        let host = &mut self.hosts[number];
        match request {
            Request::Port(_) => {
                let Some(slot) = (1..=u8::MAX).find(|slot| !host.slots.contains_key(slot)) else {
                    let name = &host.name;
                    return Answer::Refused(format!("host {name} has 255 processes already"));
                };
                host.slots.insert(slot, conn);
                let limit = credit(host.rate);
                let train = host.rate.bytes_in(TRAIN_NS * 1000) as u32;
                let (arriving, arriving_bytes) = (VecDeque::new(), 0);
                let rate_bps = host.rate.bps();
                let process = Process { host: number, limit, credit: 0, arriving, arriving_bytes };
                self.processes.insert(conn, process);
                Answer::Welcome(Welcome { slot, marks: self.marks, rate_bps, credit: limit, train })
            }
            Request::Claim { slot, service, .. } => {
                if host.services.contains_key(&service) {
                    return Answer::InUse;
                }
                host.services.insert(service, (slot, conn));
                Answer::Welcome(Welcome { slot, ..Welcome::default() })
            }
            Request::Join { group, .. } if !group.is_multicast() => {
                Answer::Refused(format!("{group} is not the address of a multicast group"))
            }
            Request::Join { slot, group, .. } => {
                let member = Member { host: number, slot, group };
                match self.groups.join(conn, member) {
                    Some(joined) => {
                        self.fabric.join_multicast(joined, number as u32);
                        Answer::Welcome(Welcome { slot, ..Welcome::default() })
                    }
                    None => Answer::Refused("the fabric has too many multicast groups".to_owned()),
                }
            }
        }
    }

    /// A connection has ended. What its process has sent goes on.
    pub(super) fn close(&mut self, conn: ConnId) {
        self.processes.remove(&conn);
        if let Some((group, host)) = self.groups.leave(conn) {
            self.fabric.leave_multicast(group, host as u32);
        }
        for host in &mut self.hosts {
            host.slots.retain(|_, other| *other != conn);
            host.services.retain(|_, (_, other)| *other != conn);
        }
    }

    /// A process sends packets, at `at`, which is `at_ns` of the system's clock, or at once if that
    /// is past.
    pub(super) fn send(&mut self, conn: ConnId, at: Time, at_ns: u64, run: &Rc<Run>) {
        let Some(process) = self.processes.get_mut(&conn) else { return };
        let number = process.host;
        let dst = run.meta.dst.gid;
        let to = match dst.is_multicast() {
            true => Some(MULTICAST + self.groups.number(dst)),
            false => self.by_address.get(&dst).map(|&host| host as u32),
        };
        let Some(to) = to else {
            self.lost.no_host += run.count() as u64;
            let each = u64::from(wire_len(&run.meta, 0));
            let bytes = run.packets(0, run.count()).len() as u64 + run.count() as u64 * each;
            process.credit = process.credit.saturating_add(bytes as u32);
            return;
        };
        let now = at.max(self.fabric.now());
        for index in 0..run.count() {
            let packet = Body { run: Rc::clone(run), index }.packet(to, &self.priorities);
            let host = &mut self.hosts[number];
            host.waiting.push_back((conn, packet.len));
            host.waiting_bytes += u64::from(packet.len);
            self.fabric.inject(now, number as u32, packet);
        }
        if dst.is_multicast() {
            self.loop_back(conn, number, run, at_ns);
        }
    }

    /// An adapter gives packets to a group to the other processes of its host, too; a process
    /// gives them to its own queue pairs by itself. They do not pass the switch.
    fn loop_back(&mut self, from: ConnId, host: usize, run: &Rc<Run>, at_ns: u64) {
        for to in self.members(host, run.meta.dst.gid).into_iter().filter(|to| *to != from) {
            for index in 0..run.count() {
                let packet =
                    Body { run: Rc::clone(run), index }.packet(host as u32, &self.priorities);
                self.arrive_at(to, Arriving::new(packet, at_ns));
            }
        }
    }

    /// The processes of a host that are members of a group.
    fn members(&self, host: usize, group: Gid) -> Vec<ConnId> {
        let slots = &self.hosts[host].slots;
        self.groups.slots(host, group).filter_map(|slot| slots.get(&slot).copied()).collect()
    }

    /// Advances the fabric to `until`.
    pub(super) fn advance(&mut self, until: Time, pace: &Pace) {
        while self.fabric.poll(until).is_some() {}
        while let Some((at, packet)) = self.fabric.take_arriving() {
            self.arrive(packet.to as usize, Arriving::new(packet, pace.system(at)));
        }
    }

    /// Hands a packet to the processes of a host that it is for.
    fn arrive(&mut self, host: usize, packet: Arriving) {
        let group = packet.record().meta.dst.gid;
        if group.is_multicast() {
            for conn in self.members(host, group) {
                self.arrive_at(conn, packet.clone());
            }
            return;
        }
        let Host { slots, services, .. } = &self.hosts[host];
        let slot = match feroce_local::target_of(packet.record().bytes) {
            Target::Slot(slot) => slot.checked_add(1),
            Target::Service(service) => services.get(&service).map(|(slot, _)| *slot),
            Target::All => {
                let all: Vec<ConnId> = slots.values().copied().collect();
                for conn in all {
                    self.arrive_at(conn, packet.clone());
                }
                return;
            }
            Target::Any => None,
        };
        // A process that has no listener answers that, so any will do.
        let any = || slots.values().next();
        match slot.map_or_else(any, |slot| slots.get(&slot)).copied() {
            Some(conn) => self.arrive_at(conn, packet),
            None => self.lost.no_process += 1,
        }
    }

    fn arrive_at(&mut self, conn: ConnId, packet: Arriving) {
        let Some(process) = self.processes.get_mut(&conn) else { return };
        let len = packet.record().bytes.len() + RECORD_LEN;
        if process.arriving_bytes + len > MAX_WAITING {
            self.lost.not_read += 1;
            return;
        }
        process.arriving_bytes += len;
        if !process.arriving.back_mut().is_some_and(|last| last.join(&packet)) {
            process.arriving.push_back(packet);
        }
    }

    /// Gives credit back for what has left the hosts.
    pub(super) fn settle(&mut self) {
        for host in self.hosts.iter_mut().filter(|host| !host.waiting.is_empty()) {
            let queued = self.fabric.queued(host.node, 0).unwrap_or(0);
            while let Some(&(conn, len)) = host.waiting.front()
                && host.waiting_bytes - u64::from(len) >= queued
            {
                host.waiting.pop_front();
                host.waiting_bytes -= u64::from(len);
                if let Some(process) = self.processes.get_mut(&conn) {
                    // The process has paid for the packet without VLAN tag.
                    process.credit += len - self.priorities.tag_len();
                }
            }
        }
    }

    /// The connections that have something to be told. Credit alone is told in portions.
    pub(super) fn ready(&self) -> Vec<ConnId> {
        let has_news = |(_, p): &(_, &Process)| p.credit >= p.limit / 4 || !p.arriving.is_empty();
        self.processes.iter().filter(has_news).map(|(conn, _)| *conn).collect()
    }

    /// Writes the next message for a connection to `out`. Returns how many runs of packets are in
    /// it; [`Pump::sent`] follows when it was sent.
    pub(super) fn write(&self, conn: ConnId, out: &mut Vec<u8>) -> usize {
        out.clear();
        let Some(process) = self.processes.get(&conn) else { return 0 };
        out.extend(process.credit.to_ne_bytes());
        let mut count = 0;
        for packets in &process.arriving {
            let record = packets.record();
            if out.len() + RECORD_LEN + record.bytes.len() > MAX_MESSAGE {
                break;
            }
            let at = out.len();
            out.resize(at + RECORD_LEN, 0);
            record.emit_head(&mut out[at..]);
            out.extend_from_slice(record.bytes);
            count += 1;
        }
        count
    }

    /// The last message for a connection, with so many runs of packets, was sent. Returns whether
    /// there are more.
    pub(super) fn sent(&mut self, conn: ConnId, count: usize) -> bool {
        let Some(process) = self.processes.get_mut(&conn) else { return false };
        process.credit = 0;
        for packets in process.arriving.drain(..count) {
            let each = RECORD_LEN;
            let run = packets.record().bytes.len();
            let packets = run.div_ceil(packets.record().stride.max(1));
            process.arriving_bytes -= run + packets * each;
        }
        !process.arriving.is_empty()
    }

    /// Packets that have passed ports that are watched.
    pub(super) fn passed(&mut self) -> Vec<Passed<Body>> {
        self.fabric.take_passed()
    }
}

/// Bytes that may wait for the link of a host.
fn credit(rate: Rate) -> u32 {
    rate.bytes_in(CREDIT_NS * 1000).clamp(CREDIT_LEAST, CREDIT_MOST) as u32
}

/// The address of a host: addresses that end in 0 or 255 look like those of networks.
pub(super) fn address([a, b]: [u8; 2], host: usize) -> Ipv4Addr {
    Ipv4Addr::new(a, b, (host / 254) as u8, (host % 254 + 1) as u8)
}

const _: () = assert!(CREDIT_LEN == size_of::<u32>(), "credit is written as 32 bits");
