//! tonic: a gRPC call is a call, without HTTP/2.
//!
//! Clients that tonic's code generator makes take any `GrpcService`, and [`Channel`] is one; its
//! services, alone or together in `tonic::service::Routes`, are served by [`Grpc`]. Names,
//! metadata, trailers and deadlines (`grpc-timeout`) travel.
//!
//! Messages of a stream are collected: a call with many requests begins when the last is there, and
//! many responses arrive together. Streams that go on while their answers do need HTTP/2.
//!
//! The body of a call, and of its reply, is: the length of the head (4 bytes, big-endian), the
//! head, the gRPC messages. The head is lines, each ended by `\n`: the path, or the HTTP status;
//! `name:value` of each header; an empty line; `name:value` of each trailer.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use feroce_rpc::{Answer, Error, Incoming, Status};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use http_body::Body as HttpBody;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use tonic::body::Body;
use tower_service::Service;

use crate::Caller;

type Answering<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// The client's end: give it to the `new` of a generated client, or of `tonic::client::Grpc`.
#[derive(Clone, Debug)]
pub struct Channel {
    caller: Caller,
}

impl Channel {
    /// Calls over the connection of a client.
    pub fn new(caller: impl Into<Caller>) -> Self {
        Self { caller: caller.into() }
    }
}

impl Service<http::Request<Body>> for Channel {
    type Response = http::Response<Body>;
    type Error = tonic::Status;
    type Future = Answering<http::Response<Body>, tonic::Status>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), tonic::Status>> {
        // A call waits for its turn itself.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let caller = self.caller.clone();
        Box::pin(async move {
            let timeout = request.headers().get("grpc-timeout").and_then(timeout);
            let (parts, body) = request.into_parts();
            let longest = caller.longest();
            let body = collect(body, longest).await.map_err(not_collected)?;
            let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
            let message = emit(path, &parts.headers, &body);
            let call = caller.call(&message, timeout);
            // The server drops what is too late when it would answer. A call whose time is over
            // before is dropped here, which cancels it.
            let reply = match timeout {
                Some(limit) => tokio::time::timeout(limit, call).await.map_err(|_| expired())?,
                None => call.await,
            };
            let reply = reply.map_err(|e| status(&e))?;
            let (head, body) = parse(&reply).ok_or_else(|| status(&Error::BadReply))?;
            let code = StatusCode::from_bytes(head.first.as_bytes());
            let code = code.map_err(|_| status(&Error::BadReply))?;
            let messages = Full::new(Bytes::copy_from_slice(body));
            let trailers = (!head.trailers.is_empty()).then_some(Ok(head.trailers));
            let body = messages.with_trailers(std::future::ready(trailers));
            let mut response = http::Response::new(Body::new(body));
            (*response.status_mut(), *response.headers_mut()) = (code, head.headers);
            Ok(response)
        })
    }
}

/// Why a request could not be collected: it is too long, or its stream has failed.
fn not_collected(error: tonic::codegen::StdError) -> tonic::Status {
    if error.is::<LengthLimitError>() {
        return status(&Error::TooLong);
    }
    tonic::Status::from_error(error)
}

fn expired() -> tonic::Status {
    status(&Error::Refused(Status::Expired))
}

/// What gRPC calls an error of a call.
fn status(error: &Error) -> tonic::Status {
    let code = match error {
        Error::Refused(Status::Expired) => tonic::Code::DeadlineExceeded,
        Error::Refused(Status::Cancelled) => tonic::Code::Cancelled,
        Error::Refused(Status::UnknownMethod) => tonic::Code::Unimplemented,
        Error::Refused(Status::RequestTooLong | Status::ReplyTooLong) | Error::TooLong => {
            tonic::Code::ResourceExhausted
        }
        Error::Refused(Status::BadRequest) | Error::BadReply => tonic::Code::Internal,
        _ => tonic::Code::Unavailable,
    };
    tonic::Status::new(code, error.to_string())
}

/// The time of the header `grpc-timeout`: up to eight digits and a unit.
fn timeout(value: &HeaderValue) -> Option<Duration> {
    let (unit, digits) = value.as_bytes().split_last()?;
    let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.len() <= 8)?;
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(count * 3600),
        b'M' => Duration::from_secs(count * 60),
        b'S' => Duration::from_secs(count),
        b'm' => Duration::from_millis(count),
        b'u' => Duration::from_micros(count),
        b'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

/// The gRPC messages of a body, and its trailers.
type Collected = (Bytes, HeaderMap);

async fn collect<B>(body: B, longest: usize) -> Result<Collected, tonic::codegen::StdError>
where
    B: HttpBody<Error: Into<tonic::codegen::StdError>>,
{
    let collected = Limited::new(body, longest).collect().await?;
    let trailers = collected.trailers().cloned().unwrap_or_default();
    Ok((collected.to_bytes(), trailers))
}

fn emit_lines(out: &mut Vec<u8>, map: &HeaderMap) {
    for (name, value) in map {
        // A value has no line end.
        out.extend([name.as_str().as_bytes(), b":", value.as_bytes(), b"\n"].concat());
    }
}

fn emit(first: &str, headers: &HeaderMap, (messages, trailers): &Collected) -> Vec<u8> {
    let mut out = vec![0; 4];
    out.extend([first.as_bytes(), b"\n"].concat());
    emit_lines(&mut out, headers);
    out.push(b'\n');
    emit_lines(&mut out, trailers);
    let len = u32::try_from(out.len() - 4).unwrap_or(u32::MAX);
    out[..4].copy_from_slice(&len.to_be_bytes());
    out.extend(messages);
    out
}

/// What stands before the messages.
#[derive(PartialEq, Eq, Debug)]
struct Head<'a> {
    first: &'a str,
    headers: HeaderMap,
    trailers: HeaderMap,
}

/// The head and the messages; `None` if it is not that.
fn parse(bytes: &[u8]) -> Option<(Head<'_>, &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    let (head, messages) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
    let mut lines = head.strip_suffix(b"\n")?.split(|&byte| byte == b'\n');
    let first = std::str::from_utf8(lines.next()?).ok()?;
    let mut maps = [HeaderMap::new(), HeaderMap::new()];
    let mut at = 0;
    for line in lines {
        if line.is_empty() {
            at += 1;
            continue;
        }
        let colon = line.iter().position(|&byte| byte == b':')?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        let value = HeaderValue::from_bytes(&line[colon + 1..]).ok()?;
        maps.get_mut(at)?.try_append(name, value).ok()?;
    }
    let [headers, trailers] = maps;
    Some((Head { first, headers, trailers }, messages))
}

/// The server's end: a handler for [`Server::serve`](feroce_rpc::Server::serve), made of a tonic
/// service.
#[derive(Clone, Debug)]
pub struct Grpc<S> {
    service: S,
    longest: usize,
}

impl<S> Grpc<S> {
    /// Serves a service, or several in `tonic::service::Routes`. Responses are at most as long as
    /// `longest`, which is also a limit of the server
    /// ([`Limits::longest`](feroce_rpc::Limits::longest)).
    pub fn new(service: S, longest: u32) -> Self {
        Self { service, longest: longest as usize }
    }
}

impl<S, B> Service<Incoming> for Grpc<S>
where
    S: Service<http::Request<Body>, Response = http::Response<B>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
    B: HttpBody<Data: Send, Error: Into<tonic::codegen::StdError>> + Send + 'static,
{
    type Response = Answer;
    type Error = Status;
    type Future = Answering<Answer, Status>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.service.poll_ready(cx).map_err(|never| match never {})
    }

    fn call(&mut self, incoming: Incoming) -> Self::Future {
        let request = request(&incoming);
        drop(incoming);
        let response = request.map(|request| self.service.call(request));
        let longest = self.longest;
        Box::pin(async move {
            let response = response.ok_or(Status::BadRequest)?.await;
            let (parts, body) = response.map_err(|never| match never {})?.into_parts();
            let body = collect(body, longest).await.map_err(|_| Status::ReplyTooLong)?;
            Ok(Answer::Copied(emit(parts.status.as_str(), &parts.headers, &body)))
        })
    }
}

/// The request of a call; `None` if it is none.
fn request(bytes: &[u8]) -> Option<http::Request<Body>> {
    let (head, messages) = parse(bytes)?;
    let uri: Uri = head.first.parse().ok()?;
    let mut request = http::Request::new(Body::new(Full::new(Bytes::copy_from_slice(messages))));
    *request.method_mut() = http::Method::POST;
    (*request.uri_mut(), *request.headers_mut()) = (uri, head.headers);
    *request.version_mut() = http::Version::HTTP_2;
    Some(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_survive_and_what_is_none_is_refused() {
        let map = |pairs: &[(&'static str, &'static str)]| {
            let pairs = pairs.iter().map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            });
            pairs.collect::<HeaderMap>()
        };
        let headers = map(&[("a", "1"), ("b", ""), ("a", "2: 3")]);
        let trailers = map(&[("grpc-status", "0")]);
        let bytes = emit("/x.Y/Z", &headers, &(Bytes::from_static(b"\0\n\0"), trailers.clone()));
        let head = Head { first: "/x.Y/Z", headers, trailers };
        assert_eq!(parse(&bytes), Some((head, &b"\0\n\0"[..])));
        let head_len = bytes.len() - 3;
        assert!((0..head_len).all(|len| parse(&bytes[..len]).is_none()));
        assert!(parse(b"\0\0\0\x06/\nabc\n").is_none());
        assert!(parse(b"\0\0\0\x07/\n\n\n\na:b\n").is_none());
    }

    #[test]
    fn timeouts_have_units() {
        let of = |text: &'static str| timeout(&HeaderValue::from_static(text));
        assert_eq!(of("5S"), Some(Duration::from_secs(5)));
        assert_eq!(of("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(of("20m"), Some(Duration::from_millis(20)));
        assert_eq!([of(""), of("5"), of("S"), of("123456789S"), of("5s")], [None; 5]);
    }
}
