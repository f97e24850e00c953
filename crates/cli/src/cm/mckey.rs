//! `feroce mckey`: datagrams to a multicast group.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use feroce::cm::{EventKind, Manager, PortSpace};
use serde_json::json;

use super::datagrams::Node;
use super::end::expect;
use super::place::{self, BothArgs};
use super::{Report, Say, both_ends, conclude};
use crate::{size, stop};

const EXAMPLES: &str = "\
Examples:
  feroce mckey --both -m 239.1.1.1           a sender and a receiver here
  feroce mckey -m 239.1.1.1                  a receiver on any number of machines ...
  feroce mckey -m 239.1.1.1 -s               ... and a sender, to all of them
  mckey -m 239.1.1.1 -b 192.0.2.1            members may be those of rdma-core, too";

/// Options of `mckey`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub(crate) struct Args {
    /// Address of the group
    #[arg(short, long, value_name = "ADDR")]
    multicast: IpAddr,
    /// Send, instead of receiving
    #[arg(short, long, conflicts_with = "both")]
    sender: bool,
    /// Our address
    #[arg(short, long, value_name = "ADDR", conflicts_with = "both")]
    bind: Option<String>,
    #[command(flatten)]
    both: BothArgs,
    /// Memberships in this process
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Datagrams that each member sends or waits for
    #[arg(short = 'C', long, default_value_t = 10)]
    count: u32,
    /// Bytes in a datagram, the same at both ends
    #[arg(short = 'S', long, default_value_t = 100,
          value_parser = |text: &str| size::parse(text, &(0..=u32::MAX)))]
    size: u32,
    /// Port space: 0x111 is UDP
    #[arg(short, long, default_value = "0x111", value_parser = ["0x111"])]
    port_space: String,
    /// Join only to send
    #[arg(short = 'o', long, conflicts_with = "both")]
    send_only: bool,
    /// Do not receive the datagrams that this process sends
    #[arg(short = 'l', long)]
    no_loopback: bool,
}

/// What a member does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Sender,
    Receiver,
}

pub(crate) fn run(args: &Args, json: bool) -> anyhow::Result<ExitCode> {
    let group = args.multicast;
    ensure!(
        group.is_multicast(),
        "-m {group} is not a multicast address: those of IPv4 are 224.0.0.0 to 239.255.255.255, \
         those of IPv6 begin with ff"
    );
    stop::watch()?;
    let say = Say { on: !json };
    let (reports, record) = if args.both.both {
        let (a, b) = args.both.locals()?;
        let (receiver, sender) = (a.manager()?, b.manager()?);
        let quiet = Say { on: false };
        // The receiver is a member before the sender sends.
        let (mut receivers, mut senders) = (Vec::new(), Vec::new());
        args.join(&receiver, Some((a.ip, 0).into()), Role::Receiver, quiet, &mut receivers)?;
        args.join(&sender, Some((b.ip, 0).into()), Role::Sender, say, &mut senders)?;
        let (received, sent) = both_ends(
            || args.transfer(Role::Receiver, receivers, quiet),
            || args.transfer(Role::Sender, senders, say),
        );
        let record = json!({ "receiver": received.complete(), "sender": sent.complete() });
        (vec![received, sent], record)
    } else {
        let role = if args.sender { Role::Sender } else { Role::Receiver };
        let from = args.bind.as_deref().map(|bind| place::look_up(bind, 0)).transpose()?;
        let mut nodes = Vec::new();
        args.join(&Manager::new(), from, role, say, &mut nodes)?;
        let report = args.transfer(role, nodes, say);
        let record = report.complete();
        (vec![report], record)
    };
    if json {
        println!("{record}");
    }
    conclude(reports)
}

impl Args {
    /// Datagrams of a member; none if their size is 0.
    fn messages(&self) -> u32 {
        if self.size == 0 { 0 } else { self.count }
    }

    fn join(
        &self,
        manager: &Manager,
        from: Option<SocketAddr>,
        role: Role,
        say: Say,
        nodes: &mut Vec<Node>,
    ) -> anyhow::Result<()> {
        say.line(&format!("mckey: starting {}", role.peer_name()));
        say.line("mckey: joining");
        for _ in 0..self.connections {
            let id = manager.create_id(PortSpace::Udp)?;
            let events = id.channel();
            id.resolve_addr(from, (self.multicast, 0).into(), 2000)
                .with_context(|| format!("cannot reach the group {}", self.multicast))?;
            expect(&events, EventKind::AddrResolved)?;
            let mut node = Node::new(id, self.messages(), self.size, !self.no_loopback)?;
            if role == Role::Receiver {
                node.post_receives()?;
            }
            node.id.join_multicast(self.multicast, self.send_only)?;
            let ud =
                expect(&events, EventKind::MulticastJoin)?.ud.context("no way to the group")?;
            let dgid = std::net::Ipv6Addr::from(ud.av.dgid.0);
            let (mlid, sl) = (ud.av.dlid.0, ud.av.sl);
            say.line(&format!("mckey: joined dgid: {dgid} mlid {mlid:#x} sl {sl}"));
            node.address(&ud)?;
            nodes.push(node);
        }
        Ok(())
    }

    fn transfer(&self, role: Role, mut nodes: Vec<Node>, say: Say) -> Report {
        let mut result = Ok(());
        if self.messages() > 0 {
            result = match role {
                Role::Sender => {
                    say.line("initiating data transfers");
                    nodes.iter_mut().try_for_each(|node| {
                        node.send()?;
                        node.finish_sends()
                    })
                }
                Role::Receiver => {
                    say.line("receiving data transfers");
                    // A receiver cannot know when a sender starts, so it waits for the first
                    // datagram without a timeout. A sender then sends all datagrams, so the wait
                    // for the others has a timeout.
                    nodes.iter_mut().try_for_each(|node| {
                        node.first_receive()?;
                        node.finish_receives()
                    })
                }
            };
            if result.is_ok() {
                say.line("data transfers complete");
            }
        }
        let left = nodes.iter().try_for_each(|node| node.id.leave_multicast(self.multicast));
        let result = result.and_then(|()| Ok(left?));
        say.line("test complete");
        say.line(&format!("return status {}", if result.is_ok() { 0 } else { -1 }));
        let record = json!({
            "test": "mckey", "role": role.name(), "group": self.multicast, "members": nodes.len(),
            "size": self.size,
            "sent": nodes.iter().map(|node| node.sent).sum::<u32>(),
            "received": nodes.iter().map(|node| node.received).sum::<u32>(),
        });
        Report { record, result }
    }
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Sender => "sender",
            Self::Receiver => "receiver",
        }
    }

    /// The name of the role in the output of rdma-core's program.
    fn peer_name(self) -> &'static str {
        match self {
            Self::Sender => "client",
            Self::Receiver => "server",
        }
    }
}
