//! Messages of clients, to the calls that they begin or cancel.

use std::sync::Arc;

use feroce::{Cqe, WcStatus};

use super::call::Call;
use super::options::Handler;
use super::shared::{Cancel, Peer, Shared, lock};
use crate::error::Malformed;
use crate::header::{Header, Kind};
use crate::limits::Limits;
use crate::message::{Body, Incoming};
use crate::sending::{each_message, take_message};

/// Has as many receives posted as the connections need with another one. `false` if there cannot be
/// as many.
pub(super) fn post_receives(shared: &Shared, limits: Limits) -> bool {
    let mut peers = lock(&shared.peers);
    peers.needed += limits.receives();
    let more = peers.needed.saturating_sub(peers.posted);
    drop(peers);
    for _ in 0..more {
        let Some(buf) = shared.messages.try_take() else { return false };
        if shared.inbox.recv_buf_shared(&shared.srq, buf).is_err() {
            return false;
        }
        lock(&shared.peers).posted += 1;
    }
    true
}

/// Takes messages, and keeps as many receives posted.
pub(super) async fn receive(shared: Arc<Shared>, service: impl Handler) {
    let most = shared.options.limits.receives();
    loop {
        let (cqe, buf) = shared.inbox.next().await;
        // A completion without a buffer is of no receive that was posted here.
        let Some(buf) = buf else { continue };
        // The place of this message is taken before the message is looked at: once it is answered,
        // the client may send another.
        let (message, next) = take_message(&shared.messages, buf, cqe.byte_len as usize);
        if shared.inbox.recv_buf_shared(&shared.srq, next).is_err() {
            lock(&shared.peers).posted -= 1;
        }
        let sorted = lock(&shared.peers).sort(cqe, message, most);
        if let Some((peer, message)) = sorted {
            take(&shared, &peer, &cqe, message, &service);
        }
    }
}

/// Handles what a client has sent, and ends the connection if that breaks the protocol. What is
/// longer than a receive has failed.
pub(super) fn take(
    shared: &Arc<Shared>,
    peer: &Arc<Peer>,
    cqe: &Cqe,
    arrived: Body,
    service: &impl Handler,
) {
    let mut handle = |header, body| handle(shared, peer, cqe, (header, body), service);
    let has_arrived = cqe.status == WcStatus::Success;
    if !has_arrived || each_message(arrived, &mut handle).is_err() {
        shared.leave(peer);
    }
}

fn handle(
    shared: &Arc<Shared>,
    peer: &Arc<Peer>,
    cqe: &Cqe,
    (header, body): (Header, Body),
    service: &impl Handler,
) -> Result<(), Malformed> {
    match header.kind {
        Kind::Cancel => {
            let call = lock(&peer.calls).get(&header.id).cloned();
            call.into_iter().for_each(|call| call.cancel());
            shared.send(peer, &Header::new(Kind::Cancelled, header.id), &[]);
        }
        Kind::Request => {
            let cancel = Arc::new(Cancel::default());
            let mut calls = lock(&peer.calls);
            let is_over = calls.len() >= usize::from(peer.limits.window);
            if is_over || calls.contains_key(&header.id) {
                return Err(Malformed::Unexpected(header.id));
            }
            calls.insert(header.id, Arc::clone(&cancel));
            drop(calls);
            let ns = |us: u32| u64::from(us) * 1000;
            let deadline = header.remaining_us.map(|us| cqe.timestamp.plus_nanos(ns(us)));
            let (method, priority) = (header.method, header.priority);
            let incoming = Incoming { method, deadline, priority, body };
            let call = Call::new(shared, peer, header, cancel);
            shared.spawner.spawn(call.run(incoming, service.clone()));
        }
        Kind::Reply | Kind::Cancelled => return Err(Malformed::Unknown(header.id)),
    }
    Ok(())
}
