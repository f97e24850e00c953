//! Peers that do not keep to the protocol.

use std::time::Duration;

use feroce::cm::{Connection, Connector};
use feroce::sim::Host;
use feroce::{Data, InlineBytes, QpCap, SendOp, SendWr};
use feroce_rpc::{Error, Rejection, Request, ServerOptions};

use crate::harness::*;

/// Private data of a client.
const HELLO: &[u8] = b"fRPC\x01\x00\x08\x00\x00\x10\x00\x00\x04\x00\x00";

/// A peer that is not a client of this crate: it says what `hello` says.
async fn stranger(host: &Host, hello: &[u8]) -> Result<Connection> {
    let cap = QpCap { max_inline: 256, ..QpCap::new(64, 4) };
    let connector = Connector::new(&host.manager()?).private_data(hello).cap(cap);
    Ok(connector.connect_async((host.addr_of("server"), PORT).into()).await?)
}

fn post(peer: &mut Connection, message: &[u8]) -> Result<()> {
    let data = Data::Inline(InlineBytes::new(message));
    peer.post_send([SendWr::new(1, SendOp::Send, data)])?;
    Ok(())
}

/// Says `hello`, sends `message`, and waits until the server ends the connection.
async fn offend(host: &Host, hello: &[u8], message: &[u8]) -> Result<()> {
    let mut peer = stranger(host, hello).await?;
    post(&mut peer, message)?;
    peer.wait_disconnected_async().await?;
    Ok(())
}

/// A request of method ECHO without a body.
fn request(id: u64) -> Vec<u8> {
    let mut message = vec![1, 1, 0, 0, 0, 0, 0, 1];
    message.extend(id.to_be_bytes());
    message.resize(24, 0);
    message
}

#[test]
fn a_peer_that_breaks_the_protocol_loses_its_connection_alone() {
    run(1, 0.0, |host, _| async move {
        let client = connect(&host).await?;
        let request = request(0);
        let with = |at: usize, value: u8| {
            let mut message = request.clone();
            message[at] = value;
            message
        };
        // Nothing, half a header, another version, another kind, wrong flags, a wrong length, an
        // answer to nothing, and a body at an address that is not the peer's.
        let mut far = with(2, 1);
        far[20..24].copy_from_slice(&100u32.to_be_bytes());
        far.resize(56, 7);
        let messages = [
            vec![],
            request[..20].to_vec(),
            with(0, 2),
            with(1, 9),
            with(2, 0x80),
            with(23, 5),
            with(1, 2),
            far,
        ];
        for message in messages {
            offend(&host, HELLO, &message).await?;
        }
        // Those who do not say hello are not let in.
        let mut other_version = HELLO.to_vec();
        other_version[4] = 2;
        assert!(offend(&host, &other_version, &request).await.is_err());
        assert!(offend(&host, b"hello", &request).await.is_err());
        assert_eq!(&*client.call(Request::new(ECHO, b"still here")).await?, b"still here");
        Ok(())
    });
}

#[test]
fn a_message_longer_than_a_receive_ends_the_connection() {
    run(1, 0.0, |host, _| async move {
        for _ in 0..10 {
            let mut peer = stranger(&host, HELLO).await?;
            let long = peer.pd().alloc_mr(8192, feroce::Access::LOCAL_WRITE)?;
            peer.post_send([SendWr::new(1, SendOp::Send, long.data(0..8192))])?;
            peer.wait_disconnected_async().await?;
        }
        let client = connect(&host).await?;
        assert_eq!(&*client.call(Request::new(ECHO, b"here")).await?, b"here");
        Ok(())
    });
}

#[test]
fn a_body_that_is_said_to_be_too_long_is_not_read() {
    run(1, 0.0, |host, _| async move {
        let mut peer = stranger(&host, HELLO).await?;
        let mr = peer.pd().alloc_mr(64, feroce::Access::LOCAL_WRITE)?;
        peer.post_recv([mr.recv(1, 0..64)])?;
        let mut message = request(5);
        message[2] = 1;
        message[20..24].copy_from_slice(&u32::MAX.to_be_bytes());
        message.resize(56, 0);
        post(&mut peer, &message)?;
        let cqe = peer.recv_cq().next().await;
        let mut reply = [0; 24];
        mr.read_at(0, &mut reply)?;
        // The status of the reply: the request is too long.
        assert_eq!((cqe.byte_len, reply[1], reply[3], reply[15]), (24, 2, 4, 5));
        Ok(())
    });
}

#[test]
fn more_calls_than_the_window_end_the_connection() {
    run(1, 0.0, |host, gate| async move {
        let mut peer = stranger(&host, HELLO).await?;
        let mut blocked = request(0);
        blocked[7] = BLOCK as u8;
        for id in 0..9 {
            blocked[15] = id;
            post(&mut peer, &blocked)?;
        }
        peer.wait_disconnected_async().await?;
        // The handlers were dropped with it.
        let (begun, dropped) = gate.counts();
        assert_eq!((begun, dropped), (8, 8));
        // The same call twice is no better.
        let mut peer = stranger(&host, HELLO).await?;
        post(&mut peer, &blocked)?;
        post(&mut peer, &blocked)?;
        peer.wait_disconnected_async().await?;
        Ok(())
    });
}

#[test]
fn clients_without_receives_do_not_keep_others_out() {
    let options = ServerOptions { connections: 2, ..options() };
    run_with(1, 0.0, options, |host, _| async move {
        // They never post a receive, so no reply reaches them, and they ask the server to try for
        // ever.
        let mut strangers = vec![stranger(&host, HELLO).await?, stranger(&host, HELLO).await?];
        for peer in &mut strangers {
            post(peer, &request(1))?;
        }
        host.sleep(Duration::from_millis(100)).await;
        let rejected = connect(&host).await;
        assert!(matches!(rejected, Err(Error::Rejected(Rejection::Full))), "{rejected:?}");
        host.sleep(Duration::from_secs(3)).await;
        let client = connect(&host).await?;
        assert_eq!(&*client.call(Request::new(ECHO, b"here")).await?, b"here");
        for peer in &strangers {
            peer.wait_disconnected_async().await?;
        }
        Ok(())
    });
}

#[test]
fn a_flood_of_cancellations_ends_in_the_end_of_the_connection() {
    run(1, 0.0, |host, _| async move {
        let client = connect(&host).await?;
        let mut peer = stranger(&host, HELLO).await?;
        let mut cancel = request(7);
        cancel[1] = 3;
        // It takes no answer. The answers fill the send queue of the server.
        let mut is_open = true;
        for _ in 0..200 {
            is_open = is_open && post(&mut peer, &cancel).is_ok();
            while peer.send_cq().poll_one().is_some() {}
            host.sleep(Duration::from_millis(1)).await;
        }
        peer.wait_disconnected_async().await?;
        assert_eq!(&*client.call(Request::new(ECHO, b"here")).await?, b"here");
        Ok(())
    });
}

#[test]
fn requests_that_arrive_together_are_answered_up_to_one_that_breaks_the_protocol() {
    run(1, 0.0, |host, _| async move {
        let mut peer = stranger(&host, HELLO).await?;
        let mr = peer.pd().alloc_mr(64, feroce::Access::LOCAL_WRITE)?;
        peer.post_recv([mr.recv(1, 0..64)])?;
        post(&mut peer, &[request(1), request(2)].concat())?;
        let cqe = peer.recv_cq().next().await;
        let mut replies = [0; 48];
        mr.read_at(0, &mut replies)?;
        // Both leave together as well.
        assert_eq!((cqe.byte_len, replies[1], replies[15]), (48, 2, 1));
        assert_eq!((replies[25], replies[39]), (2, 2));
        // A piece of a message behind one that is whole, and one call more than agreed.
        let cut = [request(3), request(4)[..23].to_vec()].concat();
        let mut many = (0..9).flat_map(request).collect::<Vec<u8>>();
        many.chunks_mut(24).for_each(|blocked| blocked[7] = BLOCK as u8);
        for message in [cut, many] {
            offend(&host, HELLO, &message).await?;
        }
        let client = connect(&host).await?;
        assert_eq!(&*client.call(Request::new(ECHO, b"here")).await?, b"here");
        Ok(())
    });
}
