//! Event channels of librdmacm.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Poll;

use feroce_backend_rdma_core::{Feature, cm as hard};
use feroce_cm::rdma::PortSpace;

use super::id::KernelId;
use super::manager::KernelManager;
use crate::cm::{BackendEvent, UdParam, next_number};
use crate::{Error, Settings, sys};

/// An event channel of librdmacm, and the devices that its ids may use.
#[derive(Clone, Debug)]
pub(crate) struct KernelChannel {
    pub(super) channel: Arc<hard::Channel>,
    pub(super) manager: Arc<KernelManager>,
}

impl KernelChannel {
    pub(super) fn create(manager: &Arc<KernelManager>, settings: &Settings) -> Result<Self, Error> {
        let channel = Arc::new(hard::Channel::create(settings.rdma_core.as_deref())?);
        Ok(Self { channel, manager: Arc::clone(manager) })
    }

    pub(crate) fn create_id(&self, space: PortSpace) -> Result<KernelId, Error> {
        let id = hard::Id::create(&self.channel, space, next_number())?;
        Ok(KernelId::new(id, &self.manager))
    }

    pub(crate) fn create_datagram_id(&self) -> Result<KernelId, Error> {
        Err(Error::Unsupported(Feature::IbDatagrams))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    /// The next event, if there is one.
    pub(crate) fn try_event(&self) -> Option<BackendEvent<KernelId>> {
        loop {
            let event = self.complete(self.channel.try_event()?);
            if event.is_some() {
                return event;
            }
        }
    }

    /// Waits for the next event, at most `timeout_ms`; for ever if `None`.
    pub(crate) fn wait_event(
        &self,
        timeout_ms: Option<u16>,
    ) -> io::Result<Option<BackendEvent<KernelId>>> {
        sys::wait_for(self.fd(), timeout_ms, || self.try_event())
    }

    /// Resolves with the next event.
    pub(crate) async fn event(&self) -> BackendEvent<KernelId> {
        std::future::poll_fn(|cx| {
            loop {
                let Some(event) = self.channel.event_or_register(cx.waker()) else {
                    return Poll::Pending;
                };
                if let Some(event) = self.complete(event) {
                    return Poll::Ready(event);
                }
            }
        })
        .await
    }

    /// Gives an event its ids; `None` if they are dropped already.
    fn complete(&self, mut event: hard::Event) -> Option<BackendEvent<KernelId>> {
        let known = KernelId::numbered(event.number);
        let (id, listener) = match event.new.take() {
            None => (known?, None),
            // If the listener is dropped, so is the new id, which rejects the request.
            Some(new) => {
                let listener = known?;
                let space = listener.port_space();
                let id = hard::Id::adopt(&self.channel, space, next_number(), new).ok()?;
                (KernelId::new(id, &self.manager), Some(listener))
            }
        };
        id.on_event(&mut event);
        let ud = event.ud.map(|hard::UdPath { av, qpn, qkey }| UdParam { av, qpn, qkey });
        Some(BackendEvent {
            kind: event.kind,
            id,
            listener,
            status: event.status,
            conn: event.conn,
            ud,
            private_data: event.private_data,
        })
    }
}

impl KernelManager {
    pub(crate) fn event_channel(self: &Arc<Self>) -> Result<KernelChannel, Error> {
        KernelChannel::create(self, &Settings::load()?)
    }
}

impl KernelId {
    pub(crate) fn channel(&self) -> KernelChannel {
        KernelChannel { channel: (**self).channel(), manager: self.manager() }
    }

    pub(crate) fn another_channel(&self) -> Result<KernelChannel, Error> {
        self.manager().event_channel()
    }

    pub(crate) fn migrate(&self, channel: &KernelChannel) -> Result<(), Error> {
        (**self).migrate(&channel.channel)?;
        self.set_manager(&channel.manager);
        Ok(())
    }
}
