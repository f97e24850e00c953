//! tarpc over TCP, with bincode.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use futures::{StreamExt as _, future};
use serde_bytes::ByteBuf;
use tarpc::server::{BaseChannel, Channel as _};
use tarpc::tokio_serde::formats::Bincode;
use tarpc::tokio_util::codec::LengthDelimitedCodec;
use tarpc::{client, context, serde_transport};
use tokio::net::{TcpListener, TcpStream};

use super::BLOB;

#[tarpc::service]
trait Calls {
    async fn echo(body: ByteBuf) -> ByteBuf;
    async fn fetch() -> ByteBuf;
}

#[derive(Clone)]
struct Served(Arc<Vec<u8>>);

impl Calls for Served {
    async fn echo(self, _: context::Context, body: ByteBuf) -> ByteBuf {
        body
    }

    async fn fetch(self, _: context::Context) -> ByteBuf {
        ByteBuf::from(self.0.to_vec())
    }
}

fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().max_frame_length(4 * BLOB).new_codec()
}

pub(super) async fn serve() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    let framed = tarpc::tokio_util::codec::Framed::new(stream, codec());
    let channel = BaseChannel::with_defaults(serde_transport::new(framed, Bincode::default()));
    let calls = channel.execute(Served(Arc::new(vec![1; BLOB])).serve());
    calls
        .for_each(|call| {
            tokio::spawn(call);
            future::ready(())
        })
        .await;
    Ok(())
}

#[derive(Clone)]
pub(super) struct Client(CallsClient);

impl Client {
    pub(super) async fn connect(to: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        let framed = tarpc::tokio_util::codec::Framed::new(stream, codec());
        let transport = serde_transport::new(framed, Bincode::default());
        Ok(Self(CallsClient::new(client::Config::default(), transport).spawn()))
    }

    pub(super) async fn echo(&self, body: &[u8]) -> Result<Vec<u8>> {
        let body = ByteBuf::from(body);
        Ok(self.0.echo(context::current(), body).await?.into_vec())
    }

    pub(super) async fn fetch(&self) -> Result<Vec<u8>> {
        Ok(self.0.fetch(context::current()).await?.into_vec())
    }
}
