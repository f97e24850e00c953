//! `feroce server` and `feroce client`: exchange one message each way.

use std::process::ExitCode;
use std::time::Duration;

use feroce::cm::{CmId, ConnParam, EventKind, Manager, PortSpace};
use feroce::{Access, Data, InlineBytes, Mr, QpCap, SendOp, SendWr, WcOpcode};
use serde_json::json;

use super::end::{End, expect, resolve};
use super::place::{self, BothArgs, PatienceArgs, Place, Target};
use super::{Program, Report, Say};

const SERVER_EXAMPLES: &str = "\
Examples:
  feroce server                        wait for one client ...
  feroce client -s 192.0.2.1           ... and greet it from elsewhere
  rdma_client -s 192.0.2.1 -p 7471     the client may be that of rdma-core, too";

const CLIENT_EXAMPLES: &str = "\
Examples:
  feroce client --both                 both ends here
  feroce client -s 192.0.2.1           greet `feroce server` or `rdma_server` there";

/// Bytes of a message; their values do not matter.
const LEN: usize = 16;

/// Options of `server`.
#[derive(Debug, clap::Args)]
#[command(after_help = SERVER_EXAMPLES, args_override_self = true)]
pub(crate) struct ServerArgs {
    /// Address to listen at [default: all]
    #[arg(short, long, value_name = "ADDR")]
    server: Option<String>,
    /// Port
    #[arg(short, long, default_value_t = 7471)]
    port: u16,
}

/// Options of `client`.
#[derive(Debug, clap::Args)]
#[command(after_help = CLIENT_EXAMPLES, args_override_self = true)]
pub(crate) struct ClientArgs {
    /// Address of the server
    #[arg(short, long, value_name = "ADDR", default_value = "127.0.0.1", conflicts_with = "both")]
    server: String,
    /// Port of the server
    #[arg(short, long, default_value_t = 7471)]
    port: u16,
    /// Address of the client
    #[arg(short, long, value_name = "ADDR", conflicts_with = "both")]
    bind: Option<String>,
    #[command(flatten)]
    patience: PatienceArgs,
    #[command(flatten)]
    both: BothArgs,
}

pub(crate) fn server(args: &ServerArgs, json: bool) -> anyhow::Result<ExitCode> {
    super::run(&Greeting { limit: None }, place::server(args.server.as_deref(), args.port)?, json)
}

pub(crate) fn client(args: &ClientArgs, json: bool) -> anyhow::Result<ExitCode> {
    let place: Place = match args.both.both {
        true => args.both.place()?,
        false => place::client(args.bind.as_deref(), &args.server, args.port)?,
    };
    super::run(&Greeting { limit: args.patience.limit() }, place, json)
}

struct Greeting {
    /// How long the client waits for the server.
    limit: Option<Duration>,
}

impl Program for Greeting {
    fn serve(&self, _: &Manager, listener: &CmId, say: Say) -> Report {
        say.line("rdma_server: start");
        report("server", say, || {
            let request = expect(&listener.channel(), EventKind::ConnectRequest)?;
            let mut end = Greeter::new(request.id)?;
            end.end.accept()?;
            let result = end.receive().and_then(|()| end.send());
            end.end.finish(result)
        })
    }

    fn call(&self, manager: &Manager, target: Target, say: Say) -> Report {
        say.line("rdma_client: start");
        report("client", say, || {
            let id = manager.create_id(PortSpace::Tcp)?;
            resolve(&id, target)?;
            let mut end = Greeter::new(id)?;
            end.end.connect_within(ConnParam::default(), self.limit)?;
            let result = end.send().and_then(|()| end.receive());
            end.end.finish(result)
        })
    }
}

/// Runs one end and reports its result.
fn report(role: &str, say: Say, f: impl FnOnce() -> anyhow::Result<()>) -> Report {
    let result = f();
    say.line(&format!("rdma_{role}: end {}", if result.is_ok() { 0 } else { -1 }));
    let record = json!({ "test": format!("rdma_{role}"), "role": role, "ok": result.is_ok() });
    Report { record, result }
}

/// One end, with a receive posted.
struct Greeter {
    end: End,
    /// Receive buffer for the message of the peer; this program does not read its contents.
    _message: Mr,
    /// The message of the peer has arrived.
    has_received: bool,
}

impl Greeter {
    fn new(id: CmId) -> anyhow::Result<Self> {
        let mut end = End::new(id, QpCap::new(1, 1), false)?;
        let message = end.pd.alloc_mr(LEN, Access::LOCAL_WRITE)?;
        end.qp.post_recv([message.recv(0, 0..LEN)])?;
        Ok(Self { end, _message: message, has_received: false })
    }

    fn receive(&mut self) -> anyhow::Result<()> {
        while !self.has_received {
            self.has_received = self.end.completion()?.opcode == WcOpcode::Recv;
        }
        Ok(())
    }

    /// Sends a message, and waits until the peer has acknowledged it.
    fn send(&mut self) -> anyhow::Result<()> {
        let data = Data::Inline(InlineBytes::new(&[0; LEN]));
        self.end.qp.post_send([SendWr::new(1, SendOp::Send, data)])?;
        loop {
            match self.end.completion()?.opcode {
                // The message of the peer may arrive before the acknowledgement of the send.
                WcOpcode::Recv => self.has_received = true,
                _ => return Ok(()),
            }
        }
    }
}
