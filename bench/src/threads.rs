//! Two threads of one process that exchange messages over one device, each polling a completion
//! queue of its own. Threads that exchange bytes through pipes do the same beside them: a ratio of
//! the two depends less on what else the machine does. One thread that does the work of both shows
//! what the exchange takes where nothing moves from one processor's cache to another's. On a device
//! with two shards, each thread has one to itself.

use std::io::{Read as _, Write as _, pipe};
use std::thread;
use std::time::Instant;

use feroce::{Access, Cq, Device, Mr, Qp, QpCap, SendOp, SendWr, Settings, WcOpcode};

use crate::Effort;
use crate::report::{Figure, Wanted};

/// Exchanges in a sample.
const COUNT: u32 = 500;

/// Microseconds of an exchange, and its ratio to one through pipes.
pub(crate) fn threads(effort: Effort) -> Result<Vec<Figure>, String> {
    let open = |shards| pair(shards).map_err(|e| format!("cannot open a device: {e}"));
    let (mut ends, mut apart) = (open(1)?, open(2)?);
    let (mut times, mut alone, mut sharded) = (Vec::new(), Vec::new(), Vec::new());
    let (mut ratios, mut sharded_ratios) = (Vec::new(), Vec::new());
    let exchange = |seconds: f64| seconds / f64::from(COUNT) * 1e6;
    through_device(&mut ends);
    through_device(&mut apart);
    for _ in 0..effort.samples() / 5 {
        let (ours, theirs) = (through_device(&mut ends), through_pipes()?);
        let by_shards = through_device(&mut apart);
        times.push(exchange(ours));
        sharded.push(exchange(by_shards));
        alone.push(exchange(by_one_thread(&mut ends)));
        ratios.push(ours / theirs);
        sharded_ratios.push(by_shards / theirs);
    }
    let wanted = Wanted::AtMost(1.0);
    Ok(vec![
        Figure::new("SEND there and back between two threads", "us", times),
        Figure::new("the same, each with a shard", "us", sharded),
        Figure::new("SEND there and back by one thread", "us", alone),
        Figure::new("SEND there and back: of pipes", "ratio", ratios).wanted(wanted),
        Figure::new("the same, each with a shard: of pipes", "ratio", sharded_ratios)
            .wanted(wanted),
    ])
}

/// A queue pair with all that one thread needs.
struct End {
    qp: Qp,
    cq: Cq,
    mr: Mr,
}

fn pair(shards: u8) -> Result<[End; 2], feroce::Error> {
    let settings = Settings { shards, ..Settings::load()? };
    let context = Device::at([[127, 0, 77, shards].into()]).open_with(settings)?;
    let pd = context.alloc_pd()?;
    let end = || {
        let cq = context.create_cq(64)?;
        let qp = pd.rc_qp(&cq, &cq, QpCap::new(16, 16)).create()?;
        Ok::<_, feroce::Error>(End { qp, cq, mr: pd.alloc_mr(64, Access::LOCAL_WRITE)? })
    };
    let (mut a, mut b) = (end()?, end()?);
    let (to_a, to_b) = (a.qp.endpoint()?, b.qp.endpoint()?);
    a.qp.connect(&to_b)?;
    b.qp.connect(&to_a)?;
    for end in [&mut a, &mut b] {
        end.expect();
    }
    Ok([a, b])
}

impl End {
    fn expect(&mut self) {
        self.qp.post_recv([self.mr.recv(0, 0..8)]).expect("room for a receive");
    }

    fn send(&mut self) {
        let wr = SendWr::new(1, SendOp::Send, self.mr.data(8..16));
        self.qp.post_send([wr]).expect("room for a send");
    }

    fn receive(&mut self) {
        while self.cq.poll_one().is_none_or(|cqe| cqe.opcode != WcOpcode::Recv) {}
        self.expect();
    }
}

/// Seconds that the exchanges take.
fn through_device([a, b]: &mut [End; 2]) -> f64 {
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..COUNT {
                b.receive();
                b.send();
            }
        });
        for _ in 0..COUNT {
            a.send();
            a.receive();
        }
    });
    start.elapsed().as_secs_f64()
}

/// The same, by one thread.
fn by_one_thread([a, b]: &mut [End; 2]) -> f64 {
    let start = Instant::now();
    for _ in 0..COUNT {
        a.send();
        b.receive();
        b.send();
        a.receive();
    }
    start.elapsed().as_secs_f64()
}

/// The same through two pipes.
fn through_pipes() -> Result<f64, String> {
    let make = || pipe().map_err(|e| format!("cannot create a pipe: {e}"));
    let ((mut read_there, mut write_there), (mut read_back, mut write_back)) = (make()?, make()?);
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut byte = [0];
            for _ in 0..COUNT {
                read_there.read_exact(&mut byte).expect("the other end is open");
                write_back.write_all(&byte).expect("the other end is open");
            }
        });
        let mut byte = [0];
        for _ in 0..COUNT {
            write_there.write_all(&byte).expect("the other end is open");
            read_back.read_exact(&mut byte).expect("the other end is open");
        }
    });
    Ok(start.elapsed().as_secs_f64())
}
