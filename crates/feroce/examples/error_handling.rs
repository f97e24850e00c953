//! What goes wrong, how a program learns of it, and how it goes on.
//!
//! Errors come in three ways. A call that *refuses* returns an error and has changed nothing. A
//! request that *fails* has a completion with a status other than success; its queue pair then is
//! in the error state, and what was posted behind it is flushed. A connection that *cannot be made*
//! returns the reason of the connection manager.
//!
//! ```text
//! cargo run -p feroce --example error_handling
//! ```

use feroce::cm::{CmError, Connector, Listener, Manager};
use feroce::{
    Access, Cq, Device, Error, Mr, PostError, Qp, QpAttr, QpCap, QpState, Remote, Rkey, SendOp,
    SendWr, WcStatus,
};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// One end, with everything that a request needs.
struct End {
    cq: Cq,
    qp: Qp,
    memory: Mr,
}

impl End {
    fn new(address: &str) -> Result<Self> {
        let context = Device::at([address.parse()?]).open()?;
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
        let qp = pd.rc_qp(&cq, &cq, QpCap::new(2, 2)).create()?;
        let memory = pd.alloc_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(Self { cq, qp, memory })
    }

    fn write(&self, wr_id: u64, remote: Remote) -> SendWr {
        SendWr::new(wr_id, SendOp::Write(remote), self.memory.data(0..64))
    }

    fn connect(&mut self, peer: &mut Self) -> Result {
        self.qp.connect(&peer.qp.endpoint()?)?;
        peer.qp.connect(&self.qp.endpoint()?)?;
        Ok(())
    }
}

/// Calls refuse what cannot work, and say why.
fn refusals(end: &mut End) -> Result {
    let refused: PostError = end.qp.post_one(end.write(1, Remote::default())).expect_err("no peer");
    println!("posting before the queue pair is connected: {refused}");

    let refused = end.qp.modify(&QpAttr::to(QpState::Rts)).expect_err("not in one step");
    println!("from Reset to Rts: {refused}");

    let pd = end.qp.handle().pd();
    let refused = pd.alloc_mr(64, Access::REMOTE_WRITE).expect_err("a right without its basis");
    println!("registering memory: {refused}");
    Ok(())
}

/// A request that the peer refuses. Returns when both ends work again.
fn failed_request(here: &mut End, there: &mut End) -> Result {
    let good = there.memory.remote(0);
    let bad = Remote { rkey: Rkey(good.rkey.0 ^ 1), ..good };
    here.qp.post_send([here.write(1, bad), here.write(2, good)])?;

    let (first, second) = (here.cq.wait()?, here.cq.wait()?);
    println!("a WRITE with a wrong key: {} ({})", first.status, first.status as u8);
    println!("the WRITE behind it: {} ({})", second.status, second.status as u8);
    assert_eq!((first.wr_id, first.status), (1, WcStatus::RemoteAccess));
    assert_eq!((second.wr_id, second.status), (2, WcStatus::Flushed));
    assert_eq!(here.qp.state(), QpState::Err);

    // Both ends begin anew: a queue pair in error can only be reset or destroyed.
    here.qp.modify(&QpAttr::to(QpState::Reset))?;
    there.qp.modify(&QpAttr::to(QpState::Reset))?;
    here.connect(there)?;
    here.qp.post_one(here.write(3, good))?;
    assert_eq!(here.cq.wait()?.status, WcStatus::Success);
    println!("after Reset and a new connection: {}", WcStatus::Success);
    Ok(())
}

/// A peer that dies says nothing. Its silence becomes an error after the last retry: after half a
/// second, with the timeout and retry count that `Qp::connect` chooses.
fn silent_peer(here: &mut End, there: End) -> Result {
    let remote = there.memory.remote(0);
    drop(there);
    here.qp.post_one(here.write(4, remote))?;
    let cqe = here.cq.wait()?;
    println!("a WRITE to a peer that is gone: {} ({})", cqe.status, cqe.status as u8);
    assert_eq!(cqe.status, WcStatus::RetryExceeded);
    Ok(())
}

/// A server listens, but not at the port that the client asks for.
fn refused_connection() -> Result {
    let manager = Manager::new();
    let _listener = Listener::bind(&manager, "127.80.9.3:0".parse()?)?;
    match Connector::new(&manager).connect("127.80.9.3:9".parse()?) {
        Err(Error::Cm(error @ CmError::Rejected { .. })) => println!("connecting: {error}"),
        other => return Err(format!("expected a rejection: {other:?}").into()),
    }
    Ok(())
}

fn main() -> Result {
    let (mut here, mut there) = (End::new("127.80.9.1")?, End::new("127.80.9.2")?);
    refusals(&mut here)?;
    here.connect(&mut there)?;
    failed_request(&mut here, &mut there)?;
    refused_connection()?;
    silent_peer(&mut here, there)
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_runs() {
        super::main().expect("the example works");
    }
}
