//! `feroce udaddy`: datagrams to a service that the connection manager resolves, and back.

use std::process::ExitCode;

use feroce::cm::{CmId, ConnParam, EventKind, IdOption, Manager, PortSpace};
use serde_json::json;

use super::datagrams::Node;
use super::end::{expect, resolve};
use super::place::{EndArgs, Target};
use super::{Program, Report, Say};
use crate::size;

const EXAMPLES: &str = "\
Examples:
  feroce udaddy --both -C 100              both ends here, a hundred datagrams each way
  feroce udaddy                            a server ...
  feroce udaddy -s 192.0.2.1               ... and a client of it
  udaddy -s 192.0.2.1                      the client may be that of rdma-core, too";

/// Options of `udaddy`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub(crate) struct Args {
    #[command(flatten)]
    end: EndArgs,
    /// Form of addresses: name, ip or ipv6
    #[arg(short, long, default_value = "name", value_parser = ["name", "ip", "ipv6"])]
    format: String,
    /// Port space
    #[arg(short = 'P', long, default_value = "udp", value_parser = ["udp"])]
    port_space: String,
    /// Number of services to resolve, the same at both ends
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Datagrams each way for each service, the same at both ends
    #[arg(short = 'C', long, default_value_t = 10)]
    count: u32,
    /// Bytes in a datagram, the same at both ends
    #[arg(short = 'S', long, default_value_t = 100,
          value_parser = |text: &str| size::parse(text, &(0..=u32::MAX)))]
    size: u32,
    /// Type of service: traffic class of every packet
    #[arg(short, long)]
    tos: Option<u8>,
    /// Port of the server
    #[arg(short, long, default_value_t = 7174)]
    port: u16,
}

pub(crate) fn run(args: &Args, json: bool) -> anyhow::Result<ExitCode> {
    super::run(args, args.end.place(args.port)?, json)
}

impl Program for Args {
    fn space(&self) -> PortSpace {
        PortSpace::Udp
    }

    fn serve(&self, _: &Manager, listener: &CmId, say: Say) -> Report {
        say.line("udaddy: starting server");
        self.report("server", say, |nodes| {
            let events = listener.channel();
            for _ in 0..self.connections {
                let request = expect(&events, EventKind::ConnectRequest)?;
                let mut node = self.node(request.id)?;
                node.post_receives()?;
                node.id.accept(&ConnParam::default())?;
                nodes.push(node);
            }
            if self.messages() > 0 {
                say.line("receiving data transfers");
                nodes.iter_mut().try_for_each(Node::finish_receives)?;
                say.line("sending replies");
                nodes.iter_mut().try_for_each(Node::send)?;
                nodes.iter_mut().try_for_each(Node::finish_sends)?;
                say.line("data transfers complete");
            }
            Ok(())
        })
    }

    fn call(&self, manager: &Manager, target: Target, say: Say) -> Report {
        say.line("udaddy: starting client");
        self.report("client", say, |nodes| {
            say.line("udaddy: connecting");
            for _ in 0..self.connections {
                let id = manager.create_id(PortSpace::Udp)?;
                self.tos.map_or(Ok(()), |tos| id.set_option(IdOption::Tos(tos)))?;
                resolve(&id, target)?;
                let mut node = self.node(id)?;
                node.post_receives()?;
                node.id.connect(&ConnParam::default())?;
                let event = expect(&node.id.channel(), EventKind::Established)?;
                event.ud.iter().try_for_each(|ud| node.address(ud))?;
                nodes.push(node);
            }
            if self.messages() > 0 {
                say.line("initiating data transfers");
                nodes.iter_mut().try_for_each(Node::send)?;
                say.line("receiving data transfers");
                nodes.iter_mut().try_for_each(Node::finish_receives)?;
                nodes.iter_mut().try_for_each(Node::finish_sends)?;
                say.line("data transfers complete");
            }
            Ok(())
        })
    }
}

impl Args {
    /// Datagrams each way; none if their size is 0.
    fn messages(&self) -> u32 {
        if self.size == 0 { 0 } else { self.count }
    }

    fn node(&self, id: CmId) -> anyhow::Result<Node> {
        Node::new(id, self.messages(), self.size, true)
    }

    /// Runs `f` and reports its result.
    fn report(
        &self,
        role: &str,
        say: Say,
        f: impl FnOnce(&mut Vec<Node>) -> anyhow::Result<()>,
    ) -> Report {
        let mut nodes = Vec::new();
        let result = f(&mut nodes);
        say.line("test complete");
        say.line(&format!("return status {}", if result.is_ok() { 0 } else { -1 }));
        let record = json!({
            "test": "udaddy", "role": role, "connections": nodes.len(), "size": self.size,
            "sent": nodes.iter().map(|node| node.sent).sum::<u32>(),
            "received": nodes.iter().map(|node| node.received).sum::<u32>(),
        });
        Report { record, result }
    }
}
