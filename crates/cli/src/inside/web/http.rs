//! As much of HTTP/1.1 as a page of one user needs: a request on each connection, whose body is not
//! looked at.
//! `httparse` parses. Length, number of headers and time are bounded, so that a process that may
//! connect but does not know the token costs a thread for some seconds at most.

#![expect(clippy::disallowed_methods, reason = "clients that are slow are given up")]

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// Longest request line and headers together, in bytes.
const MAX_HEAD: usize = 8 << 10;

/// Most headers.
const MAX_HEADERS: usize = 64;

/// How long a client may take to send its request, and to read the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a client asks for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Request {
    /// The path, without what follows a question mark.
    pub(super) path: String,
    /// What follows the question mark.
    pub(super) query: String,
    /// The header `Authorization`.
    pub(super) authorization: Option<String>,
    /// The header `Accept`.
    pub(super) accept: Option<String>,
    /// Whether only the headers of the answer are wanted.
    pub(super) is_head: bool,
    /// Whether it is to change something.
    pub(super) is_post: bool,
}

impl Request {
    /// A value of the query, which has the form `key=value&key=value`.
    pub(super) fn value(&self, key: &str) -> Option<String> {
        let fields = self.query.split('&').filter_map(|field| field.split_once('='));
        fields.into_iter().find(|(name, _)| *name == key).and_then(|(_, value)| decode(value))
    }
}

/// Text with `%40` for `@`, as it is written in addresses.
fn decode(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? << 4 | digit()?).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(out).ok()
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Response {
    pub(super) status: Status,
    pub(super) content_type: &'static str,
    pub(super) body: Vec<u8>,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Status {
    Ok,
    BadRequest,
    Forbidden,
    NotFound,
    Conflict,
    MethodNotAllowed,
    TooLarge,
    Failed,
    Busy,
}

impl Status {
    fn line(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::BadRequest => "400 Bad Request",
            Self::Forbidden => "403 Forbidden",
            Self::NotFound => "404 Not Found",
            Self::Conflict => "409 Conflict",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::TooLarge => "431 Request Header Fields Too Large",
            Self::Failed => "500 Internal Server Error",
            Self::Busy => "503 Service Unavailable",
        }
    }
}

impl Response {
    pub(super) fn ok(content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status: Status::Ok, content_type, body: body.into() }
    }

    /// An answer that says why there is no other.
    pub(super) fn refusal(status: Status, why: &str) -> Self {
        let body = format!("{why}\n").into_bytes();
        Self { status, content_type: "text/plain; charset=utf-8", body }
    }
}

/// Headers of every answer: the page loads nothing from elsewhere, no other page may frame it, and
/// its address, which holds the token, goes nowhere.
const FIXED_HEADERS: &str = "\
Cache-Control: no-store\r\n\
Connection: close\r\n\
Content-Security-Policy: default-src 'self'; frame-ancestors 'none'; base-uri 'none'\r\n\
Referrer-Policy: no-referrer\r\n\
X-Content-Type-Options: nosniff\r\n";

/// Reads the request of a connection, answers it, and ends the connection.
pub(super) fn serve(
    stream: &TcpStream,
    answer: impl FnOnce(&Request) -> Response,
) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (response, is_head) = match read_request(&mut Patient { stream, until })? {
        Ok(request) => (answer(&request), request.is_head),
        Err(refusal) => (refusal, false),
    };
    write(stream, &response, is_head)?;
    // The kernel resets a connection that is closed with bytes unread, and the client could lose
    // the answer. So a little of what it still sends is read, until it has closed.
    stream.shutdown(Shutdown::Write)?;
    let _ = io::copy(&mut Patient { stream, until }.take(MAX_HEAD as u64), &mut io::sink());
    Ok(())
}

/// Writes an answer.
pub(super) fn write(mut stream: impl Write, response: &Response, is_head: bool) -> io::Result<()> {
    let Response { status, content_type, body } = response;
    let allow = if *status == Status::MethodNotAllowed { "Allow: GET, HEAD, POST\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{allow}{}\r\n",
        status.line(),
        body.len(),
        FIXED_HEADERS,
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(if is_head { &[] } else { body })
}

/// A connection whose client has until a moment to send.
struct Patient<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl Read for Patient<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buf)
    }
}

/// Reads a request. `Ok(Err(_))` is what to answer to one that is not understood.
fn read_request(mut from: impl Read) -> io::Result<Result<Request, Response>> {
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    loop {
        let n = from.read(&mut chunk)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&chunk[..n]);
        if let Some(result) = parse(&head) {
            return Ok(result);
        }
        if head.len() >= MAX_HEAD {
            return Ok(Err(Response::refusal(Status::TooLarge, "the request is too long")));
        }
    }
}

/// Parses a request; `None` if it is not complete.
fn parse(head: &[u8]) -> Option<Result<Request, Response>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(head) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => {
            return Some(Err(Response::refusal(Status::TooLarge, "too many headers")));
        }
        Err(e) => return Some(Err(Response::refusal(Status::BadRequest, &e.to_string()))),
    }
    let (is_head, is_post) = match parsed.method {
        Some("GET") => (false, false),
        Some("HEAD") => (true, false),
        Some("POST") => (false, true),
        _ => {
            let why = "only GET, HEAD and POST are answered";
            return Some(Err(Response::refusal(Status::MethodNotAllowed, why)));
        }
    };
    let path = parsed.path.unwrap_or_default();
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let (path, query) = (path.to_owned(), query.to_owned());
    let header = |name: &str| {
        let found = parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok().map(str::to_owned)
    };
    let (authorization, accept) = (header("authorization"), header("accept"));
    Some(Ok(Request { path, query, authorization, accept, is_head, is_post }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a few bytes at a time, for ever.
    struct Slowly<'a>(&'a [u8], usize);

    impl Read for Slowly<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let rest = &self.0[self.1.min(self.0.len())..];
            let n = rest.len().min(buf.len()).min(3);
            buf[..n].copy_from_slice(&rest[..n]);
            self.1 += n;
            Ok(n)
        }
    }

    fn status_of(bytes: &[u8]) -> Status {
        let read = read_request(Slowly(bytes, 0)).expect("an answer");
        read.map_or_else(|refusal| refusal.status, |_| Status::Ok)
    }

    #[test]
    fn a_request_is_read_however_it_arrives() {
        let text = b"GET /a/b?c=d HTTP/1.1\r\nHost: x\r\nAUTHORIZATION: Bearer t\r\n\r\nmore";
        let request = read_request(Slowly(text, 0)).expect("read").expect("understood");
        assert_eq!((request.path.as_str(), request.is_head), ("/a/b", false));
        assert_eq!(request.value("c").as_deref(), Some("d"));
        assert_eq!(request.value("e"), None);
        assert_eq!(request.authorization.as_deref(), Some("Bearer t"));
        assert_eq!(request.accept, None);
    }

    #[test]
    fn what_is_no_request_is_refused_and_nothing_is_read_for_ever() {
        assert_eq!(status_of(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), Status::BadRequest);
        assert_eq!(status_of(b"PUT / HTTP/1.1\r\n\r\n"), Status::MethodNotAllowed);
        let long = [b"GET /".as_slice(), &vec![b'a'; MAX_HEAD * 2]].concat();
        assert_eq!(status_of(&long), Status::TooLarge);
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1));
        assert_eq!(status_of(many.as_bytes()), Status::TooLarge);
        let cut = read_request(Slowly(b"GET / HTTP/1.1\r\nHo", 0)).expect_err("it ends early");
        assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn values_are_decoded_and_wrong_ones_refused() {
        assert_eq!(decode("fe%40127.0.0.1%2f%C3%a4").as_deref(), Some("fe@127.0.0.1/ä"));
        for wrong in ["%", "%4", "%4x", "%ff", "%-1", "%+1"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn headers_alone_have_the_length_of_the_whole() {
        let mut written = Vec::new();
        write(&mut written, &Response::ok("text/plain", "abc"), true).expect("a buffer");
        let text = String::from_utf8(written).expect("text");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\n"), "{text}");
        assert!(text.contains("Content-Length: 3\r\n"), "{text}");
    }
}
