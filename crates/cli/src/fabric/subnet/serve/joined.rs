//! The process of a fabric as a part of one: what it and the processes of other parts do to each
//! other's ends of the links between them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use feroce_link::port::Record;
use feroce_subnet::{PortRef, TooLong, TrunkMessage, take_frame};
use nix::sys::epoll::{EpollEvent, EpollFlags};

use super::super::meeting::{Meeting, Met};
use super::super::report::{PartStatus, SubnetStatus};
use super::super::trunks::Trunk;
use super::{Instant, Net, PartArgs, Reply, Server, TRUNK, now};

/// The parts of a fabric, as one of them sees them.
#[derive(Debug, Default)]
pub(super) struct Parts {
    names: Vec<String>,
    own: usize,
    meeting: Option<Meeting>,
    trunks: BTreeMap<usize, Trunk>,
    /// Attempts that have failed, by whom they were with.
    failures: BTreeMap<String, String>,
}

/// Failures that are remembered: others may connect from anywhere.
const MAX_FAILURES: usize = 16;

impl Parts {
    pub(super) fn new(net: &Net, args: &PartArgs, meeting: Meeting) -> Self {
        let (names, own) = (net.parts.clone(), args.part);
        Self { names, own, meeting: Some(meeting), ..Self::default() }
    }

    fn name(&self, part: usize) -> &str {
        self.names.get(part).map_or("?", String::as_str)
    }

    /// What there is to say of them.
    pub(super) fn status(&self) -> Vec<PartStatus> {
        let listens = self.meeting.as_ref().and_then(|meeting| meeting.listens);
        let address = |at: Option<SocketAddr>| at.map(|at| at.to_string());
        let mut all: Vec<PartStatus> = (0..self.names.len())
            .map(|part| PartStatus {
                name: self.name(part).to_owned(),
                is_here: part == self.own,
                is_joined: self.trunks.contains_key(&part),
                address: match part == self.own {
                    true => address(listens),
                    false => address(self.trunks.get(&part).map(|trunk| trunk.at)),
                },
                failure: None,
            })
            .collect();
        let has_all = all.iter().all(|part| part.is_here || part.is_joined);
        if let (false, Some((with, why))) = (has_all, self.failures.iter().next())
            && let Some(missing) = all.iter_mut().find(|part| !part.is_here && !part.is_joined)
        {
            missing.failure = Some(format!("{with}: {why}"));
        }
        all
    }

    /// An attempt has failed: said once.
    fn fail(&mut self, with: String, why: String) {
        if self.failures.get(&with) != Some(&why) {
            eprintln!("feroce: {with}: {why}");
            if self.failures.len() >= MAX_FAILURES {
                self.failures.clear();
            }
            self.failures.insert(with, why);
        }
    }
}

impl Server {
    /// Other parts are there, or not.
    pub(super) fn meet(&mut self) -> anyhow::Result<()> {
        let met = |server: &Self| server.parts.meeting.as_ref()?.met.try_recv().ok();
        while let Some(met) = met(self) {
            match met {
                Met::Failed { with, why } => self.parts.fail(with, why),
                Met::Part { part, stream, at, over } => {
                    let trunk = match Trunk::new(now(), stream, at, over) {
                        Ok(trunk) => trunk,
                        Err(e) => {
                            self.parts.fail(at.to_string(), e.to_string());
                            continue;
                        }
                    };
                    self.join(part, trunk)?;
                }
            }
        }
        Ok(())
    }

    fn join(&mut self, part: usize, mut trunk: Trunk) -> anyhow::Result<()> {
        let now = now();
        if self.parts.trunks.contains_key(&part) {
            // An end that finds this one gone before this one finds it gone tries again.
            let why = format!("part {} is joined already", self.parts.name(part));
            trunk.say(&TrunkMessage::Refused(&why));
            let _ = trunk.flush(now);
            return Ok(());
        }
        self.is_touched = true;
        self.parts.failures.clear();
        eprintln!("feroce: part {} is joined: {}", self.parts.name(part), trunk.at);
        self.epoll.add(&trunk, EpollEvent::new(EpollFlags::EPOLLIN, TRUNK | part as u64))?;
        self.parts.trunks.insert(part, trunk);
        let ends: Vec<PortRef> = self.subnet.borders(part).map(|(here, _)| here).collect();
        for at in ends {
            self.processes.restart(now, at, &mut self.subnet);
        }
        self.subnet.find_part(now, part);
        self.settle(now)
    }

    /// The process of another part is gone, or says what it should not.
    fn part_from(&mut self, part: usize, why: String) -> anyhow::Result<()> {
        let Some(trunk) = self.parts.trunks.remove(&part) else { return Ok(()) };
        let _ = self.epoll.delete(&trunk);
        self.is_touched = true;
        let with = format!("part {} ({})", self.parts.name(part), trunk.at);
        self.parts.fail(with, why);
        let now = now();
        self.subnet.lose_part(now, part);
        let ends: Vec<PortRef> = self.subnet.borders(part).map(|(here, _)| here).collect();
        for at in ends {
            self.processes.restart(now, at, &mut self.subnet);
        }
        self.settle(now)
    }

    /// Reads the messages of another part.
    pub(super) fn read_trunk(&mut self, part: usize) -> anyhow::Result<()> {
        let now = now();
        let Some(trunk) = self.parts.trunks.get_mut(&part) else { return Ok(()) };
        let filled = trunk.fill(now, &mut self.buffer);
        let arrived = std::mem::take(&mut trunk.arrived);
        let mut rest = &arrived[..];
        let heard = loop {
            match take_frame(rest) {
                Ok(Some((frame, len))) => {
                    if let Err(why) = self.hear(now, part, frame) {
                        break Err(why);
                    }
                    rest = rest.get(len..).unwrap_or_default();
                }
                Ok(None) => break Ok(()),
                Err(TooLong) => break Err("a frame is longer than frames are".to_owned()),
            }
        };
        let rest = rest.to_vec();
        if let Some(trunk) = self.parts.trunks.get_mut(&part) {
            trunk.arrived = rest;
        }
        self.settle(now)?;
        match heard.and_then(|()| filled.map_err(|e| e.to_string())) {
            Ok(()) => Ok(()),
            Err(why) => self.part_from(part, why),
        }
    }

    /// A message of another part.
    fn hear(&mut self, now: Instant, part: usize, frame: &[u8]) -> Result<(), String> {
        let message = TrunkMessage::parse(frame).ok_or("a message that cannot be read")?;
        let (subnet, processes) = (&mut self.subnet, &mut self.processes);
        let is_end = |at: PortRef| {
            let peer = subnet.port(at).and_then(|port| port.peer());
            peer.and_then(|peer| subnet.part_of(peer)) == Some(part)
        };
        let is_right = match message {
            TrunkMessage::Signal(at, signal) => {
                self.is_touched = true;
                is_end(at) && subnet.handle_signal(now, at, signal)
            }
            TrunkMessage::Datagram(at, hops, packet) => {
                self.is_touched = true;
                is_end(at) && subnet.handle_packet(now, at, packet, hops.into())
            }
            TrunkMessage::Packets(landing, meta, stride, bytes) => {
                let stride = stride.into();
                let record = Record { at_ns: now.as_nanos(), meta, stride, bytes };
                is_end(landing.at) && processes.land(now, landing, &record, subnet)
            }
            TrunkMessage::Credit(at, lane, credit) => {
                is_end(at) && processes.hear(now, (at, lane), credit, subnet)
            }
            TrunkMessage::Alive => true,
            TrunkMessage::Refused(why) => return Err(format!("it refuses: {why}")),
            TrunkMessage::Hello(_) | TrunkMessage::Accepted => false,
        };
        match is_right {
            true => Ok(()),
            false => Err("a message about a link that is not between these parts".to_owned()),
        }
    }

    /// Adds what there is to say of other parts.
    pub(super) fn with_parts(&self, status: SubnetStatus) -> SubnetStatus {
        let hosts =
            self.subnet.nodes().iter().enumerate().filter(|(_, node)| node.switch().is_none());
        let elsewhere = hosts.filter_map(|(index, node)| {
            let part = self.subnet.part_of(PortRef { node: index, port: 1 })?;
            Some((node.name().to_owned(), self.parts.name(part).to_owned()))
        });
        SubnetStatus { elsewhere: elsewhere.collect(), parts: self.parts.status(), ..status }
    }

    /// There is no link at a port, or it is not here.
    pub(super) fn no_port(&self, name: &str) -> Reply {
        let node = name.rsplit_once(':').map_or(name, |(node, _)| node);
        let found = self.subnet.nodes().iter().position(|found| found.name() == node);
        let part = found.and_then(|node| self.subnet.part_of(PortRef { node, port: 1 }));
        Reply::Refused(match part {
            Some(part) => format!("{node} is in part {}: say that there", self.parts.name(part)),
            None => format!("no link at a port {name}; `feroce fabric status` names them"),
        })
    }

    /// Sends a message about a port to the part that has it.
    pub(super) fn say(&mut self, at: PortRef, message: &TrunkMessage<'_>) {
        let part = self.subnet.part_of(at);
        let trunk = part.and_then(|part| self.parts.trunks.get_mut(&part));
        if let Some(trunk) = trunk {
            trunk.say(message);
        }
    }

    /// Sends what waits for other parts.
    pub(super) fn flush_trunks(&mut self) -> anyhow::Result<()> {
        for (at, frame) in self.processes.take_leaving() {
            let part = self.subnet.part_of(at);
            if let Some(trunk) = part.and_then(|part| self.parts.trunks.get_mut(&part)) {
                trunk.follow(frame);
            }
        }
        let now = now();
        let mut lost = Vec::new();
        for (part, trunk) in &mut self.parts.trunks {
            match trunk.keep(now).and_then(|()| trunk.flush(now)) {
                Ok(is_done) if is_done == trunk.is_full => {
                    trunk.is_full = !is_done;
                    let room = if is_done { EpollFlags::empty() } else { EpollFlags::EPOLLOUT };
                    let flags = EpollFlags::EPOLLIN | room;
                    let mut event = EpollEvent::new(flags, TRUNK | *part as u64);
                    self.epoll.modify(&*trunk, &mut event)?;
                }
                Ok(_) => {}
                Err(e) => lost.push((*part, e.to_string())),
            }
        }
        lost.into_iter().try_for_each(|(part, why)| self.part_from(part, why))
    }
}
