//! What both transports do with a client.

use std::time::Duration;

use feroce::Pool;
use feroce_rpc::{Client, Error, Reply};

/// The number of the only method: the libraries have names of their own for theirs.
const METHOD: u32 = 1;

/// A client, and buffers for long responses if it has some. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Caller {
    client: Client,
    long: Option<Pool>,
}

impl From<Client> for Caller {
    /// Without buffers for long responses.
    fn from(client: Client) -> Self {
        Self { client, long: None }
    }
}

impl Caller {
    /// A client that offers a buffer for a long response with each call. So many calls can be under
    /// way at a time, others wait.
    pub fn with_long_responses(client: Client, calls: usize) -> Result<Self, Error> {
        let long = Pool::new(client.pd(), calls, client.limits().longest as usize)?;
        Ok(Self { client, long: Some(long) })
    }

    /// Longest message that the server takes.
    #[cfg(feature = "tonic")]
    pub(crate) fn longest(&self) -> usize {
        self.client.limits().longest as usize
    }

    pub(crate) async fn call(
        &self,
        body: &[u8],
        timeout: Option<Duration>,
    ) -> Result<Reply, Error> {
        let mut request = self.client.request(METHOD, body)?;
        if let Some(timeout) = timeout {
            request = request.timeout(timeout);
        }
        if let Some(long) = &self.long {
            request = request.reply_into(long.take().await);
        }
        self.client.call(request).await
    }
}
