//! `feroce ucmatose`: opens many connections at once, exchanges messages both ways, and
//! disconnects.
//!
//! The server sends on every connection as soon as all are established, the client answers when it
//! has received all messages, and the server disconnects.

use std::process::ExitCode;

use feroce::cm::{CmId, ConnParam, EventKind, IdOption, Manager, PortSpace};
use feroce::{Access, Mr, QpCap, SendOp, SendWr, WcOpcode};
use serde_json::json;

use super::end::{End, Ended, expect, resolve};
use super::place::{EndArgs, PatienceArgs, Target};
use super::{Program, Report, Say};
use crate::size;

const EXAMPLES: &str = "\
Examples:
  feroce ucmatose --both -c 100            a hundred connections between two adapters here
  feroce ucmatose -c 4                     a server for four connections ...
  feroce ucmatose -s 192.0.2.1 -c 4        ... and the client that makes them
  ucmatose -s 192.0.2.1                    the client may be that of rdma-core, too";

/// Options of `ucmatose`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub(crate) struct Args {
    #[command(flatten)]
    end: EndArgs,
    #[command(flatten)]
    patience: PatienceArgs,
    /// Form of addresses: name, ip or ipv6
    #[arg(short, long, default_value = "name", value_parser = ["name", "ip", "ipv6"])]
    format: String,
    /// Port space
    #[arg(short = 'P', long, default_value = "tcp", value_parser = ["tcp"])]
    port_space: String,
    /// Connections, the same at both ends
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Messages each way on a connection, the same at both ends
    #[arg(short = 'C', long, default_value_t = 10)]
    count: u32,
    /// Bytes in a message, the same at both ends
    #[arg(short = 'S', long, default_value_t = 100,
          value_parser = |text: &str| size::parse(text, &(0..=u32::MAX)))]
    size: u32,
    /// Type of service: traffic class of every packet
    #[arg(short, long)]
    tos: Option<u8>,
    /// Port of the server
    #[arg(short, long, default_value_t = 7471)]
    port: u16,
    /// Move the connections to another event channel before they end
    #[arg(short, long)]
    migrate: bool,
    /// Acknowledgement timeout: 4.096 us times two to this power
    #[arg(short, long)]
    ack_timeout: Option<u8>,
}

pub(crate) fn run(args: &Args, json: bool) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        args.patience.limit().is_none() || args.end.is_client(),
        "--timeout is for the client, which names the server with -s"
    );
    super::run(args, args.end.place(args.port)?, json)
}

impl Program for Args {
    fn serve(&self, manager: &Manager, listener: &CmId, say: Say) -> Report {
        say.line("cmatose: starting server");
        self.report("server", say, |tally| {
            let mut nodes = self.accept(manager, listener, tally)?;
            if self.messages() > 0 {
                say.line("initiating data transfers");
                nodes.iter_mut().try_for_each(|node| node.send(self))?;
                say.line("completing sends");
                nodes.iter_mut().try_for_each(|node| node.finish_sends(tally))?;
                say.line("receiving data transfers");
                nodes.iter_mut().try_for_each(|node| node.finish_receives(tally))?;
                say.line("data transfers complete");
            }
            self.migrate(manager, &mut nodes, say)?;
            say.line("cmatose: disconnecting");
            nodes.iter_mut().try_for_each(|node| node.end.start_disconnect())?;
            nodes.iter_mut().try_for_each(|node| node.end.wait_end())?;
            say.line("disconnected");
            Ok(())
        })
    }

    fn call(&self, manager: &Manager, target: Target, say: Say) -> Report {
        say.line("cmatose: starting client");
        self.report("client", say, |tally| {
            say.line("cmatose: connecting");
            let mut nodes = self.connect(manager, target, tally)?;
            if self.messages() > 0 {
                say.line("receiving data transfers");
                nodes.iter_mut().try_for_each(|node| node.finish_receives(tally))?;
                say.line("sending replies");
                nodes.iter_mut().try_for_each(|node| node.send(self))?;
                say.line("data transfers complete");
            }
            self.migrate(manager, &mut nodes, say)?;
            // The server disconnects when it has received all messages, so the disconnection also
            // confirms the client's sends.
            nodes.iter_mut().try_for_each(|node| node.wait_disconnected(tally))?;
            nodes.iter_mut().try_for_each(|node| node.end.start_disconnect())
        })
    }
}

impl Args {
    /// Messages each way on a connection; none if their size is 0.
    fn messages(&self) -> u32 {
        if self.size == 0 { 0 } else { self.count }
    }

    /// Runs `f` and reports its result.
    fn report(
        &self,
        role: &str,
        say: Say,
        f: impl FnOnce(&mut Tally) -> anyhow::Result<()>,
    ) -> Report {
        let mut tally = Tally::default();
        let result = f(&mut tally);
        say.line("test complete");
        say.line(&format!("return status {}", if result.is_ok() { 0 } else { -1 }));
        let record = json!({
            "test": "ucmatose", "role": role, "connections": tally.connections, "size": self.size,
            "sent": tally.sent, "received": tally.received,
        });
        Report { record, result }
    }

    /// Accepts the expected number of requests, and waits until all connections are established.
    fn accept(
        &self,
        manager: &Manager,
        listener: &CmId,
        tally: &mut Tally,
    ) -> anyhow::Result<Vec<Node>> {
        let events = listener.channel();
        let mut nodes = Vec::new();
        for _ in 0..self.connections {
            let request = expect(&events, EventKind::ConnectRequest)?;
            // Every connection has an event channel of its own, so that each can wait for its own
            // events.
            request.id.migrate(&manager.event_channel()?)?;
            let mut node = Node::new(self, request.id)?;
            node.end.grant()?;
            nodes.push(node);
        }
        wait_connected(nodes, tally)
    }

    /// Requests all connections, and waits until they are established.
    fn connect(
        &self,
        manager: &Manager,
        target: Target,
        tally: &mut Tally,
    ) -> anyhow::Result<Vec<Node>> {
        let mut nodes = Vec::new();
        for _ in 0..self.connections {
            let id = manager.create_id(PortSpace::Tcp)?;
            resolve(&id, target)?;
            let mut node = Node::new(self, id)?;
            let one = ConnParam { responder_resources: 1, initiator_depth: 1, ..<_>::default() };
            node.end.ask(ConnParam { retry_count: 5, ..one })?;
            nodes.push(node);
        }
        for node in &mut nodes {
            node.end.wait_answer(self.patience.limit())?;
            tally.connections += 1;
        }
        Ok(nodes)
    }

    fn migrate(&self, manager: &Manager, nodes: &mut [Node], say: Say) -> anyhow::Result<()> {
        if self.migrate {
            say.line("migrating to new event channel");
            nodes.iter_mut().try_for_each(|node| node.end.migrate(manager.event_channel()?))?;
        }
        Ok(())
    }
}

fn wait_connected(mut nodes: Vec<Node>, tally: &mut Tally) -> anyhow::Result<Vec<Node>> {
    for node in &mut nodes {
        node.end.wait_connected()?;
        tally.connections += 1;
    }
    Ok(nodes)
}

/// Counts of what was done.
#[derive(Debug, Default)]
struct Tally {
    connections: u32,
    sent: u64,
    received: u64,
}

/// One connection.
struct Node {
    end: End,
    /// Buffer for all sends and receives; its contents do not matter.
    message: Mr,
    /// Messages whose send has not completed, and messages that have not been received.
    unsent: u32,
    unreceived: u32,
}

impl Node {
    fn new(args: &Args, id: CmId) -> anyhow::Result<Self> {
        for option in [args.tos.map(IdOption::Tos), args.ack_timeout.map(IdOption::AckTimeout)] {
            option.map_or(Ok(()), |option| id.set_option(option))?;
        }
        let (count, size) = (args.messages(), args.size as usize);
        let mut end = End::new(id, QpCap::new(count.max(1), count.max(1)), false)?;
        let message = end.pd.alloc_mr(size.max(1), Access::LOCAL_WRITE)?;
        end.qp.post_recv((0..count).map(|_| message.recv(0, 0..size)))?;
        Ok(Self { end, message, unsent: 0, unreceived: count })
    }

    fn send(&mut self, args: &Args) -> anyhow::Result<()> {
        self.unsent = args.messages();
        let send = || SendWr::new(1, SendOp::Send, self.message.data(0..args.size as usize));
        Ok(self.end.qp.post_send((0..self.unsent).map(|_| send()))?)
    }

    fn finish_sends(&mut self, tally: &mut Tally) -> anyhow::Result<()> {
        while self.unsent > 0 {
            self.take(tally)?;
        }
        Ok(())
    }

    fn finish_receives(&mut self, tally: &mut Tally) -> anyhow::Result<()> {
        while self.unreceived > 0 {
            self.take(tally)?;
        }
        Ok(())
    }

    /// Takes completions until the peer disconnects.
    fn wait_disconnected(&mut self, tally: &mut Tally) -> anyhow::Result<()> {
        loop {
            match self.take(tally) {
                Err(e) if e.downcast_ref() == Some(&Ended::Disconnected) => return Ok(()),
                result => result?,
            }
        }
    }

    fn take(&mut self, tally: &mut Tally) -> anyhow::Result<()> {
        if self.end.completion()?.opcode == WcOpcode::Recv {
            self.unreceived = self.unreceived.saturating_sub(1);
            tally.received += 1;
        } else {
            self.unsent = self.unsent.saturating_sub(1);
            tally.sent += 1;
        }
        Ok(())
    }
}
