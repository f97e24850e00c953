//! A server that makes text upper case, and a client of it, in one process.
//!
//! ```text
//! cargo run -p feroce-rpc --example upper -- some words
//! ```

use feroce::Device;
use feroce::cm::Manager;
use feroce_rpc::{Answer, Client, Incoming, Limits, Request, Server, ServerOptions, Status};

/// The only method.
const UPPER: u32 = 1;

async fn answer(call: Incoming) -> Result<Answer, Status> {
    match call.method {
        UPPER => Ok(Answer::Copied(call.to_ascii_uppercase())),
        _ => Err(Status::Handler(1)),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let manager = Manager::with([Device::at(["127.0.0.1".parse()?]).open()?])?;
    let server = Server::bind(&manager, "127.0.0.1:0".parse()?, ServerOptions::default())?;
    let (at, shutdown) = (server.local_addr(), server.shutdown());
    let serving = tokio::spawn(server.serve(tower::service_fn(answer)));

    let (client, connection) = Client::connect(&manager, at, Limits::default()).await?;
    tokio::spawn(connection);
    for word in std::env::args().skip(1) {
        let reply = client.call(Request::new(UPPER, word.as_bytes())).await?;
        println!("{}", String::from_utf8_lossy(&reply));
    }
    shutdown.begin();
    serving.await??;
    Ok(())
}
