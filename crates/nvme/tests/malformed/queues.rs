//! The same messages over queue pairs, to a target and to a host.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::Poll;

use feroce::cm::{ConnParam, Connection, Connector, Listener, Manager, Request};
use feroce::{
    Access, Context, Cq, Cqe, Data, InlineBytes, Mr, Pd, QpCap, Remote, Rkey, Routed, Router,
    SendOp, SendWr, Srq, WcStatus,
};
use feroce_nvme::wire::{
    CmReply, CmRequest, Command, Completion, SglKind, Status, admin, fabrics, feature, io,
};
use feroce_nvme::{Host, HostError, HostOptions, MemoryNamespace, Namespace as _, Subsystem};

use super::mutate::{BLOCKS, Memory, Random, admin_capsule, answer, connect, damage, io_capsule};
use super::{Counts, asked};
use crate::together::{Result, manager, nqn, serve};

/// Receives of a queue.
const RECEIVES: usize = 16;

/// Bytes of a capsule that a target receives.
const CAPSULE: usize = 64 + 4096;

/// Bytes of a host that a target may read and write.
const MEMORY: usize = 65536;

/// Capsules on a connection, before it is made anew.
const CAPSULES: u64 = 64;

/// Number of the command that shows that the queue is served.
const PROBE: u16 = 0xfffe;

fn cap() -> QpCap {
    QpCap { max_inline: 64, ..QpCap::new(8, 0) }
}

/// What a queue pair is made of.
struct Parts {
    pd: Pd,
    cq: Cq,
    srq: Srq,
    router: Router,
    replies: Mr,
    /// Receives, with the places of their bytes.
    posted: VecDeque<(usize, Routed)>,
    memory: Mr,
}

impl Parts {
    /// With receives of so many bytes.
    fn new(context: &Context, len: usize) -> Result<Self> {
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(64)?);
        let srq = pd.create_srq(RECEIVES as u32, 1)?;
        let router = Router::new(&cq);
        let replies = pd.alloc_mr(RECEIVES * len, Access::LOCAL_WRITE)?;
        let mut posted = VecDeque::new();
        for at in (0..RECEIVES).map(|i| i * len) {
            posted.push_back((at, router.recv_shared(&srq, replies.recv(0, at..at + len))?));
        }
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let memory = pd.alloc_mr(MEMORY + CAPSULE, access)?;
        Ok(Self { pd, cq, srq, router, replies, posted, memory })
    }
}

/// One end of a connection that sends any bytes.
struct Raw {
    connection: Connection,
    parts: Parts,
}

impl Raw {
    /// Accepts a queue, as a target does.
    async fn accept(request: Request, asked: CmRequest) -> Result<Self> {
        let context = request.context().ok_or("no device")?;
        let parts = Parts::new(context, CAPSULE)?;
        let private_data = CmReply { recv_size: asked.send_size + 1 }.emit().to_vec();
        let param = ConnParam { private_data, ..request.offered().unwrap_or_default() };
        let Parts { pd, cq, srq, .. } = &parts;
        let request = request.param(param).pd(pd).cqs(cq, cq).srq(srq).cap(cap());
        let connection = request.prepare()?.accept_async().await?;
        Ok(Self { connection, parts })
    }

    /// Connects a queue of a host.
    async fn connect(here: &Manager, at: SocketAddr, queue: u16) -> Result<Self> {
        let request = CmRequest { queue, recv_size: 32, send_size: 31 };
        let param = ConnParam { private_data: request.emit().to_vec(), ..ConnParam::default() };
        let contexts = here.contexts();
        let parts = Parts::new(contexts.first().ok_or("no device")?, 16)?;
        let Parts { pd, cq, srq, .. } = &parts;
        let connector = Connector::new(here).param(param).pd(pd).cqs(cq, cq).srq(srq).cap(cap());
        let connection = connector.connect_async(at).await?;
        Ok(Self { connection, parts })
    }

    fn described(&self) -> Memory {
        let memory = &self.parts.memory;
        Memory { addr: memory.addr(), key: memory.rkey().0, len: MEMORY as u32 }
    }

    /// The completion of a request, unless the connection ends first.
    async fn done(connection: &Connection, request: &mut Routed) -> Option<Cqe> {
        let mut ended = pin!(connection.wait_disconnected_async());
        let cqe = poll_fn(|cx| match Pin::new(&mut *request).poll(cx) {
            Poll::Ready(cqe) => Poll::Ready(Some(cqe)),
            Poll::Pending => ended.as_mut().poll(cx).map(|_| None),
        });
        cqe.await.filter(|cqe| cqe.status == WcStatus::Success)
    }

    /// Executes a send request; none if the connection has ended.
    async fn post(&mut self, op: SendOp, data: Data) -> Option<()> {
        let sent = self.parts.router.send(&mut self.connection, SendWr::new(0, op, data));
        Self::done(&self.connection, &mut sent.ok()?).await.map(drop)
    }

    /// Sends a message.
    async fn send(&mut self, bytes: &[u8]) -> Option<()> {
        self.parts.memory.write_at(MEMORY, bytes).ok()?;
        let data = self.parts.memory.data(MEMORY..MEMORY + bytes.len());
        self.post(SendOp::Send, data).await
    }

    /// The next message.
    async fn receive(&mut self) -> Option<Vec<u8>> {
        let (at, mut received) = self.parts.posted.pop_front()?;
        let cqe = Self::done(&self.connection, &mut received).await?;
        let Parts { replies, srq, router, posted, .. } = &mut self.parts;
        let len = replies.len() / RECEIVES;
        let mut bytes = vec![0; len.min(cqe.byte_len as usize)];
        replies.read_at(at, &mut bytes).ok()?;
        let again = router.recv_shared(srq, replies.recv(0, at..at + len));
        posted.push_back((at, again.ok()?));
        Some(bytes)
    }

    /// Executes a command that makes sense.
    async fn call(&mut self, command: &Command, data: &[u8]) -> Option<Completion> {
        self.send(&[&command.emit()[..], data].concat()).await?;
        loop {
            let completion = Completion::parse(&self.receive().await?)?;
            if completion.cid == command.cid {
                return Some(completion);
            }
        }
    }
}

/// A host that has connected both queues.
async fn associated(here: &Manager, at: SocketAddr) -> Result<[Raw; 2]> {
    let mut admin = Raw::connect(here, at, 0).await?;
    let (command, data) = connect(0, 0xffff);
    let connected = admin.call(&command, &data).await.ok_or("no answer to Connect")?;
    let mut enable = Command::fabrics(fabrics::PROPERTY_SET);
    (enable.cdw[1], enable.cdw[2]) = (0x14, 0x46_0001);
    admin.call(&enable, &[]).await.ok_or("no answer to Property Set")?;
    let mut queues = Command::new(admin::SET_FEATURES);
    queues.cdw[0] = feature::QUEUES.into();
    admin.call(&queues, &[]).await.ok_or("no answer to Set Features")?;
    let mut io = Raw::connect(here, at, 1).await?;
    let (command, data) = connect(1, connected.result as u16);
    let connected = io.call(&command, &data).await.ok_or("no answer to Connect")?;
    assert_eq!(connected.status, Status::SUCCESS);
    Ok([admin, io])
}

/// Sends a capsule and then a command that makes sense; the capsule has its answer by then, or
/// gets it with that one. None if the target ends the connection.
async fn try_capsule(
    raw: &mut Raw,
    is_admin: bool,
    capsule: &[u8],
    counts: &mut Counts,
) -> Option<()> {
    raw.send(capsule).await?;
    let opcode = if is_admin { admin::KEEP_ALIVE } else { io::FLUSH };
    let probe = Command { cid: PROBE, nsid: 1, ..Command::new(opcode) };
    raw.send(&probe.emit()).await?;
    loop {
        let completion = Completion::parse(&raw.receive().await?)?;
        counts.status(completion.status);
        if completion.cid == PROBE {
            return Some(());
        }
    }
}

#[tokio::test]
async fn a_target_answers_damaged_capsules_and_lives_on() -> Result<()> {
    let count = asked().map_or(600, |count| count / 50);
    let disks = Subsystem::new(nqn("malformed")).disk(MemoryNamespace::new(BLOCKS as usize));
    let at = serve("127.32.13.1", vec![disks])?;
    let here = manager("127.32.13.2")?;
    let (mut random, mut counts) = (Random::new(3), Counts::default());
    let mut done = 0;
    while done < count {
        let mut queues = associated(&here, at).await?;
        let is_admin = random.below(3) == 0;
        let raw = &mut queues[usize::from(!is_admin)];
        for _ in 0..CAPSULES {
            let make = if is_admin { admin_capsule } else { io_capsule };
            let mut capsule = make(&mut random, raw.described());
            damage(&mut random, &mut capsule, CAPSULE);
            done += 1;
            if try_capsule(raw, is_admin, &capsule, &mut counts).await.is_none() {
                counts.add("connections that the target ended");
                break;
            }
        }
    }
    eprintln!("{done} capsules over queue pairs: {:#?}", counts.0);
    // A host that makes sense is served as before.
    let options = HostOptions { host: nqn("host"), ..HostOptions::default() };
    let host = Host::connect(&here, at, &nqn("malformed"), &options).await?;
    let disk = host.namespace(1).await?;
    disk.write(3, &[5; 512]).await?;
    let mut found = [0; 512];
    disk.read(3, &mut found).await?;
    assert_eq!(found, [5; 512]);
    Ok(())
}

/// Answers a host that connects, and damages one of the answers of each of its queues.
async fn answer_badly(request: Request, random: &mut Random) -> Result<()> {
    let asked = CmRequest::parse(request.private_data()).map_err(|_| "a request")?;
    let mut raw = Raw::accept(request, asked).await?;
    let mut good = random.below(if asked.queue == 0 { 12 } else { 3 });
    while let Some(capsule) = raw.receive().await {
        let command = Command::parse(&capsule).ok_or("a short capsule")?;
        let (completion, data) = answer(&command);
        let (mut bytes, mut data) = (completion.emit().to_vec(), data.unwrap_or_default());
        if good == 0 {
            damage(random, &mut bytes, 64);
            damage(random, &mut data, 4096);
        }
        good = good.wrapping_sub(1);
        if let (SglKind::Keyed { addr, key, .. }, false) = (command.sgl.kind(), data.is_empty()) {
            raw.parts.memory.write_at(0, &data)?;
            let write = SendOp::Write(Remote { addr, rkey: Rkey(key) });
            let data = raw.parts.memory.data(0..data.len());
            raw.post(write, data).await.ok_or("not written")?;
        }
        let data = Data::Inline(InlineBytes::new(&bytes));
        raw.post(SendOp::Send, data).await.ok_or("not sent")?;
    }
    Ok(())
}

#[tokio::test]
async fn a_host_survives_damaged_answers() -> Result<()> {
    let count = asked().map_or(100, |count| count / 500);
    let here = manager("127.32.14.2")?;
    let listener = Listener::bind(&manager("127.32.14.1")?, "127.32.14.1:0".parse()?)?;
    let at = listener.local_addr();
    tokio::spawn(async move {
        let mut random = Random::new(5);
        while let Ok(request) = listener.accept_async().await {
            let mut random = Random::new(random.next());
            // An error ends the connection, which is what the host sees.
            tokio::spawn(async move { drop(answer_badly(request, &mut random).await) });
        }
    });
    let mut counts = Counts::default();
    for _ in 0..count {
        let options = HostOptions { host: nqn("host"), ..HostOptions::default() };
        let used = async {
            let host = Host::connect(&here, at, &nqn("malformed"), &options).await?;
            let disk = host.namespace(1).await?;
            disk.flush().await.map_err(HostError::Command)
        };
        counts.add(match used.await {
            Ok(()) => "success",
            Err(HostError::Lost) => "lost",
            Err(HostError::Refused(_) | HostError::Command(_)) => "a status",
            Err(HostError::Target(_)) => "a target that cannot be used",
            Err(_) => "another error",
        });
    }
    eprintln!("{count} hosts: {:#?}", counts.0);
    assert!(counts.0.contains_key("success") && counts.0.len() > 2, "{counts:?}");
    Ok(())
}
