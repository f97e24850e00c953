//! Where the ends run: addresses from the command line, and their devices.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use anyhow::{Context as _, bail};
use feroce::cm::{CmId, Manager, PortSpace};
use feroce::{Context, Device, Error};

use crate::backend;

/// Options of commands that can run both ends.
#[derive(Debug, clap::Args)]
pub(super) struct BothArgs {
    /// Run both ends in this process
    #[arg(long)]
    pub(super) both: bool,
    /// With --both, the addresses of server and client [default: two of the loopback]
    #[arg(long, value_delimiter = ',', value_name = "IP,IP", requires = "both")]
    address: Vec<IpAddr>,
}

impl BothArgs {
    /// Where both ends run.
    pub(super) fn place(&self) -> anyhow::Result<Place> {
        let (server, client) = self.locals()?;
        Ok(Place::Both(server, client))
    }

    /// Their devices.
    pub(super) fn locals(&self) -> anyhow::Result<(Local, Local)> {
        let (server, client) = match *self.address {
            [] if backend::are_given()? => {
                let ip = backend::first_address()?;
                (ip, ip)
            }
            [] => (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::new(127, 0, 0, 2).into()),
            [server, client] => (server, client),
            _ => bail!("--address: two addresses, as in --address 127.0.0.1,127.0.0.2"),
        };
        Ok((Local::at(server)?, Local::at(client)?))
    }
}

/// Options of commands that can be a client.
#[derive(Debug, clap::Args)]
pub(super) struct PatienceArgs {
    /// Give up if the server has not answered after so many seconds; without it the client tries
    /// for about two minutes
    #[arg(long, value_name = "SECONDS", conflicts_with = "both",
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: Option<u64>,
}

impl PatienceArgs {
    /// How long to wait for the server.
    pub(super) fn limit(&self) -> Option<Duration> {
        self.timeout.map(Duration::from_secs)
    }
}

/// Options of commands that are the server unless the address of one is given.
#[derive(Debug, clap::Args)]
pub(super) struct EndArgs {
    /// Address of the server; without it, be the server
    #[arg(short, long, value_name = "ADDR", conflicts_with = "both")]
    server: Option<String>,
    /// Our address
    #[arg(short, long, value_name = "ADDR", conflicts_with = "both")]
    bind: Option<String>,
    #[command(flatten)]
    both: BothArgs,
}

impl EndArgs {
    /// Where the ends run; a server is at this port.
    pub(super) fn place(&self, port: u16) -> anyhow::Result<Place> {
        match &self.server {
            _ if self.is_both() => self.both.place(),
            Some(to) => client(self.bind.as_deref(), to, port),
            None => server(self.bind.as_deref(), port),
        }
    }

    /// Whether this is the end that connects.
    pub(super) fn is_client(&self) -> bool {
        self.server.is_some()
    }

    /// Whether both ends run in this process.
    pub(super) fn is_both(&self) -> bool {
        self.both.both
    }
}

/// Which ends run in this process, and at which addresses.
#[derive(Debug)]
pub(super) enum Place {
    Server(SocketAddr),
    Client(Target),
    Both(Local, Local),
}

/// The target of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// Our address, if it was given.
    pub(crate) from: Option<SocketAddr>,
    /// The address of the server.
    pub(crate) to: SocketAddr,
}

/// A device at one address.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) ip: IpAddr,
    context: Context,
}

impl Local {
    fn at(ip: IpAddr) -> anyhow::Result<Self> {
        let context = Device::at([ip]).open().with_context(|| format!("cannot open {ip}"))?;
        Ok(Self { ip, context })
    }

    /// A connection manager for this device only.
    pub(super) fn manager(&self) -> Result<Manager, Error> {
        Manager::with([self.context.clone()])
    }
}

/// The first address of a host, by name or number.
pub(super) fn look_up(host: &str, port: u16) -> anyhow::Result<SocketAddr> {
    let addresses = (host, port).to_socket_addrs();
    let first = addresses.with_context(|| format!("no address of {host:?} is known"))?.next();
    first.with_context(|| format!("{host:?} has no address"))
}

/// Where a server listens: at all addresses if none is given.
pub(super) fn server(host: Option<&str>, port: u16) -> anyhow::Result<Place> {
    let at = match host {
        Some(host) => look_up(host, port)?,
        None => (Ipv4Addr::UNSPECIFIED, port).into(),
    };
    Ok(Place::Server(at))
}

/// The target of a client, and the address to connect from.
pub(super) fn client(from: Option<&str>, to: &str, port: u16) -> anyhow::Result<Place> {
    let from = from.map(|from| look_up(from, 0)).transpose()?;
    Ok(Place::Client(Target { from, to: look_up(to, port)? }))
}

/// Creates an id that listens.
pub(super) fn listen(manager: &Manager, space: PortSpace, at: SocketAddr) -> anyhow::Result<CmId> {
    let id = manager.create_id(space)?;
    id.bind(at).and_then(|()| id.listen(0)).with_context(|| format!("cannot listen at {at}"))?;
    Ok(id)
}

pub(super) fn local_addr(id: &CmId) -> anyhow::Result<SocketAddr> {
    id.local_addr().context("the id has no address")
}
