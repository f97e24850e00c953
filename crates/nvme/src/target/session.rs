//! Commands of a connected queue.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use feroce::cm::{CmId, Connection, EventKind};
use feroce::{
    Access, Buf, Data, InlineBytes, Iova, Mr, Pd, Pool, Remote, Rkey, Routed, RoutedBuf, Router,
    SendOp, SendWr, Srq, WcStatus,
};

use super::association::{Asking, Association, Shared};
use super::lock;
use crate::auth::{self, ControllerAuth};
use crate::controller::check_range;
use crate::controller::{Answer, DiskCommand, DiskOp, disk_command};
use crate::namespace::Namespace;
use crate::wire::{
    CAPSULE, CONNECT_DATA, CmRequest, Command, Completion, ConnectData, DataRange, SglKind, Status,
    fabrics,
};

/// A connected queue.
#[derive(Debug)]
pub(super) struct Session {
    connection: Mutex<Connection>,
    id: CmId,
    router: Router,
    srq: Srq,
    data: Pool,
    queue: u16,
    size: u16,
    shared: Arc<Shared>,
    state: Mutex<State>,
    /// Where disks in memory are registered, unless their data is copied.
    pd: Option<Pd>,
    /// Those that were used, by their number.
    registered: Mutex<BTreeMap<u32, Arc<Mr>>>,
}

#[derive(Debug, Default)]
struct State {
    /// None until the host has sent Connect.
    association: Option<Arc<Association>>,
    sq_head: u16,
    /// What the host must do before it may send other commands.
    auth: Option<ControllerAuth>,
}

/// Bit of the result of Connect: the host must authenticate.
const AUTHENTICATE: u64 = 1 << 17;

/// Why a command is not answered: the connection has failed.
#[derive(Debug)]
struct Lost;

/// Why data of a host could not be had.
enum Fault {
    Status(Status),
    Lost,
}

impl From<Status> for Fault {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl From<Lost> for Fault {
    fn from(_: Lost) -> Self {
        Self::Lost
    }
}

/// Data of a host.
enum Payload<'a> {
    Capsule(&'a [u8]),
    Read(Buf, usize),
}

impl Payload<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Capsule(bytes) => bytes,
            Self::Read(buf, len) => &buf[..*len],
        }
    }
}

/// Data for a host.
enum Outgoing {
    Buf(Buf, usize),
    /// Bytes of a disk in memory.
    Memory(Arc<Mr>, Range<usize>),
}

/// What a host gets.
#[derive(Default)]
struct Response {
    status: Status,
    result: u64,
    data: Option<Outgoing>,
    /// A held command that ends before.
    aborts: Option<u16>,
    /// No completion, for now.
    is_held: bool,
}

impl Response {
    fn of(status: Status) -> Self {
        Self { status, ..Self::default() }
    }
}

/// Keeps one receive posted, and executes the commands that arrive in it, one after the other. So a
/// queue has as many commands under way as receives, and its send queue has room for all of them:
/// a host that sends more waits, because its sends find no receive.
pub(super) async fn receive(session: Arc<Session>, mut received: RoutedBuf) {
    loop {
        let (cqe, buf) = received.await;
        let Some(buf) = buf else { return session.end() };
        let capsule = &buf[..buf.len().min(cqe.byte_len as usize)];
        let Some(command) = Command::parse(capsule).filter(|_| cqe.status == WcStatus::Success)
        else {
            return session.end();
        };
        session.hear();
        let response = match session.execute(&command, &capsule[CAPSULE..]).await {
            Ok(response) => response,
            Err(Fault::Status(status)) => Response::of(status),
            Err(Fault::Lost) => return session.end(),
        };
        // The receive is posted before the response: the host may send its next command then.
        let Ok(next) = session.router.recv_buf_shared(&session.srq, buf) else {
            return session.end();
        };
        received = next;
        if session.respond(&command, response).await.is_err() {
            return session.end();
        }
    }
}

impl Session {
    pub(super) fn new(
        connection: Connection,
        router: Router,
        srq: Srq,
        data: Pool,
        asked: CmRequest,
        shared: Arc<Shared>,
        pd: Option<Pd>,
    ) -> Self {
        let id = connection.id().clone();
        Self {
            connection: Mutex::new(connection),
            id,
            router,
            srq,
            data,
            queue: asked.queue,
            size: asked.send_size + 1,
            shared,
            state: Mutex::default(),
            pd,
            registered: Mutex::default(),
        }
    }

    /// Resolves when the connection has ended.
    pub(super) async fn ended(&self) {
        use EventKind::{ConnectError, DeviceRemoval, Disconnected, Unreachable};
        let channel = self.id.channel();
        loop {
            let kind = channel.event().await.kind;
            if matches!(kind, Disconnected | Unreachable | ConnectError | DeviceRemoval) {
                return;
            }
        }
    }

    /// Ends the connection.
    fn end(&self) {
        // An error means that it has ended already.
        let _ = self.id.disconnect();
    }

    /// The connection has ended.
    pub(super) fn leave(&self) {
        self.end();
        let association = lock(&self.state).association.take();
        association.into_iter().for_each(|a| self.shared.leave(&a, self.queue));
    }

    fn association(&self) -> Option<Arc<Association>> {
        lock(&self.state).association.clone()
    }

    fn hear(&self) {
        self.association().into_iter().for_each(|association| association.hear());
    }

    async fn execute(&self, command: &Command, capsule: &[u8]) -> Result<Response, Fault> {
        let Some(association) = self.association() else {
            return self.connect(command, capsule).await;
        };
        if lock(&self.state).auth.is_some() {
            return self.authenticate(command, capsule).await;
        }
        if self.queue != 0 {
            return self.disk(&association, command, capsule).await;
        }
        let answer = lock(&association.controller).handle(command);
        Ok(match answer {
            Answer::Done(status, result) => Response { status, result, ..Response::default() },
            Answer::Held => Response { is_held: true, ..Response::default() },
            Answer::Aborts(cid) => Response { aborts: Some(cid), ..Response::default() },
            Answer::Data(bytes) => {
                check_length(command, bytes.len())?;
                let mut buf = self.data.take().await;
                buf[..bytes.len()].copy_from_slice(&bytes);
                Response { data: Some(Outgoing::Buf(buf, bytes.len())), ..Response::default() }
            }
        })
    }

    async fn connect(&self, command: &Command, capsule: &[u8]) -> Result<Response, Fault> {
        let is_connect =
            command.opcode == fabrics::OPCODE && command.fabrics_type() == fabrics::CONNECT;
        if !is_connect {
            return Err(Status::SEQUENCE.do_not_retry().into());
        }
        let payload = self.fetch(command, CONNECT_DATA, capsule).await?;
        let data = ConnectData::parse(payload.bytes()).ok_or(Status::SGL_LENGTH)?;
        let at = self.id.local_addr();
        let at = at.unwrap_or_else(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0));
        let context = self.id.context().ok_or(Status::INTERNAL)?;
        let (queue, size) = (self.queue, self.size);
        let asking = Asking { id: &self.id, context, queue, size, at };
        Ok(match self.shared.connect(&asking, command, &data) {
            Ok(association) => {
                let controller = lock(&association.controller);
                let number = u64::from(controller.number());
                let parties = controller.parties();
                drop(controller);
                let mut state = lock(&self.state);
                state.auth = parties.map(|parties| ControllerAuth::new(parties, auth::random));
                let result = if state.auth.is_some() { number | AUTHENTICATE } else { number };
                let before = state.association.replace(association);
                drop(state);
                // Two Connects at a time on one queue: the earlier association ends.
                before.into_iter().for_each(|before| self.shared.leave(&before, self.queue));
                Response { result, ..Response::default() }
            }
            Err((status, result)) => Response { status, result, ..Response::default() },
        })
    }

    /// Executes a command of a host that has not proven itself.
    async fn authenticate(&self, command: &Command, capsule: &[u8]) -> Result<Response, Fault> {
        let required = Fault::from(Status::AUTH_REQUIRED.do_not_retry());
        if command.opcode != fabrics::OPCODE {
            return Err(required);
        }
        let len = auth::length(&command.cdw).ok_or(Status::INVALID_FIELD.do_not_retry());
        match command.fabrics_type() {
            fabrics::AUTH_SEND => {
                let payload = self.fetch(command, len?, capsule).await?;
                let mut state = lock(&self.state);
                let Some(auth) = &mut state.auth else { return Err(required) };
                auth.handle(payload.bytes());
                if auth.is_done() {
                    state.auth = None;
                }
                Ok(Response::default())
            }
            fabrics::AUTH_RECEIVE => {
                let len = len?;
                check_length(command, len)?;
                let mut buf = self.data.take().await;
                let mut state = lock(&self.state);
                let told = state.auth.as_mut().and_then(ControllerAuth::tell);
                if state.auth.as_ref().is_some_and(ControllerAuth::is_done) {
                    state.auth = None;
                }
                drop(state);
                let told = told.ok_or(Status::SEQUENCE.do_not_retry())?;
                let room = buf.get_mut(..len).filter(|room| room.len() >= told.len());
                let room = room.ok_or(Status::INVALID_FIELD.do_not_retry())?;
                room.fill(0);
                room[..told.len()].copy_from_slice(&told);
                Ok(Response { data: Some(Outgoing::Buf(buf, len)), ..Response::default() })
            }
            _ => Err(required),
        }
    }

    async fn disk(
        &self,
        association: &Association,
        command: &Command,
        capsule: &[u8],
    ) -> Result<Response, Fault> {
        let subsystem = {
            let controller = lock(&association.controller);
            let is_ready = controller.is_ready();
            controller.subsystem().filter(|_| is_ready).cloned()
        };
        let subsystem = subsystem.ok_or(Status::SEQUENCE.do_not_retry())?;
        let found = subsystem.namespace(command.nsid);
        let disk = found.ok_or(Status::INVALID_NAMESPACE.do_not_retry())?.as_ref();
        let checked = disk_command(command, disk)?;
        let result = self.execute_disk(command, &checked, disk, capsule).await;
        match &result {
            Ok(response) => subsystem.counters().count(&checked, response.status),
            Err(Fault::Status(status)) => subsystem.counters().count(&checked, *status),
            Err(Fault::Lost) => {}
        }
        result
    }

    /// Executes a command that was checked.
    async fn execute_disk(
        &self,
        command: &Command,
        checked: &DiskCommand,
        disk: &dyn Namespace,
        capsule: &[u8],
    ) -> Result<Response, Fault> {
        let DiskCommand { op, lba, blocks, len, durable } = *checked;
        match op {
            DiskOp::Flush => disk.flush().await?,
            DiskOp::WriteZeroes => disk.write_zeroes(lba, blocks).await?,
            DiskOp::Read => {
                check_length(command, len)?;
                if let Some((mr, place)) = self.registered(command.nsid, disk, checked) {
                    let data = Some(Outgoing::Memory(mr, place));
                    return Ok(Response { data, ..Response::default() });
                }
                let mut buf = self.data.take().await;
                disk.read(lba, &mut buf[..len]).await?;
                let data = Some(Outgoing::Buf(buf, len));
                return Ok(Response { data, ..Response::default() });
            }
            DiskOp::Write => {
                if !self.read_into(command, checked, disk).await? {
                    let payload = self.fetch(command, len, capsule).await?;
                    disk.write(lba, payload.bytes()).await?;
                }
            }
            DiskOp::Compare => {
                let payload = self.fetch(command, len, capsule).await?;
                let mut found = vec![0; len];
                disk.read(lba, &mut found).await?;
                if found != payload.bytes() {
                    return Err(Status::COMPARE.do_not_retry().into());
                }
            }
            DiskOp::Deallocate => {
                let payload = self.fetch(command, len, capsule).await?;
                deallocate(disk, payload.bytes()).await?;
            }
            DiskOp::Hint => {}
        }
        if durable {
            disk.flush().await?;
        }
        Ok(Response::default())
    }

    /// Reads what a host writes straight into a disk in memory. False if it must be copied: the
    /// disk is none, or the data is in the capsule or not as long as it must be.
    async fn read_into(
        &self,
        command: &Command,
        checked: &DiskCommand,
        disk: &dyn Namespace,
    ) -> Result<bool, Fault> {
        let SglKind::Keyed { addr, key, len, .. } = command.sgl.kind() else { return Ok(false) };
        if (len as usize) < checked.len {
            return Ok(false);
        }
        let Some((mr, place)) = self.registered(command.nsid, disk, checked) else {
            return Ok(false);
        };
        let read = SendOp::Read(Remote { addr, rkey: Rkey(key) });
        let read = SendWr::new(0, read, mr.data(place));
        let read = self.router.send(&mut lock(&self.connection), read).map_err(|_| Lost)?;
        if read.await.status == WcStatus::Success { Ok(true) } else { Err(Fault::Lost) }
    }

    /// Where the blocks of a command are, if the disk is in memory that may be registered.
    fn registered(
        &self,
        nsid: u32,
        disk: &dyn Namespace,
        checked: &DiskCommand,
    ) -> Option<(Arc<Mr>, Range<usize>)> {
        let (pd, region) = (self.pd.as_ref()?, disk.memory()?);
        let start = usize::try_from(checked.lba).ok()?.checked_mul(disk.block_size() as usize)?;
        let place = start..start.checked_add(checked.len)?;
        let mut registered = lock(&self.registered);
        if let Some(mr) = registered.get(&nsid) {
            return Some((Arc::clone(mr), place));
        }
        let mr = pd.register(Arc::clone(region), Iova::Natural, Access::LOCAL_WRITE).ok()?;
        let mr = Arc::new(mr);
        registered.insert(nsid, Arc::clone(&mr));
        Some((mr, place))
    }

    /// The data that a host sends with a command: at least `len` bytes, of which the first are
    /// taken.
    async fn fetch<'a>(
        &self,
        command: &Command,
        len: usize,
        capsule: &'a [u8],
    ) -> Result<Payload<'a>, Fault> {
        match command.sgl.kind() {
            SglKind::InCapsule { len: found, .. } | SglKind::Keyed { len: found, .. }
                if (found as usize) < len =>
            {
                Err(Status::SGL_LENGTH.do_not_retry().into())
            }
            SglKind::InCapsule { offset, .. } => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let bytes = capsule.get(start..).and_then(|bytes| bytes.get(..len));
                Ok(Payload::Capsule(bytes.ok_or(Status::SGL_OFFSET.do_not_retry())?))
            }
            SglKind::Keyed { addr, key, .. } => {
                let buf = self.data.take().await;
                let read = SendOp::Read(Remote { addr, rkey: Rkey(key) });
                let buf = done(self.transfer(read, buf, len)?).await?;
                Ok(Payload::Read(buf, len))
            }
            SglKind::Unknown(_) => Err(Status::SGL_TYPE.do_not_retry().into()),
        }
    }

    fn transfer(&self, op: SendOp, buf: Buf, len: usize) -> Result<RoutedBuf, Lost> {
        self.router.send_buf(&mut lock(&self.connection), op, buf, 0..len).map_err(|_| Lost)
    }

    /// Sends data and completion, and waits until the host has them.
    async fn respond(&self, command: &Command, response: Response) -> Result<(), Lost> {
        if response.is_held {
            return Ok(());
        }
        if let Some(cid) = response.aborts {
            let aborted = Completion { status: Status::ABORTED, cid, ..Completion::default() };
            self.complete(SendOp::Send, aborted, None).await?;
        }
        let (mut op, mut data) = (SendOp::Send, None);
        if let SglKind::Keyed { addr, key, invalidate, .. } = command.sgl.kind() {
            if invalidate {
                op = SendOp::SendInv(Rkey(key));
            }
            let write = SendOp::Write(Remote { addr, rkey: Rkey(key) });
            data = response.data.map(|data| (write, data));
        }
        let Response { status, result, .. } = response;
        let completion = Completion { result, cid: command.cid, status, ..Completion::default() };
        self.complete(op, completion, data).await
    }

    /// Sends a completion, behind the data of its command.
    async fn complete(
        &self,
        op: SendOp,
        mut completion: Completion,
        data: Option<(SendOp, Outgoing)>,
    ) -> Result<(), Lost> {
        let sent = {
            // The head of the queue moves in the order of the sends.
            let mut connection = lock(&self.connection);
            let mut state = lock(&self.state);
            state.sq_head = (state.sq_head + 1) % self.size;
            (completion.sq_head, completion.sq_id) = (state.sq_head, self.queue);
            drop(state);
            let bytes = Data::Inline(InlineBytes::new(&completion.emit()));
            let wr = SendWr::new(0, op, bytes);
            // The host has the data when it has the completion, and so has this end one.
            match data {
                Some((write, Outgoing::Buf(buf, len))) => {
                    let router = &self.router;
                    let sent = router.send_buf_then(&mut connection, write, buf, 0..len, wr);
                    Sent::Buf(sent.map_err(|_| Lost)?)
                }
                Some((write, Outgoing::Memory(mr, place))) => {
                    let first = SendWr::new(0, write, mr.data(place));
                    let sent = self.router.send_unsignaled(&mut connection, first);
                    let sent = sent.and_then(|()| self.router.send(&mut connection, wr));
                    Sent::Memory(mr, sent.map_err(|_| Lost)?)
                }
                None => Sent::Alone(self.router.send(&mut connection, wr).map_err(|_| Lost)?),
            }
        };
        let status = match sent {
            Sent::Alone(sent) => sent.await.status,
            Sent::Buf(sent) => sent.await.0.status,
            Sent::Memory(_mr, sent) => sent.await.status,
        };
        if status == WcStatus::Success { Ok(()) } else { Err(Lost) }
    }
}

/// A completion under way, with the data in front of it.
enum Sent {
    Alone(Routed),
    Buf(RoutedBuf),
    Memory(Arc<Mr>, Routed),
}

/// The buffer of a transfer that has succeeded.
async fn done(transfer: RoutedBuf) -> Result<Buf, Lost> {
    let (cqe, buf) = transfer.await;
    buf.filter(|_| cqe.status == WcStatus::Success).ok_or(Lost)
}

/// The host has room for exactly the data that it asks for.
fn check_length(command: &Command, len: usize) -> Result<(), Status> {
    match command.sgl.kind() {
        SglKind::Keyed { len: room, .. } if room as usize == len => Ok(()),
        SglKind::Keyed { .. } => Err(Status::SGL_LENGTH.do_not_retry()),
        _ => Err(Status::SGL_TYPE.do_not_retry()),
    }
}

async fn deallocate(disk: &dyn Namespace, ranges: &[u8]) -> Result<(), Status> {
    for range in DataRange::parse_all(ranges) {
        check_range(disk, range.lba, range.blocks.into())?;
    }
    for range in DataRange::parse_all(ranges) {
        disk.deallocate(range.lba, range.blocks.into()).await?;
    }
    Ok(())
}
