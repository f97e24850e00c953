//! Clients as services, so that the layers of `tower` fit around them.

use std::pin::Pin;
use std::task::{Context, Poll};

use tower_service::Service;

use crate::client::Client;
use crate::error::Error;
use crate::message::{Reply, Request};
use crate::reconnect::Reconnecting;

type Calling = Pin<Box<dyn Future<Output = Result<Reply, Error>> + Send>>;

impl Service<Request> for Client {
    type Response = Reply;
    type Error = Error;
    type Future = Calling;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        // A call waits for its turn itself.
        Poll::Ready(self.ended().map_or(Ok(()), Err))
    }

    fn call(&mut self, request: Request) -> Calling {
        let client = self.clone();
        Box::pin(async move { Self::call(&client, request).await })
    }
}

impl Service<Request> for Reconnecting {
    type Response = Reply;
    type Error = Error;
    type Future = Calling;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        // A call waits for the connection itself.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Calling {
        let client = self.clone();
        Box::pin(async move { Self::call(&client, request).await })
    }
}
