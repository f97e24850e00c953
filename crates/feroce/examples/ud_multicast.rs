//! UD multicast: one datagram reaches every member of a group. Datagrams may be lost, so a member
//! has to know what it misses; here each carries its number.
//!
//! ```text
//! cargo run -p feroce --example ud_multicast
//! ```

use feroce::{
    Access, AddrVec, Context, Cq, Device, Gid, Mr, Pd, Qkey, Qp, QpCap, Qpn, SendOp, SendWr,
    WcStatus,
};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// All members of a group use the same key; datagrams with another one are dropped.
const QKEY: Qkey = Qkey(0x1234);
const DATAGRAMS: usize = 5;
/// What a receive buffer has in front of the datagram: a global route header, or room for it.
const GRH: usize = 40;
const BUFFER: usize = 128;

/// A queue pair for datagrams. It is connected to no one and can send to all.
struct Member {
    context: Context,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    memory: Mr,
}

impl Member {
    fn new(address: &str) -> Result<Self> {
        let context = Device::at([address.parse()?]).open()?;
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(32)?);
        let mut qp = pd.ud_qp(&cq, &cq, QpCap::new(8, 8)).create()?;
        qp.activate(QKEY)?;
        let memory = pd.alloc_mr(DATAGRAMS * BUFFER, Access::LOCAL_WRITE)?;
        Ok(Self { context, pd, cq, qp, memory })
    }

    fn join(&mut self, group: Gid) -> Result {
        let buffers =
            (0..DATAGRAMS).map(|i| self.memory.recv(i as u64, i * BUFFER..(i + 1) * BUFFER));
        self.qp.post_recv(buffers)?;
        self.qp.attach_mcast(group)?;
        Ok(())
    }

    /// Sends datagrams to all members of a group.
    fn speak(&mut self, group: Gid) -> Result {
        // An address handle says where to; it lives until the last datagram is sent. All members
        // of a group are reached at one number, which is no queue pair's own.
        let sgid_index = self.context.port().first_gid();
        let ah = self.pd.create_ah(AddrVec { dgid: group, sgid_index, ..AddrVec::default() })?;
        let dest = ah.dest(Qpn::MULTICAST, QKEY);
        for number in 0..DATAGRAMS {
            let text = format!("datagram {number}");
            self.memory.write_at(0, text.as_bytes())?;
            let data = self.memory.data(0..text.len());
            self.qp.post_one(SendWr { dest, ..SendWr::new(number as u64, SendOp::Send, data) })?;
            // It is sent; whether it arrives is not known here.
            assert_eq!(self.cq.wait()?.status, WcStatus::Success);
        }
        Ok(())
    }

    /// The next datagram, and the queue pair that sent it.
    fn receive(&self) -> Result<(String, Qpn)> {
        let cqe = self.cq.wait()?;
        assert_eq!(cqe.status, WcStatus::Success);
        let mut bytes = vec![0; cqe.byte_len as usize - GRH];
        self.memory.read_at(cqe.wr_id as usize * BUFFER + GRH, &mut bytes)?;
        Ok((String::from_utf8(bytes)?, cqe.src_qp))
    }
}

fn main() -> Result {
    let group = Gid::from_ipv4([239, 80, 6, 1]);
    let mut speaker = Member::new("127.80.6.1")?;
    let mut listeners = Vec::new();
    for address in ["127.80.6.2", "127.80.6.3", "127.80.6.4"] {
        let mut listener = Member::new(address)?;
        listener.join(group)?;
        listeners.push((address, listener));
    }
    speaker.speak(group)?;
    for (address, listener) in &listeners {
        for number in 0..DATAGRAMS {
            let (text, from) = listener.receive()?;
            assert_eq!((text, from), (format!("datagram {number}"), speaker.qp.qpn()));
        }
        println!("{address} has all {DATAGRAMS} datagrams of the group 239.80.6.1");
    }
    for (_, listener) in &mut listeners {
        listener.qp.detach_mcast(group)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_runs() {
        super::main().expect("the example works");
    }
}
