//! tonic: unary calls whose messages are bytes, without protobuf.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use anyhow::Result;
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{Service, http};
use tonic::server::{NamedService, UnaryService};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use bytes::{Buf as _, BufMut as _};

use super::BLOB;

const ECHO: &str = "/calls.Calls/Echo";
const FETCH: &str = "/calls.Calls/Fetch";

#[derive(Clone, Copy, Default)]
struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut item = vec![0; from.remaining()];
        from.copy_to_slice(&mut item);
        Ok(Some(item))
    }
}

/// A unary method.
enum Method {
    Echo,
    Fetch(Arc<Vec<u8>>),
}

impl UnaryService<Vec<u8>> for Method {
    type Response = Vec<u8>;
    type Future = std::future::Ready<Result<Response<Vec<u8>>, Status>>;

    fn call(&mut self, request: Request<Vec<u8>>) -> Self::Future {
        let reply = match self {
            Self::Echo => request.into_inner(),
            Self::Fetch(blob) => blob.to_vec(),
        };
        std::future::ready(Ok(Response::new(reply)))
    }
}

#[derive(Clone)]
struct Calls(Arc<Vec<u8>>);

impl NamedService for Calls {
    const NAME: &'static str = "calls.Calls";
}

impl Service<http::Request<Body>> for Calls {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let is_fetch = request.uri().path() == FETCH;
        let method = if is_fetch { Method::Fetch(Arc::clone(&self.0)) } else { Method::Echo };
        let mut grpc = tonic::server::Grpc::new(Bytes);
        Box::pin(async move { Ok(grpc.unary(method, request).await) })
    }
}

pub(super) async fn serve() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let server = Server::builder().add_service(Calls(Arc::new(vec![1; BLOB])));
    Ok(server.serve_with_incoming(incoming).await?)
}

#[derive(Clone)]
pub(super) struct Client(tonic::client::Grpc<Channel>);

impl Client {
    pub(super) async fn connect(to: SocketAddr) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{to}"))?.tcp_nodelay(true);
        Ok(Self(tonic::client::Grpc::new(endpoint.connect().await?)))
    }

    async fn call(&self, path: &'static str, body: &[u8]) -> Result<Vec<u8>> {
        let mut grpc = self.0.clone();
        grpc.ready().await?;
        let path = http::uri::PathAndQuery::from_static(path);
        let reply = grpc.unary(Request::new(body.to_vec()), path, Bytes).await?;
        Ok(reply.into_inner())
    }

    pub(super) async fn echo(&self, body: &[u8]) -> Result<Vec<u8>> {
        self.call(ECHO, body).await
    }

    pub(super) async fn fetch(&self) -> Result<Vec<u8>> {
        self.call(FETCH, &[]).await
    }
}
