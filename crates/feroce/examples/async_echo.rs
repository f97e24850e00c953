//! An echo server and its clients as tasks. Completions are futures, which need no runtime of a
//! certain kind; here it is tokio's.
//!
//! ```text
//! cargo run -p feroce --example async_echo
//! ```

use std::net::SocketAddr;

use feroce::cm::{Activity, Connection, Connector, Listener, Manager};
use feroce::{Access, Device, QpCap, Router, SendOp, SendWr, WcOpcode, WcStatus};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const CLIENTS: usize = 3;
const CALLS: usize = 8;
const BUFFER: usize = 64;

/// Part `i` of a buffer.
fn part(i: usize) -> std::ops::Range<usize> {
    i * BUFFER..(i + 1) * BUFFER
}

/// Sends each message back to the client that sent it, until the client disconnects.
async fn serve(request: feroce::cm::Request) -> Result<usize> {
    let mut prepared = request.cap(QpCap::new(CALLS as u32, CALLS as u32)).prepare()?;
    let memory = prepared.pd().alloc_mr(CALLS * BUFFER, Access::LOCAL_WRITE)?;
    // The receives are there before the client may send.
    prepared.post_recv((0..CALLS).map(|i| memory.recv(i as u64, part(i))))?;
    let mut client = prepared.accept_async().await?;
    let mut echoed = 0;
    loop {
        let cqe = match client.next().await? {
            Activity::Completion(cqe) => cqe,
            Activity::Disconnected => return Ok(echoed),
        };
        let i = cqe.wr_id as usize;
        match (cqe.status, cqe.opcode) {
            (WcStatus::Success, WcOpcode::Recv) => {
                let message = part(i).start..part(i).start + cqe.byte_len as usize;
                client.post_one(SendWr::new(cqe.wr_id, SendOp::Send, memory.data(message)))?;
            }
            // The echo is on its way: its buffer can take the next message.
            (WcStatus::Success, _) => {
                client.post_recv([memory.recv(cqe.wr_id, part(i))])?;
                echoed += 1;
            }
            // What was posted and not used when the client left.
            (WcStatus::Flushed, _) => {}
            (status, _) => return Err(format!("the server's request failed: {status}").into()),
        }
    }
}

/// Calls the server, all calls at once over one connection: each completion goes to the future of
/// its request.
async fn call(manager: Manager, to: SocketAddr, name: usize) -> Result {
    let connector = Connector::new(&manager).cap(QpCap::new(CALLS as u32, CALLS as u32));
    let mut server: Connection = connector.connect_async(to).await?;
    let memory = server.pd().alloc_mr(2 * CALLS * BUFFER, Access::LOCAL_WRITE)?;
    let (sends, receives) = (Router::new(server.send_cq()), Router::new(server.recv_cq()));
    let mut calls = Vec::new();
    for i in 0..CALLS {
        let message = format!("call {i} of client {name}");
        memory.write_at(part(i).start, message.as_bytes())?;
        let length = message.len();
        let answer = receives.recv(&mut server, memory.recv(i as u64, part(CALLS + i)))?;
        let data = memory.data(part(i).start..part(i).start + length);
        let sent = sends.send(&mut server, SendWr::new(i as u64, SendOp::Send, data))?;
        calls.push((message, sent, answer));
    }
    for (message, sent, answer) in calls {
        let (sent, answer) = (sent.await, answer.await);
        assert_eq!((sent.status, answer.status), (WcStatus::Success, WcStatus::Success));
        let mut bytes = vec![0; answer.byte_len as usize];
        memory.read_at(part(CALLS + answer.wr_id as usize).start, &mut bytes)?;
        assert_eq!(bytes, message.as_bytes());
    }
    println!("client {name}: {CALLS} calls echoed");
    server.disconnect_async().await?;
    Ok(())
}

async fn run() -> Result {
    let here = Manager::with([Device::at(["127.80.4.1".parse()?]).open()?])?;
    let there = Manager::with([Device::at(["127.80.4.2".parse()?]).open()?])?;
    let listener = Listener::bind(&there, "127.80.4.2:0".parse()?)?;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|name| tokio::spawn(call(here.clone(), listener.local_addr(), name)))
        .collect();
    let mut servers = Vec::new();
    for _ in 0..CLIENTS {
        servers.push(tokio::spawn(serve(listener.accept_async().await?)));
    }
    for client in clients {
        client.await??;
    }
    let mut echoed = 0;
    for server in servers {
        echoed += server.await??;
    }
    println!("the server echoed {echoed} messages");
    assert_eq!(echoed, CLIENTS * CALLS);
    Ok(())
}

fn main() -> Result {
    tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(run())
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_runs() {
        super::main().expect("the example works");
    }
}
