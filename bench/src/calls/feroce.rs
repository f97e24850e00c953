//! `feroce-rpc`.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use feroce::cm::Manager;
use feroce::{Device, Pool};
use feroce_rpc::{Answer, Limits, Methods, Request, Server, ServerOptions};

use super::{BLOB, FETCHES};

const ECHO: u32 = 1;
const FETCH: u32 = 2;

fn manager() -> Result<Manager> {
    Ok(Manager::with([Device::at(["127.0.0.1".parse()?]).open()?])?)
}

pub(super) async fn serve() -> Result<()> {
    let server = Server::bind(&manager()?, "127.0.0.1:0".parse()?, ServerOptions::default())?;
    println!("{}", server.local_addr());
    // The blob is written into registered memory once, and sent from there.
    let blobs = Arc::new(Pool::new(server.pd(), FETCHES, BLOB)?);
    let methods = Methods::new()
        .on_call(ECHO, async |call| Ok(Answer::Copied(call.to_vec())))
        .on_call(FETCH, move |_| {
            let blobs = Arc::clone(&blobs);
            async move { Ok(Answer::Buf(blobs.take().await, BLOB)) }
        });
    Ok(server.serve(methods).await?)
}

#[derive(Clone)]
pub(super) struct Client {
    client: feroce_rpc::Client,
    pool: Pool,
}

impl Client {
    pub(super) async fn connect(to: SocketAddr) -> Result<Self> {
        let connected = feroce_rpc::Client::connect(&manager()?, to, Limits::default()).await;
        let (client, connection) = connected?;
        tokio::spawn(connection);
        let pool = Pool::new(client.pd(), FETCHES, BLOB)?;
        Ok(Self { client, pool })
    }

    pub(super) async fn echo(&self, body: &[u8]) -> Result<bool> {
        Ok(*self.client.call(Request::new(ECHO, body)).await? == *body)
    }

    pub(super) async fn fetch(&self) -> Result<usize> {
        let request = Request::new(FETCH, &[]).reply_into(self.pool.take().await);
        Ok(self.client.call(request).await?.len())
    }
}
