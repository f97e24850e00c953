//! A log on three hosts, tested in virtual time.
//!
//! The leader appends entries to the logs of two followers by one-sided writes. An entry is
//! *committed*, and acknowledged to the client, when a majority of the hosts has it: the leader and
//! a follower. The leader tells a follower by an immediate how many entries are committed, and the
//! follower applies them.
//!
//! Entries and commits take two connections, because commits are short and should not wait behind
//! entries. Between two connections there is no order: the leader has to wait for the completion of
//! a write, which says that the follower has it, before it tells that follower or the client. The
//! broken variant does not wait. On a network that loses nothing it works; the worlds below find
//! out, since they lose packets, cut hosts off, slow them down and let the leader crash.
//!
//! ```text
//! cargo run --release --features sim --example replicated_log              # both, a few seeds
//! cargo run --release --features sim --example replicated_log -- 10000     # more seeds
//! cargo run --release --features sim --example replicated_log -- broken 17 # one seed again
//! ```

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use feroce::cm::{Connection, Connector, Listener};
use feroce::sim::{Fault, Host, HostId, World, WorldError};
use feroce::{Access, Data, Imm, Mr, Remote, Rkey, SendOp, SendWr, WcStatus};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const PORT: u16 = 4000;
const FOLLOWERS: [&str; 2] = ["left", "right"];
/// Entries that the client appends.
const ENTRIES: usize = 12;
/// An entry: its number, what it holds, and a checksum of both.
const ENTRY: usize = 24;
/// How long a follower waits for the leader before it takes it for dead.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the leader does between writing an entry and committing it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fence {
    /// It waits for the completion of the write.
    Completion,
    /// Nothing, which is wrong.
    Missing,
}

fn entry(number: usize) -> [u8; ENTRY] {
    let (number, value) = (number as u64, number as u64 * 1000 + 7);
    let mut bytes = [0; ENTRY];
    let words = [number, value, !(number ^ value)];
    for (to, word) in bytes.chunks_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Whether a log holds an entry.
fn holds(log: &Mr, number: usize) -> Result<bool> {
    let mut bytes = [0; ENTRY];
    log.read_at(number * ENTRY, &mut bytes)?;
    Ok(bytes == entry(number))
}

/// Which entries each follower holds, and how many were acknowledged to the client: for the check
/// at the end, which no program could make.
#[derive(Debug, Default)]
struct Witness {
    acknowledged: Cell<usize>,
    held: RefCell<BTreeMap<String, Vec<bool>>>,
}

/// The two connections of the leader: for entries, and for commits.
async fn accept(host: &Host) -> Result<(Connection, Connection)> {
    let listener = Listener::bind(&host.manager()?, (host.addr_of(host.name()), PORT).into())?;
    let entries = listener.accept_async().await?.accept_async().await?;
    let commits = listener.accept_async().await?.accept_async().await?;
    Ok((entries, commits))
}

/// Takes entries and commits until all are committed or the leader is gone.
async fn follow(host: Host, witness: Rc<Witness>) -> Result<()> {
    // A leader that has crashed does not connect, or not twice.
    let Some(Ok(connections)) = host.timeout(PATIENCE, accept(&host)).await else {
        return Ok(());
    };
    let (mut entries, mut commits) = connections;
    let log = entries.pd().alloc_mr(ENTRIES * ENTRY, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let nothing = commits.pd().alloc_mr(8, Access::LOCAL_WRITE)?;
    for _ in 0..ENTRIES {
        commits.post_recv([nothing.recv(0, 0..0)])?;
    }
    // The leader has to know where to write.
    let Remote { addr, rkey } = log.remote(0);
    let place = entries.pd().alloc_mr(12, Access::LOCAL_WRITE)?;
    place.write_at(0, &addr.to_le_bytes())?;
    place.write_at(8, &rkey.0.to_le_bytes())?;
    entries.post_send([SendWr::new(0, SendOp::Send, place.data(0..12))])?;
    let mut applied = 0;
    while applied < ENTRIES {
        let Some(commit) = host.timeout(PATIENCE, commits.recv_cq().next()).await else { break };
        if commit.status != WcStatus::Success {
            break;
        }
        let committed = commit.imm.0 as usize;
        while applied < committed {
            if !holds(&log, applied)? {
                return Err(format!("entry {applied} is committed, and is not there").into());
            }
            applied += 1;
        }
    }
    let held = (0..ENTRIES).map(|number| holds(&log, number)).collect::<Result<_>>()?;
    witness.held.borrow_mut().insert(host.name().to_owned(), held);
    Ok(())
}

/// What the tasks of the leader share: how many entries each follower has.
type Held = Rc<RefCell<[usize; FOLLOWERS.len()]>>;

async fn connect(host: &Host, to: &str) -> Result<Connection> {
    let address = (host.addr_of(to), PORT).into();
    Ok(Connector::new(&host.manager()?).connect_async(address).await?)
}

/// Brings the entries to one follower.
async fn replicate(host: Host, to: usize, held: Held, fence: Fence) -> Result<()> {
    let mut entries = connect(&host, FOLLOWERS[to]).await?;
    let place = entries.pd().alloc_mr(12, Access::LOCAL_WRITE)?;
    entries.post_recv([place.recv(0, 0..12)])?;
    let mut commits = connect(&host, FOLLOWERS[to]).await?;
    entries.recv_cq().next().await;
    let (mut addr, mut rkey) = ([0; 8], [0; 4]);
    place.read_at(0, &mut addr)?;
    place.read_at(8, &mut rkey)?;
    let (addr, rkey) = (u64::from_le_bytes(addr), Rkey(u32::from_le_bytes(rkey)));
    let own = entries.pd().alloc_mr(ENTRIES * ENTRY, Access::LOCAL_WRITE)?;
    for number in 0..ENTRIES {
        let at = number * ENTRY;
        own.write_at(at, &entry(number))?;
        let remote = Remote { addr: addr + at as u64, rkey };
        entries.post_send([SendWr::new(0, SendOp::Write(remote), own.data(at..at + ENTRY))])?;
        if fence == Fence::Completion && entries.send_cq().next().await.status != WcStatus::Success
        {
            // The follower is gone; the other one is a majority with the leader.
            return Ok(());
        }
        held.borrow_mut()[to] = number + 1;
        let committed = Imm(number as u32 + 1);
        commits.post_send([SendWr::new(0, SendOp::SendImm(committed), Data::EMPTY)])?;
        if commits.send_cq().next().await.status != WcStatus::Success {
            return Ok(());
        }
    }
    Ok(())
}

/// Replicates to both followers, and acknowledges to the client what a majority has.
async fn lead(host: Host, witness: Rc<Witness>, fence: Fence) -> Result<()> {
    let held = Held::default();
    for to in 0..FOLLOWERS.len() {
        let (there, held) = (host.clone(), Rc::clone(&held));
        host.spawn(async move {
            // A follower that is gone ends this task and not the leader.
            let _ = replicate(there, to, held, fence).await;
        });
    }
    while witness.acknowledged.get() < ENTRIES && host.now() < PATIENCE {
        host.sleep(Duration::from_micros(20)).await;
        let most = held.borrow().iter().copied().max().unwrap_or(0);
        witness.acknowledged.set(most.max(witness.acknowledged.get()));
    }
    Ok(())
}

/// Plans what goes wrong in a world, and when; its seed decides.
fn plan_faults(world: &mut World, leader: HostId, followers: [HostId; 2]) {
    let micros = |world: &mut World, bound| Duration::from_micros(world.random(bound));
    let loss = world.random(50) as f64 / 1000.0;
    world.at(Duration::ZERO, Fault::Loss(loss));
    if world.random(2) == 0 {
        let at = micros(world, 3000);
        let cut_off = followers[world.random(2) as usize];
        world.at(at, Fault::Partition(vec![cut_off]));
        let end = at + micros(world, 2000);
        world.at(end, Fault::Heal);
    }
    if world.random(2) == 0 {
        let slow = followers[world.random(2) as usize];
        let lag = micros(world, 200);
        world.at(Duration::ZERO, Fault::Slow(slow, lag));
    }
    if world.random(4) == 0 {
        let at = micros(world, 5000);
        world.at(at, Fault::Crash(leader));
    }
}

/// One world.
fn try_seed(seed: u64, fence: Fence) -> std::result::Result<(), String> {
    try_world(seed, fence, plan_faults)
}

/// One world, in which `plan` lets things go wrong.
fn try_world(
    seed: u64,
    fence: Fence,
    plan: impl FnOnce(&mut World, HostId, [HostId; 2]),
) -> std::result::Result<(), String> {
    let fail = |e: WorldError| e.to_string();
    let mut world = World::new(seed).map_err(fail)?;
    let witness = Rc::new(Witness::default());
    let followers = FOLLOWERS.map(|name| {
        let witness = Rc::clone(&witness);
        world.host(name, move |host| follow(host, Rc::clone(&witness)))
    });
    let leaders = Rc::clone(&witness);
    let leader = world.server("leader", move |host| lead(host, Rc::clone(&leaders), fence));
    plan(&mut world, leader, followers);
    world.run().map_err(fail)?;
    // What the client was promised has to outlive the leader.
    let held = witness.held.borrow();
    for number in 0..witness.acknowledged.get() {
        if !held.values().any(|log| log[number]) {
            return Err(format!("seed {seed}: entry {number} was acknowledged, and is lost"));
        }
    }
    Ok(())
}

/// The first seed below `seeds` with which the log fails, and how.
fn search(seeds: u64, fence: Fence) -> Option<(u64, String)> {
    (0..seeds).find_map(|seed| try_seed(seed, fence).err().map(|why| (seed, why)))
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| args.get(at).and_then(|arg| arg.parse::<u64>().ok());
    if let (Some("broken"), Some(seed)) = (args.first().map(String::as_str), number(1)) {
        println!("{:?}", try_seed(seed, Fence::Missing));
        return ExitCode::SUCCESS;
    }
    let seeds = number(0).unwrap_or(100);
    match search(seeds, Fence::Missing) {
        Some((seed, why)) => println!("without a fence, found with seed {seed}: {why}"),
        None => {
            println!("without a fence, {seeds} seeds found nothing");
            return ExitCode::FAILURE;
        }
    }
    match search(seeds, Fence::Completion) {
        Some((_, why)) => {
            println!("with a fence: {why}");
            ExitCode::FAILURE
        }
        None => {
            println!("with a fence, {seeds} seeds found nothing");
            ExitCode::SUCCESS
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_find_the_missing_fence_and_nothing_else() {
        assert!(search(1000, Fence::Missing).is_some());
        assert_eq!(search(50, Fence::Completion), None);
    }

    #[test]
    fn without_faults_the_missing_fence_goes_unnoticed() {
        for seed in 0..20 {
            assert_eq!(try_world(seed, Fence::Missing, |_, _, _| {}), Ok(()));
        }
    }

    #[test]
    fn a_seed_finds_the_same_again() {
        let (seed, why) = search(1000, Fence::Missing).expect("found");
        assert_eq!(try_seed(seed, Fence::Missing), Err(why));
    }
}
