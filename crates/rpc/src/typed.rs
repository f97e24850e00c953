//! Methods with types.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::client::Client;
use crate::error::{Error, Status};
use crate::message::{Answer, Incoming, Request};

/// A method: its number, what it takes and what it returns. Both ends use the same definition.
///
/// ```
/// # use feroce::{Device, cm::Manager};
/// use feroce_rpc::{Client, Limits, Method, Methods, Server, ServerOptions, Status, wire};
///
/// wire! {
///     /// Stores a value.
///     pub struct Entry { key: String, value: Option<Vec<u8>> }
/// }
///
/// struct Put;
/// impl Method for Put {
///     const NUMBER: u32 = 1;
///     type Request = Entry;
///     type Reply = u64;
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let manager = |ip: &str| Manager::with([Device::at([ip.parse().unwrap()]).open()?]);
/// # let (here, there) = (manager("127.0.0.63")?, manager("127.0.0.64")?);
/// # let server = Server::bind(&there, "127.0.0.64:0".parse()?, ServerOptions::default())?;
/// # let at = server.local_addr();
/// let methods = Methods::new().on::<Put, _, _>(async |entry| match entry.value {
///     Some(value) => Ok(value.len() as u64),
///     None => Err(Status::Handler(1)),
/// });
/// tokio::spawn(server.serve(methods));
/// # let (client, connection) = Client::connect(&here, at, Limits::default()).await?;
/// # tokio::spawn(connection);
/// let entry = Entry { key: "a".into(), value: Some(vec![0; 9]) };
/// assert_eq!(client.invoke::<Put>(&entry).await?, 9);
/// # let refused = client.invoke::<Put>(&Entry { value: None, ..entry }).await;
/// # assert!(matches!(refused, Err(feroce_rpc::Error::Refused(Status::Handler(1)))));
/// # let call = client.call(feroce_rpc::Request::new(2, b"")).await;
/// # assert!(matches!(call, Err(feroce_rpc::Error::Refused(Status::UnknownMethod))));
/// # let call = client.call(feroce_rpc::Request::new(1, b"not an entry")).await;
/// # assert!(matches!(call, Err(feroce_rpc::Error::Refused(Status::BadRequest))));
/// # Ok(())
/// # }
/// ```
pub trait Method {
    /// Its number, which no other method of the server has.
    const NUMBER: u32;
    /// What it takes.
    type Request: Wire;
    /// What it returns.
    type Reply: Wire;
}

/// A value that is sent as bytes: numbers big-endian, byte strings behind their length (4 bytes),
/// parts of a whole behind each other. [`wire!`](crate::wire) defines a structure of such values.
/// Another encoding implements this, or uses [`Client::call`] directly.
pub trait Wire: Sized {
    /// Appends its bytes.
    fn emit(&self, out: &mut Vec<u8>);

    /// Takes it from the beginning of `bytes`; `None` if it is not there.
    fn take(bytes: &mut &[u8]) -> Option<Self>;
}

/// The value that is the whole of `bytes`.
fn parse<T: Wire>(mut bytes: &[u8]) -> Option<T> {
    T::take(&mut bytes).filter(|_| bytes.is_empty())
}

fn bytes_of(value: &impl Wire) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.emit(&mut bytes);
    bytes
}

macro_rules! number {
    ($($number:ty),*) => {$(
        impl Wire for $number {
            fn emit(&self, out: &mut Vec<u8>) {
                out.extend(self.to_be_bytes());
            }

            fn take(bytes: &mut &[u8]) -> Option<Self> {
                let word = bytes.split_off(..size_of::<Self>())?;
                word.first_chunk().copied().map(Self::from_be_bytes)
            }
        }
    )*};
}

number!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128);

impl Wire for bool {
    fn emit(&self, out: &mut Vec<u8>) {
        u8::from(*self).emit(out);
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        match u8::take(bytes)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Wire for Vec<u8> {
    fn emit(&self, out: &mut Vec<u8>) {
        // A message is never as long as that, so the call fails and nothing is cut.
        u32::try_from(self.len()).unwrap_or(u32::MAX).emit(out);
        out.extend(self);
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let len = u32::take(bytes)? as usize;
        Some(bytes.split_off(..len)?.to_vec())
    }
}

impl Wire for String {
    fn emit(&self, out: &mut Vec<u8>) {
        u32::try_from(self.len()).unwrap_or(u32::MAX).emit(out);
        out.extend(self.as_bytes());
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        Self::from_utf8(Vec::take(bytes)?).ok()
    }
}

impl<T: Wire> Wire for Option<T> {
    fn emit(&self, out: &mut Vec<u8>) {
        self.is_some().emit(out);
        self.iter().for_each(|value| value.emit(out));
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        if bool::take(bytes)? { T::take(bytes).map(Some) } else { Some(None) }
    }
}

impl Wire for () {
    fn emit(&self, _: &mut Vec<u8>) {}

    fn take(_: &mut &[u8]) -> Option<Self> {
        Some(())
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn emit(&self, out: &mut Vec<u8>) {
        self.0.emit(out);
        self.1.emit(out);
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        Some((A::take(bytes)?, B::take(bytes)?))
    }
}

/// Defines a structure whose fields are [`Wire`], and which is `Wire` itself. See [`Method`].
#[macro_export]
macro_rules! wire {
    ($(#[$attr:meta])* $vis:vis struct $name:ident {
        $($(#[$field_attr:meta])* $field_vis:vis $field:ident: $kind:ty),* $(,)?
    }) => {
        $(#[$attr])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        $vis struct $name { $($(#[$field_attr])* $field_vis $field: $kind),* }

        impl $crate::Wire for $name {
            fn emit(&self, out: &mut Vec<u8>) {
                $($crate::Wire::emit(&self.$field, out);)*
            }

            fn take(bytes: &mut &[u8]) -> Option<Self> {
                Some(Self { $($field: $crate::Wire::take(bytes)?),* })
            }
        }
    };
}

impl Client {
    /// Calls a method. What it takes and returns is copied, and fits into a message
    /// ([`Limits::eager`](crate::Limits)); for what is longer there is [`Client::call`].
    pub async fn invoke<M: Method>(&self, request: &M::Request) -> Result<M::Reply, Error> {
        let reply = self.call(Request::new(M::NUMBER, &bytes_of(request))).await?;
        parse(&reply).ok_or(Error::BadReply)
    }
}

type Answering = Pin<Box<dyn Future<Output = Result<Answer, Status>> + Send>>;
type Function = Arc<dyn Fn(Incoming) -> Answering + Send + Sync>;

/// The methods of a server, as a service for [`Server::serve`](crate::Server::serve); see
/// [`Method`].
#[derive(Clone, Default)]
pub struct Methods {
    /// Shared by the clones, of which each call has one.
    by_number: Arc<BTreeMap<u32, Function>>,
}

impl fmt::Debug for Methods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_number.keys()).finish()
    }
}

impl Methods {
    /// No methods.
    pub fn new() -> Self {
        Self::default()
    }

    /// Answers calls of the method `M` with a function. A request that is not what the method takes
    /// is refused with [`Status::BadRequest`].
    ///
    /// # Panics
    /// If there is a method with this number already.
    #[must_use]
    pub fn on<M, F, R>(self, function: F) -> Self
    where
        M: Method,
        F: Fn(M::Request) -> R + Send + Sync + 'static,
        R: Future<Output = Result<M::Reply, Status>> + Send + 'static,
    {
        self.on_call(M::NUMBER, move |call| {
            let reply = parse(&call).map(&function);
            async move {
                let reply = reply.ok_or(Status::BadRequest)?.await?;
                Ok(Answer::Copied(bytes_of(&reply)))
            }
        })
    }

    /// Answers calls with a number as they are, without types.
    ///
    /// # Panics
    /// If there is a method with this number already.
    #[must_use]
    pub fn on_call<F, R>(mut self, number: u32, function: F) -> Self
    where
        F: Fn(Incoming) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Answer, Status>> + Send + 'static,
    {
        let boxed: Function = Arc::new(move |call| Box::pin(function(call)));
        let before = Arc::make_mut(&mut self.by_number).insert(number, boxed);
        assert!(before.is_none(), "two methods have the number {number}");
        self
    }
}

impl tower_service::Service<Incoming> for Methods {
    type Response = Answer;
    type Error = Status;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Incoming) -> Answering {
        match self.by_number.get(&call.method) {
            Some(function) => function(call),
            None => Box::pin(std::future::ready(Err(Status::UnknownMethod))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::wire! {
        struct All { name: String, bytes: Vec<u8>, number: i64, perhaps: Option<(u8, bool)> }
    }

    #[test]
    fn values_survive_and_what_is_not_one_is_refused() {
        let all = All { name: "ä".into(), bytes: vec![1], number: -2, perhaps: Some((3, true)) };
        let bytes = bytes_of(&all);
        assert_eq!(parse::<All>(&bytes).as_ref(), Some(&all));
        assert!((0..bytes.len()).all(|len| parse::<All>(&bytes[..len]).is_none()));
        assert!(parse::<All>(&[&bytes[..], &[0]].concat()).is_none());
        // Lengths that are not there, letters that are none, neither true nor false.
        assert!(parse::<Vec<u8>>(&[255; 5]).is_none());
        assert!(parse::<String>(&[0, 0, 0, 1, 255]).is_none());
        assert!(parse::<bool>(&[2]).is_none());
    }
}
