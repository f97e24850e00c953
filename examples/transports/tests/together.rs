//! tonic and tarpc between two adapters.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf as _, BufMut as _};
use feroce::Device;
use feroce::cm::Manager;
use feroce_rpc::{Client, Limits, Server, ServerOptions};
use feroce_transports::Caller;
use feroce_transports::tarpc::{Transport, server};
use feroce_transports::tonic::{Channel, Grpc};
use futures::StreamExt as _;
use tarpc::context;
use tarpc::server::{BaseChannel, Channel as _};
use tokio::sync::Notify;
use tokio_stream::iter;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{NamedService, StreamingService, UnaryService};
use tonic::{Code, Request, Response, Status};
use tower_service::Service;

fn manager(ip: &str) -> Manager {
    Manager::with([Device::at([ip.parse().unwrap()]).open().unwrap()]).unwrap()
}

fn bind(ip: &str) -> (Server, SocketAddr) {
    let at = SocketAddr::new(ip.parse().unwrap(), 0);
    let server = Server::bind(&manager(ip), at, ServerOptions::default()).unwrap();
    let at = server.local_addr();
    (server, at)
}

async fn connect(ip: &str, to: SocketAddr) -> Client {
    let (client, connection) = Client::connect(&manager(ip), to, Limits::default()).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tarpc::service]
trait Words {
    async fn repeat(word: String, times: u32) -> String;
    async fn never();
}

#[derive(Clone, Default)]
struct Speaker {
    has_begun: Arc<Notify>,
    was_dropped: Arc<Notify>,
}

/// Notifies when it is dropped.
struct Dropped(Arc<Notify>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl Words for Speaker {
    async fn repeat(self, _: context::Context, word: String, times: u32) -> String {
        word.repeat(times as usize)
    }

    async fn never(self, _: context::Context) {
        let _dropped = Dropped(self.was_dropped);
        self.has_begun.notify_one();
        std::future::pending().await
    }
}

/// A deadline that no test reaches.
fn some_day() -> context::Context {
    let mut context = context::current();
    context.deadline = Instant::now() + Duration::from_secs(3600);
    context
}

#[tokio::test]
async fn tarpc_calls_and_cancels() {
    let (at, to) = bind("127.0.0.76");
    let (handler, requests) = server();
    tokio::spawn(at.serve(handler));
    let speaker = Speaker::default();
    let channel = BaseChannel::with_defaults(requests);
    let calls = channel.execute(speaker.clone().serve());
    tokio::spawn(calls.for_each(|call| async {
        tokio::spawn(call);
    }));
    // Two clients, whose requests have the same numbers.
    let long = Caller::with_long_responses(connect("127.0.0.75", to).await, 4).unwrap();
    let config = tarpc::client::Config::default;
    let one = WordsClient::new(config(), Transport::new(long)).spawn();
    let two = WordsClient::new(config(), Transport::new(connect("127.0.0.77", to).await)).spawn();
    let (first, second) =
        tokio::join!(one.repeat(some_day(), "a".into(), 3), two.repeat(some_day(), "b".into(), 2),);
    assert_eq!((first.unwrap(), second.unwrap()), ("aaa".into(), "bb".into()));
    // Longer than a message, in both directions.
    let word = "x".repeat(20_000);
    assert_eq!(one.repeat(some_day(), word.clone(), 5).await.unwrap().len(), 100_000);
    // The other client has no buffer for such a response, and is told so.
    let refused = two.repeat(some_day(), word, 5).await.unwrap_err();
    let tarpc::client::RpcError::Server(refused) = refused else { panic!("{refused}") };
    assert_eq!(refused.detail, feroce_rpc::Status::ReplyTooLong.to_string());
    // Dropping a call drops its handler.
    let caller = two.clone();
    let never = tokio::spawn(async move { caller.never(some_day()).await });
    speaker.has_begun.notified().await;
    never.abort();
    speaker.was_dropped.notified().await;
    assert_eq!(two.repeat(some_day(), "c".into(), 1).await.unwrap(), "c");
}

/// Messages that are bytes.
#[derive(Clone, Copy, Default)]
struct Plain;

impl Codec for Plain {
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

impl Encoder for Plain {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut item = vec![0; from.remaining()];
        from.copy_to_slice(&mut item);
        Ok(Some(item))
    }
}

type Boxed<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;

/// Echoes a message with its metadata; refuses an empty one.
struct Echo;

impl UnaryService<Vec<u8>> for Echo {
    type Response = Vec<u8>;
    type Future = Boxed<Vec<u8>>;

    fn call(&mut self, request: Request<Vec<u8>>) -> Self::Future {
        Box::pin(async move {
            let name = request.metadata().get("name").cloned();
            let body = request.into_inner();
            if body.is_empty() {
                return Err(Status::invalid_argument("an empty message"));
            }
            let mut response = Response::new(body);
            name.and_then(|name| response.metadata_mut().insert("name", name));
            Ok(response)
        })
    }
}

/// Answers each message of a stream with its length.
struct Lengths;

impl StreamingService<Vec<u8>> for Lengths {
    type Response = Vec<u8>;
    type ResponseStream = Pin<Box<dyn futures::Stream<Item = Result<Vec<u8>, Status>> + Send>>;
    type Future = Boxed<Self::ResponseStream>;

    fn call(&mut self, request: Request<tonic::Streaming<Vec<u8>>>) -> Self::Future {
        let lengths = request.into_inner().map(|message| Ok(vec![message?.len() as u8]));
        Box::pin(async move { Ok(Response::new(Box::pin(lengths) as _)) })
    }
}

/// What tonic's code generator would make.
#[derive(Clone)]
struct Tests;

impl NamedService for Tests {
    const NAME: &'static str = "test.Tests";
}

impl Service<http::Request<Body>> for Tests {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let mut grpc = tonic::server::Grpc::new(Plain);
        Box::pin(async move {
            Ok(match request.uri().path() {
                "/test.Tests/Echo" => grpc.unary(Echo, request).await,
                "/test.Tests/Lengths" => grpc.streaming(Lengths, request).await,
                "/test.Tests/Never" => std::future::pending().await,
                _ => Status::unimplemented("no such method").into_http(),
            })
        })
    }
}

fn path(text: &'static str) -> http::uri::PathAndQuery {
    http::uri::PathAndQuery::from_static(text)
}

#[tokio::test]
async fn tonic_calls() {
    let (at, to) = bind("127.0.0.79");
    let routes = tonic::service::Routes::new(Tests);
    tokio::spawn(at.serve(Grpc::new(routes, Limits::default().longest)));
    let client = connect("127.0.0.78", to).await;
    let caller = Caller::with_long_responses(client, 4).unwrap();
    let mut grpc = tonic::client::Grpc::new(Channel::new(caller));

    // Metadata travels in both directions.
    let mut request = Request::new(b"hello".to_vec());
    request.metadata_mut().insert("name", "value".parse().unwrap());
    let response = grpc.unary(request, path("/test.Tests/Echo"), Plain).await.unwrap();
    assert_eq!(response.metadata().get("name").unwrap(), "value");
    assert_eq!(response.into_inner(), b"hello");

    let long = vec![7; 300_000];
    let response = grpc.unary(Request::new(long.clone()), path("/test.Tests/Echo"), Plain).await;
    assert_eq!(response.unwrap().into_inner(), long);

    // Errors: of the method, of the service, of the length, of time.
    let code = |result: Result<Response<Vec<u8>>, Status>| result.unwrap_err().code();
    let empty = grpc.unary(Request::new(vec![]), path("/test.Tests/Echo"), Plain).await;
    assert_eq!(code(empty), Code::InvalidArgument);
    let unknown = grpc.unary(Request::new(vec![1]), path("/other.Service/Echo"), Plain).await;
    assert_eq!(code(unknown), Code::Unimplemented);
    let too_long = Request::new(vec![1; 2 << 20]);
    let too_long = grpc.unary(too_long, path("/test.Tests/Echo"), Plain).await;
    assert_eq!(code(too_long), Code::ResourceExhausted);
    let mut late = Request::new(vec![1]);
    late.set_timeout(Duration::from_millis(10));
    let late = grpc.unary(late, path("/test.Tests/Never"), Plain).await;
    assert_eq!(code(late), Code::DeadlineExceeded);

    // Streams are collected.
    let messages = iter([vec![0; 5], vec![0; 9], vec![]]);
    let lengths = grpc.streaming(Request::new(messages), path("/test.Tests/Lengths"), Plain).await;
    let lengths: Vec<_> = lengths.unwrap().into_inner().map(Result::unwrap).collect().await;
    assert_eq!(lengths, [[5], [9], [0]]);
}
