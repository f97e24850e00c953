//! SEND and RECEIVE: messages into buffers that the receiver has posted before.
//!
//! ```text
//! cargo run -p feroce --example send_recv
//! ```

use feroce::{
    Access, Data, Device, Imm, InlineBytes, QpCap, SendFlags, SendOp, SendWr, WcFlags, WcStatus,
};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Bytes of each receive buffer: a message that is longer ends the connection with an error.
const BUFFER: usize = 256;
const BUFFERS: usize = 4;

fn main() -> Result {
    let here = Device::at(["127.80.2.1".parse()?]).open()?;
    let there = Device::at(["127.80.2.2".parse()?]).open()?;
    let (pd, peer_pd) = (here.alloc_pd()?, there.alloc_pd()?);
    let (cq, peer_cq) = (here.create_cq(16)?, there.create_cq(16)?);
    let mut qp = pd.rc_qp(&cq, &cq, QpCap::new(8, 0)).create()?;
    let mut peer_qp = peer_pd.rc_qp(&peer_cq, &peer_cq, QpCap::new(0, 8)).create()?;
    qp.connect(&peer_qp.endpoint()?)?;
    peer_qp.connect(&qp.endpoint()?)?;

    // One receive for each message, posted before the message comes. The number of a receive is
    // that of its buffer, so that the completion tells where the message is.
    let inbox = peer_pd.alloc_mr(BUFFER * BUFFERS, Access::LOCAL_WRITE)?;
    let receives = (0..BUFFERS).map(|i| inbox.recv(i as u64, i * BUFFER..(i + 1) * BUFFER));
    peer_qp.post_recv(receives)?;

    // Three ways to give the bytes: registered memory; in the request itself; and none at all, but
    // 32 bits that appear in the completion of the receive.
    let outbox = pd.alloc_mr(BUFFER, Access::empty())?;
    outbox.write_at(0, b"from registered memory")?;
    let inline = Data::Inline(InlineBytes::new(b"from the request"));
    let quiet = SendFlags::empty();
    qp.post_send([
        // Requests complete in order, so the completion of the last one stands for all.
        SendWr { flags: quiet, ..SendWr::new(1, SendOp::Send, outbox.data(0..22)) },
        SendWr { flags: quiet, ..SendWr::new(2, SendOp::Send, inline) },
        SendWr::new(3, SendOp::SendImm(Imm(2026)), Data::EMPTY),
    ])?;

    let mut messages = Vec::new();
    for _ in 0..3 {
        let cqe = peer_cq.wait()?;
        assert_eq!(cqe.status, WcStatus::Success);
        let mut bytes = vec![0; cqe.byte_len as usize];
        inbox.read_at(cqe.wr_id as usize * BUFFER, &mut bytes)?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let imm = cqe.flags.contains(WcFlags::WITH_IMM).then_some(cqe.imm.0);
        println!("buffer {}: {:2} bytes {text:?}, immediate {imm:?}", cqe.wr_id, cqe.byte_len);
        messages.push((text, imm));
    }
    let sent = cq.wait()?;
    assert_eq!((sent.wr_id, sent.status), (3, WcStatus::Success));
    assert!(cq.poll_one().is_none(), "the first two were not signalled");
    println!("one completion for three sends");

    let expected = [("from registered memory", None), ("from the request", None), ("", Some(2026))];
    assert_eq!(messages, expected.map(|(text, imm)| (text.to_owned(), imm)));
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_runs() {
        super::main().expect("the example works");
    }
}
