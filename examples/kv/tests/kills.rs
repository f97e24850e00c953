//! Nodes that are killed or stopped, while one client writes and another reads.
//!
//! The seed decides which node dies, how, and after which operation. Nothing is judged by time: the
//! clients ask until they are answered, and every answer is compared with what was acknowledged.
//! `KV_SEEDS=FIRST-LAST` runs other seeds.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use feroce_kv::client::Counts;
use feroce_kv::{Client, Peers, manager};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const NODES: u64 = 3;
const KEYS: usize = 8;
const PUTS: u64 = 120;

/// What happens to nodes after an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// `kill -9`, and so many operations later a start.
    Kill { node: u64, starts_after: u64 },
    /// The same for the leader, while a PUT is under way.
    KillLeader { starts_after: u64 },
    /// The leader does not run any more, but its memory can be read.
    StopLeader { goes_on_after: u64 },
    /// `kill -9` of all, and a start at once.
    KillAll,
}

/// The faults of a seed, each with the operation it follows.
fn plan(random: &mut fastrand::Rng) -> Vec<(u64, Fault)> {
    let mut at = random.u64(3..12);
    let mut plan = Vec::new();
    // Every kind comes once, in an order of the seed, and two nodes are never away at a time.
    let mut kinds = [0, 1, 2, 3, 0];
    random.shuffle(&mut kinds);
    for kind in kinds {
        let after = random.u64(1..10);
        plan.push((
            at,
            match kind {
                0 => Fault::Kill { node: random.u64(1..=NODES), starts_after: after },
                1 => Fault::KillLeader { starts_after: after },
                2 => Fault::StopLeader { goes_on_after: after },
                _ => Fault::KillAll,
            },
        ));
        at += after + random.u64(1..10);
    }
    plan
}

/// The processes of a store.
struct Nodes<'a> {
    peers: Peers,
    data: &'a Path,
    running: Vec<Option<Child>>,
}

impl Nodes<'_> {
    fn start(&mut self, node: u64) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kv"));
        command.args(["node", "--while-stdin", "--snapshot-after", "40", "--buckets", "2"]);
        command.arg("--id").arg(node.to_string());
        command.arg("--data").arg(self.data.join(node.to_string()));
        for (id, at) in &self.peers {
            command.arg("--peer").arg(format!("{id}={at}"));
        }
        // They end when this process does.
        let command = command.stdin(Stdio::piped()).stdout(Stdio::null());
        *self.place(node) = Some(command.spawn().expect("a process"));
    }

    fn place(&mut self, node: u64) -> &mut Option<Child> {
        &mut self.running[usize::try_from(node - 1).expect("a small number")]
    }

    fn signal(&mut self, node: u64, signal: Signal) {
        let child = self.place(node).as_ref().expect("it runs");
        let id = Pid::from_raw(i32::try_from(child.id()).expect("a process"));
        kill(id, signal).expect("it runs");
    }

    fn kill(&mut self, node: u64) {
        self.signal(node, Signal::SIGKILL);
        self.place(node).take().expect("it runs").wait().expect("its end");
    }
}

impl Drop for Nodes<'_> {
    fn drop(&mut self) {
        for child in self.running.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// For each key, which PUT was acknowledged last, and which was begun last.
#[derive(Default)]
struct Marks {
    acknowledged: [AtomicU64; KEYS],
    begun: [AtomicU64; KEYS],
    is_over: AtomicBool,
}

fn key(at: usize) -> String {
    format!("key {at}")
}

/// Some values are too long for an entry of the table.
fn value(number: u64) -> Vec<u8> {
    let len = if number.is_multiple_of(7) { 600 } else { 8 + (number % 300) as usize };
    let mut value = number.to_be_bytes().to_vec();
    value.resize(len.max(8), number as u8);
    value
}

/// Which PUT has written what was found; zero if there is nothing.
fn number(found: Option<(u64, Vec<u8>)>) -> u64 {
    let Some((_, bytes)) = found else { return 0 };
    let number = u64::from_be_bytes(*bytes.first_chunk().expect("a number"));
    assert_eq!(bytes, value(number), "a value that was not written");
    number
}

/// Reads any keys until the writer is done.
async fn read(mut client: Client, marks: Arc<Marks>, seed: u64) -> Counts {
    let mut random = fastrand::Rng::with_seed(seed);
    while !marks.is_over.load(Ordering::Acquire) {
        let at = random.usize(..KEYS);
        let before = marks.acknowledged[at].load(Ordering::Acquire);
        let found = number(client.get(&key(at)).await);
        let after = marks.begun[at].load(Ordering::Acquire);
        assert!(before <= found, "{} is {found}, {before} was acknowledged", key(at));
        assert!(found <= after, "{} is {found}, the last begun is {after}", key(at));
    }
    client.counts()
}

async fn put(client: &mut Client, marks: &Marks, at: usize, number: u64) {
    marks.begun[at].store(number, Ordering::Release);
    client.put(&key(at), &value(number)).await.expect("it is short");
    marks.acknowledged[at].store(number, Ordering::Release);
}

async fn run(seed: u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut random = fastrand::Rng::with_seed(seed);
    let plan = plan(&mut random);
    println!("seed {seed}: {plan:?}");
    // Other runs of this test, beside this one, have other addresses.
    let process = std::process::id();
    let ip = format!("127.{}.{}.9", 64 + (process >> 8) % 64, process % 256).parse().unwrap();
    let base = 20_000 + u16::try_from(seed % 1000).unwrap() * 10;
    let peers: Peers =
        (1..=NODES).map(|id| (id, (ip, base + u16::try_from(id).unwrap()).into())).collect();
    let running = (0..NODES).map(|_| None).collect();
    let mut nodes = Nodes { peers: peers.clone(), data: folder.path(), running };
    (1..=NODES).for_each(|node| nodes.start(node));

    let manager = manager(ip).unwrap();
    let marks = Arc::new(Marks::default());
    let reading = read(Client::new(&manager, &peers), Arc::clone(&marks), seed);
    let reading = tokio::spawn(reading);
    let mut client = Client::new(&manager, &peers);
    let mut faults = plan.into_iter().peekable();
    let mut returns: Option<(u64, u64, bool)> = None;
    for operation in 1..=PUTS {
        let at = random.usize(..KEYS);
        if let Some((_, node, is_stopped)) = returns.take_if(|(when, ..)| *when <= operation) {
            if is_stopped { nodes.signal(node, Signal::SIGCONT) } else { nodes.start(node) }
        }
        let fault = faults.next_if(|(when, _)| *when <= operation && returns.is_none());
        match fault.map(|(_, fault)| fault) {
            Some(Fault::Kill { node, starts_after }) => {
                nodes.kill(node);
                returns = Some((operation + starts_after, node, false));
            }
            Some(Fault::KillLeader { starts_after }) => {
                let leader = client.leader();
                // The PUT is on its way when the leader dies.
                let mut writing = std::pin::pin!(put(&mut client, &marks, at, operation));
                let is_done = tokio::select! {
                    biased;
                    () = &mut writing => true,
                    () = tokio::task::yield_now() => false,
                };
                nodes.kill(leader);
                returns = Some((operation + starts_after, leader, false));
                if !is_done {
                    writing.await;
                }
                continue;
            }
            Some(Fault::StopLeader { goes_on_after }) => {
                let leader = client.leader();
                nodes.signal(leader, Signal::SIGSTOP);
                returns = Some((operation + goes_on_after, leader, true));
            }
            Some(Fault::KillAll) => {
                (1..=NODES).for_each(|node| nodes.kill(node));
                (1..=NODES).for_each(|node| nodes.start(node));
            }
            None => {}
        }
        put(&mut client, &marks, at, operation).await;
    }
    assert!(faults.next().is_none(), "every fault has come");
    marks.is_over.store(true, Ordering::Release);
    let counts = reading.await.expect("the reader has seen nothing wrong");
    println!("seed {seed}: the reader's GETs: {counts:?}");
    assert!(counts.reads > counts.leases, "{counts:?}");
    for at in 0..KEYS {
        let found = number(client.get(&key(at)).await);
        assert_eq!(found, marks.acknowledged[at].load(Ordering::Acquire), "{}", key(at));
    }
}

#[tokio::test]
async fn no_acknowledged_write_is_lost() {
    let seeds = std::env::var("KV_SEEDS").unwrap_or_else(|_| "1-3".into());
    let (first, last) = seeds.split_once('-').expect("KV_SEEDS is FIRST-LAST");
    for seed in first.parse().expect("a number")..=last.parse().expect("a number") {
        run(seed).await;
    }
}
