//! Calls that wait no longer than their caller does, and mistakes that are told at once.

use std::error::Error as _;
use std::time::Duration;

use feroce::cm::{CmError, Connector, Listener, Manager};
use feroce::{Access, Cqe, Data, Device, Error, QpCap, RecvWr, SendOp, SendWr, SgeList};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const SHORT: Duration = Duration::from_millis(20);
/// Longer than anything takes that is going to happen.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_queue_without_completions_is_waited_for_no_longer_than_said() -> Result {
    let context = Device::at(["127.77.1.1".parse()?]).open()?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(8)?);
    assert_eq!(cq.wait_timeout(SHORT)?, None);
    assert_eq!(cq.wait_timeout(Duration::ZERO)?, None);
    let mut qp = pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).create()?;
    qp.connect(&qp.endpoint()?)?;
    let mr = pd.alloc_mr(64, Access::LOCAL_WRITE)?;
    qp.post_recv([RecvWr::new(1, mr.sge(..))])?;
    qp.post_send([SendWr::new(2, SendOp::Send, mr.data(..8))])?;
    let mut ids: Vec<u64> = Vec::new();
    for _ in 0..2 {
        ids.push(cq.wait_timeout(LONG)?.ok_or("no completion")?.wr_id);
    }
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
    Ok(())
}

#[test]
fn a_vector_without_room_gets_some() -> Result {
    let context = Device::at(["127.77.1.2".parse()?]).open()?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(8)?);
    let mut qp = pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).create()?;
    qp.connect(&qp.endpoint()?)?;
    let mr = pd.alloc_mr(64, Access::LOCAL_WRITE)?;
    qp.post_recv([RecvWr::new(1, SgeList::new(&[mr.sge(..32), mr.sge(32..)]))])?;
    qp.post_send([SendWr::new(2, SendOp::Send, Data::EMPTY)])?;
    let mut done: Vec<Cqe> = Vec::new();
    while done.len() < 2 {
        cq.poll(&mut done);
    }
    // What is there stays, and room is used before more is made.
    done.shrink_to_fit();
    qp.post_recv([RecvWr::new(3, mr.sge(..))])?;
    qp.post_send([SendWr::new(4, SendOp::Send, Data::EMPTY)])?;
    while done.len() < 4 {
        cq.poll(&mut done);
    }
    let mut ids: Vec<u64> = done.iter().map(|cqe| cqe.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 3, 4]);
    Ok(())
}

#[test]
fn ranges_are_those_of_slices() -> Result {
    let context = Device::at(["127.77.1.3".parse()?]).open()?;
    let mr = context.alloc_pd()?.alloc_mr(64, Access::LOCAL_WRITE)?;
    let part = |sge: feroce::Sge| (sge.addr - mr.addr(), sge.len);
    assert_eq!(part(mr.sge(..)), (0, 64));
    assert_eq!(part(mr.sge(60..)), (60, 4));
    assert_eq!(part(mr.sge(..=9)), (0, 10));
    assert_eq!(part(mr.sge(64..64)), (64, 0));
    for beyond in [0..1000, 64..65, 9..usize::MAX] {
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| mr.data(beyond)));
        let told = *told.expect_err("a mistake").downcast::<String>().expect("words");
        assert!(told.ends_with("are not in a memory region of 64 bytes"), "{told}");
    }
    Ok(())
}

#[test]
fn connecting_and_accepting_take_no_longer_than_said() -> Result {
    let context = Device::at(["127.77.1.4".parse()?]).open()?;
    let manager = Manager::with([context])?;
    // No process has this address, and no answer comes.
    let absent = "127.77.1.5:4000".parse()?;
    let outcome = Connector::new(&manager).connect_timeout(absent, SHORT);
    let error = outcome.expect_err("there is no peer");
    assert!(matches!(error, Error::Cm(CmError::TimedOut)), "{error:?}");
    assert!(error.source().is_some_and(|cause| cause.to_string() == error.to_string()));

    let listener = Listener::bind(&manager, "127.77.1.4:4001".parse()?)?;
    assert!(listener.accept_timeout(SHORT)?.is_none());
    let to = listener.local_addr();
    let refused = Connector::new(&manager).connect_timeout((to.ip(), 4002).into(), LONG);
    let said = refused.expect_err("no program listens there").to_string();
    assert!(said.ends_with(": no program listens there"), "{said}");
    std::thread::scope(|scope| {
        let client = scope.spawn(|| Connector::new(&manager).connect_timeout(to, LONG));
        let request = listener.accept_timeout(LONG)?.ok_or("no request")?;
        let served = request.accept()?;
        let connected = client.join().expect("no panic")?;
        assert!(!served.wait_disconnected_timeout(SHORT)?);
        drop(connected);
        assert!(served.wait_disconnected_timeout(LONG)?);
        Ok(())
    })
}
