//! RDMA WRITE: one end puts bytes into the memory of the other, which makes no call for it.
//!
//! ```text
//! cargo run -p feroce --example rc_write
//! ```

use feroce::{Access, Device, QpCap, SendOp, SendWr, WcStatus};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result {
    // Two adapters on this machine. Every address in 127.0.0.0/8 will do, or one of an interface.
    let here = Device::at(["127.80.1.1".parse()?]).open()?;
    let there = Device::at(["127.80.1.2".parse()?]).open()?;

    // Each end has a protection domain, a completion queue and a reliable connected queue pair.
    let (pd, peer_pd) = (here.alloc_pd()?, there.alloc_pd()?);
    let (cq, peer_cq) = (here.create_cq(16)?, there.create_cq(16)?);
    let mut qp = pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).create()?;
    let mut peer_qp = peer_pd.rc_qp(&peer_cq, &peer_cq, QpCap::new(8, 8)).create()?;

    // The ends learn of each other's queue pair: address, number and first sequence number. Here
    // they are in one process; `cm_server` shows how two processes meet.
    qp.connect(&peer_qp.endpoint()?)?;
    peer_qp.connect(&qp.endpoint()?)?;

    // The target permits writes by peers. Its address and key together are the right to write.
    let source = pd.alloc_mr(4096, Access::LOCAL_WRITE)?;
    let target = peer_pd.alloc_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let remote = target.remote(100);
    println!("the peer offers its memory at {:#x} with key {:#x}", remote.addr, remote.rkey.0);

    source.write_at(0, b"hello from afar")?;
    qp.post_send([SendWr::new(1, SendOp::Write(remote), source.data(0..15))])?;

    // The completion says that the bytes are in the memory of the peer.
    let done = cq.wait()?;
    assert_eq!((done.wr_id, done.status), (1, WcStatus::Success));

    let mut bytes = [0; 15];
    target.read_at(100, &mut bytes)?;
    assert_eq!(&bytes, b"hello from afar");
    println!("the peer has {:?} and knows nothing of it", String::from_utf8_lossy(&bytes));
    assert!(peer_cq.poll_one().is_none());
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_runs() {
        super::main().expect("the example works");
    }
}
