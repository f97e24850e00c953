//! A test under faults: the same transfer on networks that lose, duplicate, reorder and damage
//! packets. A seed makes the network do the same again.
//!
//! The setting `fault` needs no change of a program: `FEROCE_FAULT=loss=1%,seed=7` in the
//! environment does the same for programs in C under `feroce run`.
//!
//! ```text
//! cargo run -p feroce --example faults
//! ```

use feroce::{Access, Counters, Device, QpCap, SendOp, SendWr, Settings, WcStatus};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const LENGTH: usize = 1_000_000;

/// What a transfer under test should survive. Loss may not be so high that a packet is lost more
/// often in a row than the queue pair retries.
const NETWORKS: [&str; 5] = [
    "loss=0%,seed=7",
    "loss=2%,seed=7",
    "dup=5%,seed=7",
    "reorder=5%:3,seed=7",
    "loss=1%,dup=1%,reorder=1%:3,corrupt=1%,seed=7",
];

/// Writes a million bytes over a network with these faults. Returns what the sender counted.
fn transfer(number: u8, fault: &str) -> Result<Counters> {
    let settings = Settings { fault: Some(fault.parse()?), ..Settings::default() };
    let address = |end: u8| [127, 80, 10 + number, end].into();
    let here = Device::at([address(1)]).open_with(settings.clone())?;
    let there = Device::at([address(2)]).open_with(settings)?;

    let (pd, peer_pd) = (here.alloc_pd()?, there.alloc_pd()?);
    let (cq, peer_cq) = (here.create_cq(16)?, there.create_cq(16)?);
    let mut qp = pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).create()?;
    let mut peer_qp = peer_pd.rc_qp(&peer_cq, &peer_cq, QpCap::new(8, 8)).create()?;
    qp.connect(&peer_qp.endpoint()?)?;
    peer_qp.connect(&qp.endpoint()?)?;

    let bytes: Vec<u8> = (0..LENGTH).map(|i| (i * i / 251) as u8).collect();
    let source = pd.alloc_mr(LENGTH, Access::LOCAL_WRITE)?;
    let target = peer_pd.alloc_mr(LENGTH, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    source.write_at(0, &bytes)?;
    qp.post_one(SendWr::new(1, SendOp::Write(target.remote(0)), source.data(0..LENGTH)))?;
    assert_eq!(cq.wait()?.status, WcStatus::Success, "with {fault}");

    let mut arrived = vec![0; LENGTH];
    target.read_at(0, &mut arrived)?;
    assert!(arrived == bytes, "the bytes differ with {fault}");
    Ok(here.counters())
}

fn main() -> Result {
    let mut sent = Vec::new();
    for (number, fault) in (0..).zip(NETWORKS) {
        let counters = transfer(number, fault)?;
        println!(
            "{fault:45}  {:4} packets, went back {:2} times: the same bytes",
            counters.sent_pkts,
            counters.rcvd_seq_err + counters.completer_retry_err,
        );
        sent.push(counters.sent_pkts);
    }
    assert!(sent[1] > sent[0], "what is lost is sent again");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs() {
        main().expect("the example works");
    }
}
