//! Connections by address: a server that offers a page of memory, and clients that read it.
//!
//! The two ends agree on what they need to know by *private data*, a few bytes that travel with the
//! connection's own messages: the client says which version of the protocol it speaks, the server
//! where the page is. No other channel is needed.
//!
//! ```text
//! cargo run -p feroce --example cm_server                             # both ends
//! cargo run -p feroce --example cm_server -- listen 127.0.0.1:7471    # or one here
//! cargo run -p feroce --example cm_server -- connect 127.0.0.1:7471   # and one elsewhere
//! ```

use std::net::SocketAddr;
use std::thread;

use feroce::cm::{CmError, ConnParam, Connector, Listener, Manager};
use feroce::{Access, Error, Remote, Rkey, SendOp, SendWr, WcStatus};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The first byte of a client's private data.
const VERSION: u8 = 3;
const PAGE: usize = 4096;
const TEXT: &[u8] = b"What the server wrote before anyone asked";

/// Where the page is, as the private data of a reply.
fn to_bytes(remote: Remote) -> Vec<u8> {
    [remote.addr.to_be_bytes().as_slice(), &remote.rkey.0.to_be_bytes()].concat()
}

fn from_bytes(bytes: &[u8]) -> Option<Remote> {
    let (addr, rest) = bytes.split_first_chunk()?;
    let (rkey, _) = rest.split_first_chunk()?;
    Some(Remote { addr: u64::from_be_bytes(*addr), rkey: Rkey(u32::from_be_bytes(*rkey)) })
}

/// Serves so many clients, or clients without end.
fn serve(manager: &Manager, listener: &Listener, clients: Option<usize>) -> Result {
    // One protection domain and one page for all clients, which may read it and nothing else.
    let pd = manager.context_for(listener.local_addr().ip())?.alloc_pd()?;
    let page = pd.alloc_mr(PAGE, Access::REMOTE_READ)?;
    page.write_at(0, TEXT)?;
    let reply = ConnParam { private_data: to_bytes(page.remote(0)), ..ConnParam::default() };

    thread::scope(|scope| {
        let mut served = 0;
        while clients != Some(served) {
            let request = listener.accept()?;
            if request.private_data().first() != Some(&VERSION) {
                println!("server: a client of another version is rejected");
                request.reject(b"speak version 3")?;
                continue;
            }
            let client = request.pd(&pd).param(reply.clone()).accept()?;
            served += 1;
            // From here on the client reads by itself, and the server waits until it leaves.
            scope.spawn(move || client.wait_disconnected());
        }
        Ok(())
    })
}

fn read_page(manager: &Manager, to: SocketAddr) -> Result<Vec<u8>> {
    let mut server = Connector::new(manager).private_data(&[VERSION]).connect(to)?;
    let remote = from_bytes(server.private_data()).ok_or("the reply is too short")?;
    let copy = server.pd().alloc_mr(PAGE, Access::LOCAL_WRITE)?;
    server.post_one(SendWr::new(0, SendOp::Read(remote), copy.data(0..PAGE)))?;
    match server.send_cq().wait()?.status {
        WcStatus::Success => {}
        status => return Err(format!("the page cannot be read: {status}").into()),
    }
    let mut text = vec![0; TEXT.len()];
    copy.read_at(0, &mut text)?;
    server.disconnect()?;
    println!("client: read {:?}", String::from_utf8_lossy(&text));
    Ok(text)
}

fn both_ends() -> Result {
    let manager = Manager::new();
    let listener = Listener::bind(&manager, "127.80.5.1:0".parse()?)?;
    let to = listener.local_addr();
    println!("server: listening at {to}");
    thread::scope(|scope| {
        let server = scope.spawn(|| serve(&manager, &listener, Some(2)));
        assert_eq!(read_page(&manager, to)?, TEXT);
        be_rejected(&manager, to)?;
        assert_eq!(read_page(&manager, to)?, TEXT);
        server.join().map_err(|_| "the server panicked")?
    })
}

/// A client that the server does not want learns why.
fn be_rejected(manager: &Manager, to: SocketAddr) -> Result {
    match Connector::new(manager).private_data(&[VERSION - 1]).connect(to) {
        Err(Error::Cm(CmError::Rejected { private_data, .. })) => {
            let reason = String::from_utf8_lossy(&private_data);
            println!("client: rejected, {:?}", reason.trim_end_matches('\0'));
            assert!(private_data.starts_with(b"speak version 3"));
            Ok(())
        }
        other => Err(format!("expected to be rejected: {other:?}").into()),
    }
}

fn main() -> Result {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", address] => {
            let manager = Manager::new();
            serve(&manager, &Listener::bind(&manager, address.parse()?)?, None)
        }
        ["connect", address] => read_page(&Manager::new(), address.parse()?).map(drop),
        _ => both_ends(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_runs() {
        super::both_ends().expect("the example works");
    }
}
