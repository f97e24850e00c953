//! What may be sent to other threads and shared between them, which the compiler checks; and
//! threads that drive one device for each other.

use std::error::Error;
use std::sync::mpsc::channel;
use std::thread;

use feroce::cm::{CmId, Connection, Connector, EventChannel, Listener, Manager};
use feroce::{
    Access, CompChannel, Context, Cq, Device, Mr, Pd, Qp, QpCap, SendOp, SendWr, Srq, WcOpcode,
};

fn is_shared<T: Send + Sync>() {}

fn is_sent<T: Send>(_: T) {}

#[test]
fn objects_are_sent_and_shared() {
    is_shared::<Connection>();
    is_shared::<Connector>();
    is_shared::<Listener>();
    is_shared::<Manager>();
    is_shared::<EventChannel>();
    is_shared::<CmId>();
    is_shared::<Qp>();
    is_shared::<Cq>();
    is_shared::<CompChannel>();
    is_shared::<Context>();
    is_shared::<Device>();
    is_shared::<Mr>();
    is_shared::<Pd>();
    is_shared::<Srq>();
}

/// What `tokio::spawn` demands of a future: that it can be sent. It need not run for that.
#[expect(dead_code, reason = "the compiler checks it")]
fn futures_of_connections_are_sent(connection: Connection) {
    is_sent(async move {
        connection.wait_disconnected_async().await?;
        connection.disconnect_async().await
    });
}

/// A queue pair with a completion queue of its own.
struct End {
    qp: Qp,
    cq: Cq,
    mr: Mr,
}

impl End {
    fn new(context: &Context, pd: &Pd) -> Result<Self, Box<dyn Error>> {
        let cq = context.create_cq(64)?;
        let qp = pd.rc_qp(&cq, &cq, QpCap::new(16, 16)).create()?;
        Ok(Self { qp, cq, mr: pd.alloc_mr(64, Access::LOCAL_WRITE)? })
    }

    fn expect(&mut self) {
        self.qp.post_recv([self.mr.recv(0, 0..8)]).expect("room for a receive");
    }

    fn send(&mut self) {
        self.qp
            .post_send([SendWr::new(1, SendOp::Send, self.mr.data(8..16))])
            .expect("room for a send");
    }

    fn receive(&mut self) {
        while self.cq.poll_one().is_none_or(|cqe| cqe.opcode != WcOpcode::Recv) {}
        self.expect();
    }
}

#[test]
fn a_thread_drives_when_the_one_that_drove_last_polls_no_more() -> Result<(), Box<dyn Error>> {
    let context = Device::at(["127.81.2.1".parse()?]).open()?;
    let pd = context.alloc_pd()?;
    let (mut a, mut b) = (End::new(&context, &pd)?, End::new(&context, &pd)?);
    a.qp.connect(&b.qp.endpoint()?)?;
    b.qp.connect(&a.qp.endpoint()?)?;
    a.expect();
    b.expect();
    thread::scope(|scope| {
        let ((gives, given), (takes, taken)) = (channel(), channel());
        scope.spawn(move || {
            for round in 0..200 {
                b.receive();
                b.send();
                if round % 20 == 19 {
                    // The other thread waits for this one, and does not poll.
                    gives.send(()).unwrap();
                    b.receive();
                    takes.send(()).unwrap();
                }
            }
        });
        for round in 0..200 {
            a.send();
            a.receive();
            if round % 20 == 19 {
                given.recv().unwrap();
                a.send();
                taken.recv().unwrap();
            }
        }
    });
    Ok(())
}
