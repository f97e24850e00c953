//! The command `kv`: a node of the store, and its client.

use std::io::Read as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use clap::{Parser, Subcommand};
use feroce_kv::{Client, Options, Peers, manager, node};

/// A replicated key-value store on RDMA.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a node.
    Node {
        /// Number of this node.
        #[arg(long)]
        id: u64,
        /// A node, this one too: its number and address. Repeat it for each.
        #[arg(long = "peer", value_name = "N=ADDRESS:PORT", required = true, value_parser = peer)]
        peers: Vec<(u64, SocketAddr)>,
        /// Folder with the log of this node.
        #[arg(long)]
        data: PathBuf,
        /// How long a follower votes for no other node after it has heard of the leader. Leases of
        /// clients last half as long.
        #[arg(long, value_name = "MS", default_value_t = 1000)]
        lease_ms: u64,
        /// Entries of the log between two snapshots.
        #[arg(long, value_name = "N", default_value_t = 5000)]
        snapshot_after: u64,
        /// Buckets of the table that clients read; each has 2 KiB and room for four values.
        #[arg(long, value_name = "N", default_value_t = 4096)]
        buckets: u32,
        /// End when the standard input does.
        #[arg(long)]
        while_stdin: bool,
    },
    /// Write a value, and print its version.
    Put {
        #[arg(long = "peer", value_name = "N=ADDRESS:PORT", required = true, value_parser = peer)]
        peers: Vec<(u64, SocketAddr)>,
        key: String,
        value: String,
    },
    /// Read a value.
    Get {
        #[arg(long = "peer", value_name = "N=ADDRESS:PORT", required = true, value_parser = peer)]
        peers: Vec<(u64, SocketAddr)>,
        key: String,
    },
}

fn peer(text: &str) -> Result<(u64, SocketAddr)> {
    let (id, at) = text.split_once('=').context("write a number, `=`, and an address with port")?;
    Ok((id.parse()?, at.parse()?))
}

#[tokio::main]
async fn main() -> Result<()> {
    match Args::parse().command {
        Command::Node { id, peers, data, lease_ms, snapshot_after, buckets, while_stdin } => {
            if while_stdin {
                std::thread::spawn(|| {
                    // An error is an end as well.
                    let _ = std::io::stdin().read_to_end(&mut Vec::new());
                    std::process::exit(0);
                });
            }
            let (peers, lease) = (Peers::from_iter(peers), Duration::from_millis(lease_ms));
            node::run(Options { id, peers, data, lease, snapshot_after, buckets }).await
        }
        Command::Put { peers, key, value } => {
            let version = client(peers)?.put(&key, value.as_bytes()).await?;
            println!("{version}");
            Ok(())
        }
        Command::Get { peers, key } => {
            let Some((version, value)) = client(peers)?.get(&key).await else {
                bail!("there is no value for {key:?}");
            };
            println!("{} (version {version})", String::from_utf8_lossy(&value));
            Ok(())
        }
    }
}

fn client(peers: Vec<(u64, SocketAddr)>) -> Result<Client> {
    let peers = Peers::from_iter(peers);
    let at = peers.values().next().ok_or_else(|| anyhow!("no peers"))?;
    // The address by which this host reaches the nodes.
    let socket = std::net::UdpSocket::bind((if at.is_ipv4() { "0.0.0.0" } else { "::" }, 0))?;
    socket.connect(at)?;
    let manager = manager(socket.local_addr()?.ip())?;
    Ok(Client::new(&manager, &peers))
}
