//! What happens to links and hosts at a time.

use feroce_fabric::{Time, Topology};
use serde::Deserialize;
use toml::Spanned;

use super::flows::Hosts;
use super::values::{Chance, Fault, NumberOrWord, Span, Speed};
use crate::scenario::{Happening, Happens};

/// `[[event]]`: of a link, or of a host.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    at: Span,
    link: Option<Ends>,
    state: Option<State>,
    loss: Option<Chance>,
    rate: Option<Speed>,
    host: Option<NumberOrWord>,
    pause: Option<bool>,
    #[serde(default = "priority")]
    priority: u8,
}

/// A link by one of its ports, or by both nodes.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a port such as \"s0:2\", or both nodes")]
enum Ends {
    Port(String),
    Nodes([String; 2]),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Up,
    Down,
}

const fn priority() -> u8 {
    3
}

/// All events, in the order of the file.
pub(super) fn build(
    entries: &[Spanned<Entry>],
    topology: &Topology,
    hosts: &Hosts,
) -> Result<Vec<Happening>, Fault> {
    let mut happenings = Vec::new();
    for place in entries {
        let entry = place.get_ref();
        let at = Time::from_ps(entry.at.0);
        let mut push = |happens| happenings.push(Happening { at, happens });
        let changes = [entry.state.is_some(), entry.loss.is_some(), entry.rate.is_some()];
        match (&entry.link, &entry.host) {
            (Some(ends), None) if entry.pause.is_none() && changes.contains(&true) => {
                for link in links(topology, ends, place)? {
                    let state = entry.state.map(|state| Happens::Link(link, state == State::Up));
                    let loss = entry.loss.map(|loss| Happens::Loss(link, loss.0));
                    let rate = entry.rate.map(|rate| Happens::Rate(link, rate.0));
                    [state, loss, rate].into_iter().flatten().for_each(&mut push);
                }
            }
            (None, Some(host)) if !changes.contains(&true) => {
                let host = hosts.find(host, place)?;
                if entry.priority > 7 {
                    let what = format!("event.priority: {} of 0 to 7", entry.priority);
                    return Err(Fault::at(place, what));
                }
                let pause = entry.pause.ok_or_else(|| Fault::at(place, "event.pause: missing"))?;
                push(Happens::Pause(host, entry.priority, pause));
            }
            _ => {
                let what = "event: a link with state, loss or rate, or a host with pause";
                return Err(Fault::at(place, what));
            }
        }
    }
    Ok(happenings)
}

fn links(topology: &Topology, ends: &Ends, place: &Spanned<Entry>) -> Result<Vec<usize>, Fault> {
    match ends {
        Ends::Port(name) => {
            let link = topology.find_port(name).and_then(|port| topology.link_of(port));
            let lacks = || Fault::at(place, format!("event.link: there is no port {name}"));
            Ok(vec![link.ok_or_else(lacks)?])
        }
        Ends::Nodes([a, b]) => {
            let found: Vec<_> = match (topology.find(a), topology.find(b)) {
                (Some(a), Some(b)) => topology.links_between(a, b).collect(),
                _ => Vec::new(),
            };
            match found.is_empty() {
                true => Err(Fault::at(place, format!("event.link: none between {a} and {b}"))),
                false => Ok(found),
            }
        }
    }
}
