//! Atomics: clients draw tickets from a counter of the server, and take turns by a lock in its
//! memory. The server makes no call for it.
//!
//! ```text
//! cargo run -p feroce --example atomics
//! ```

use std::collections::BTreeSet;
use std::thread;

use feroce::{Access, Context, Device, Endpoint, Mr, Qp, QpCap, Remote, SendOp, SendWr, WcStatus};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const CLIENTS: u64 = 4;
const TICKETS: u64 = 100;
const TURNS: u64 = 20;

/// Where the words stand in the memory of the server. Atomics are for 8 bytes, aligned to 8.
const COUNTER: usize = 0;
const LOCK: usize = 8;
const SUM: usize = 16;

const FREE: u64 = 0;

/// A client: its queue pair, and 8 bytes for what a request returns.
struct Client {
    name: u64,
    qp: Qp,
    word: Mr,
}

impl Client {
    fn new(context: &Context, name: u64) -> Result<Self> {
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
        let qp = pd.rc_qp(&cq, &cq, QpCap::new(4, 0)).create()?;
        let word = pd.alloc_mr(8, Access::LOCAL_WRITE)?;
        Ok(Self { name, qp, word })
    }

    /// Executes one request at the server. Returns the word that it brings back.
    fn execute(&mut self, op: SendOp) -> Result<u64> {
        self.qp.post_one(SendWr::new(0, op, self.word.data(0..8)))?;
        match self.qp.send_cq().wait()?.status {
            WcStatus::Success => {}
            status => return Err(format!("{status}").into()),
        }
        let mut bytes = [0; 8];
        self.word.read_at(0, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn draw(&mut self, remote: Remote) -> Result<u64> {
        self.execute(SendOp::FetchAdd { remote, add: 1 })
    }

    /// Takes the lock: writes the name of the client there if the word says that it is free.
    fn lock(&mut self, remote: Remote) -> Result {
        let op = SendOp::CmpSwap { remote, compare: FREE, swap: self.name };
        while self.execute(op)? != FREE {
            thread::yield_now();
        }
        Ok(())
    }

    fn unlock(&mut self, remote: Remote) -> Result {
        let op = SendOp::CmpSwap { remote, compare: self.name, swap: FREE };
        assert_eq!(self.execute(op)?, self.name, "only its holder opens a lock");
        Ok(())
    }

    /// Adds to a word by a READ and a WRITE, which others could disturb: the lock is for that.
    fn add_slowly(&mut self, remote: Remote, what: u64) -> Result {
        let old = self.execute(SendOp::Read(remote))?;
        self.word.write_at(0, &(old + what).to_ne_bytes())?;
        self.execute(SendOp::Write(remote)).map(drop)
    }
}

fn main() -> Result {
    let there = Device::at(["127.80.3.1".parse()?]).open()?;
    let here = Device::at(["127.80.3.2".parse()?]).open()?;

    let (pd, cq) = (there.alloc_pd()?, there.create_cq(16)?);
    let all =
        Access::LOCAL_WRITE | Access::REMOTE_ATOMIC | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let words = pd.alloc_mr(24, all)?;
    let serve = |client: Endpoint| -> Result<Qp> {
        let mut qp = pd.rc_qp(&cq, &cq, QpCap::new(0, 0)).create()?;
        qp.connect(&client)?;
        Ok(qp)
    };

    // The server keeps its ends alive, and that is all it does.
    let (mut ends, mut clients) = (Vec::new(), Vec::new());
    for name in 1..=CLIENTS {
        let mut client = Client::new(&here, name)?;
        let end = serve(client.qp.endpoint()?)?;
        client.qp.connect(&end.endpoint()?)?;
        ends.push(end);
        clients.push(client);
    }
    let (counter, lock, sum) = (words.remote(COUNTER), words.remote(LOCK), words.remote(SUM));
    let work = |mut client: Client| -> Result<Vec<u64>> {
        let tickets = (0..TICKETS).map(|_| client.draw(counter)).collect::<Result<_>>()?;
        for _ in 0..TURNS {
            client.lock(lock)?;
            client.add_slowly(sum, client.name)?;
            client.unlock(lock)?;
        }
        Ok(tickets)
    };
    let drawn = thread::scope(|scope| -> Result<BTreeSet<u64>> {
        let threads: Vec<_> =
            clients.into_iter().map(|client| scope.spawn(move || work(client))).collect();
        let mut drawn = BTreeSet::new();
        for thread in threads {
            drawn.extend(thread.join().map_err(|_| "a client panicked")??);
        }
        Ok(drawn)
    })?;

    assert_eq!(drawn, (0..CLIENTS * TICKETS).collect(), "each ticket exactly once");
    println!("{CLIENTS} clients drew {} tickets, each of them once", drawn.len());
    let mut bytes = [0; 8];
    words.read_at(SUM, &mut bytes)?;
    let expected = TURNS * (1..=CLIENTS).sum::<u64>();
    assert_eq!(u64::from_ne_bytes(bytes), expected, "no addition was lost");
    println!("{} additions under the lock, none lost: {expected}", CLIENTS * TURNS);
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_runs() {
        super::main().expect("the example works");
    }
}
