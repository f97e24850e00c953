//! A shared receive queue: one pool of buffers serves all clients, however many there are.
//!
//! Without it a server needs buffers for the worst case of each client. With it a buffer belongs to
//! the next message, of whichever client, and one completion queue says whose it was.
//!
//! ```text
//! cargo run -p feroce --example srq_server
//! ```

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;

use feroce::cm::{Connection, Connector, Listener, Manager};
use feroce::{Access, QpCap, Qpn, SendOp, SendWr, WcOpcode, WcStatus};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const CLIENTS: usize = 8;
const CALLS: u64 = 50;
/// Two for each client: one for its message, one until the answer to the last message is out. A
/// message that finds no buffer is refused and comes again later, which costs time.
const BUFFERS: u64 = 2 * CLIENTS as u64;
const WORD: usize = 8;

/// The place of a buffer.
fn buffer(number: u64) -> std::ops::Range<usize> {
    let at = number as usize * WORD;
    at..at + WORD
}

/// Answers each number with its square.
fn serve(manager: &Manager, listener: &Listener) -> Result<BTreeMap<Qpn, u64>> {
    let context = manager.context_for(listener.local_addr().ip())?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(1024)?);
    let srq = pd.create_srq(BUFFERS as u32, 1)?;
    let memory = pd.alloc_mr(BUFFERS as usize * WORD, Access::LOCAL_WRITE)?;
    srq.post_recv((0..BUFFERS).map(|i| memory.recv(i, buffer(i))))?;

    let mut clients: BTreeMap<Qpn, Connection> = BTreeMap::new();
    for _ in 0..CLIENTS {
        let request = listener.accept()?.pd(&pd).cqs(&cq, &cq).srq(&srq).cap(QpCap::new(16, 0));
        let client = request.accept()?;
        clients.insert(client.qpn(), client);
    }
    let mut answered = BTreeMap::new();
    while answered.values().sum::<u64>() < CLIENTS as u64 * CALLS {
        let cqe = cq.wait()?;
        assert_eq!(cqe.status, WcStatus::Success);
        if cqe.opcode != WcOpcode::Recv {
            // The answer is out: its buffer takes the next message, of any client.
            srq.post_recv([memory.recv(cqe.wr_id, buffer(cqe.wr_id))])?;
            *answered.entry(cqe.qpn).or_default() += 1;
            continue;
        }
        let mut word = [0; WORD];
        memory.read_at(buffer(cqe.wr_id).start, &mut word)?;
        let number = u64::from_be_bytes(word);
        memory.write_at(buffer(cqe.wr_id).start, &(number * number).to_be_bytes())?;
        let client = clients.get_mut(&cqe.qpn).ok_or("a message of no client")?;
        let data = memory.data(buffer(cqe.wr_id));
        client.post_one(SendWr::new(cqe.wr_id, SendOp::Send, data))?;
    }
    for client in clients.values() {
        client.wait_disconnected()?;
    }
    Ok(answered)
}

fn call(manager: &Manager, to: SocketAddr) -> Result {
    let mut server = Connector::new(manager).connect(to)?;
    let memory = server.pd().alloc_mr(2 * WORD, Access::LOCAL_WRITE)?;
    for number in 0..CALLS {
        memory.write_at(0, &number.to_be_bytes())?;
        server.post_recv([memory.recv(0, WORD..2 * WORD)])?;
        server.post_one(SendWr::new(0, SendOp::Send, memory.data(0..WORD)))?;
        let (sent, received) = (server.send_cq().wait()?, server.recv_cq().wait()?);
        assert_eq!((sent.status, received.status), (WcStatus::Success, WcStatus::Success));
        let mut word = [0; WORD];
        memory.read_at(WORD, &mut word)?;
        assert_eq!(u64::from_be_bytes(word), number * number);
    }
    server.disconnect()?;
    Ok(())
}

fn main() -> Result {
    let manager = Manager::new();
    let listener = Listener::bind(&manager, "127.80.7.1:0".parse()?)?;
    let to = listener.local_addr();
    let answered = thread::scope(|scope| -> Result<_> {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| call(&manager, to))).collect();
        let answered = serve(&manager, &listener)?;
        for client in clients {
            client.join().map_err(|_| "a client panicked")??;
        }
        Ok(answered)
    })?;
    println!("{BUFFERS} buffers served {} clients, {CALLS} calls of each", answered.len());
    assert_eq!(answered.len(), CLIENTS);
    assert!(answered.values().all(|calls| *calls == CALLS));
    let counters = manager.context_for(to.ip())?.counters();
    println!("messages that found no buffer and came again: {}", counters.send_rnr_err);
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_runs() {
        super::main().expect("the example works");
    }
}
