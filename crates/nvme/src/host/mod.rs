//! The end that uses disks of a target.

mod disk;
mod give_way;
mod multipath;
mod paths;
mod queue;

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use feroce::cm::Manager;

use crate::auth::{self, HostAuth, Parties, Secret};
use crate::controller::ADMIN_QUEUE;
use crate::error::HostError;
use crate::wire::property::{self, CC_ENABLE, CC_ENTRIES, CC_SHUTDOWN, CSTS_READY};
use crate::wire::{
    ANY_CONTROLLER, CAPSULE, CONNECT_DATA, Command, ConnectData, DISCOVERY_ENTRY, DiscoveryEntry,
    DiscoveryLog, HEALTH, Health, IDENTIFY, IdentifyController, IdentifyNamespace, LogPage, Nqn,
    admin, cns, fabrics, feature, log,
};
pub use disk::RemoteNamespace;
use disk::{Queues, Way};
pub use multipath::{Multipath, PathInfo};
use queue::{HostQueue, Payload};

/// How often a host asks whether the controller has become ready.
const TRIES: usize = 10_000;

/// Bits of the result of Connect: the host must authenticate, and set up a secure channel.
const AUTHENTICATE: u64 = 1 << 17;
const SECURE_CHANNEL: u64 = 1 << 18;

/// Subsystems that a host asks a discovery controller for at most.
const ENTRIES: u64 = 1024;

/// How long a path is connected again, unless the program says otherwise: as long as Linux does.
const PATIENCE: Duration = Duration::from_secs(600);

/// Who connects, and with how many queues.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Name of this host.
    pub host: Nqn,
    /// Identifier of this host: associations with the same identifier are of the same host.
    pub host_id: [u8; 16],
    /// I/O queues; the target may grant fewer.
    pub queues: u16,
    /// Entries of an I/O queue, 2 to 128: one less is the number of commands under way.
    pub depth: u16,
    /// How long the target may wait for a sign of life, in milliseconds; zero for ever. A program
    /// that sets it calls [`Host::keep_alive`] at least twice in that time; [`Multipath`] does.
    pub keep_alive_ms: u32,
    /// The secret with which this host proves itself, where a target asks for that.
    pub secret: Option<Secret>,
    /// The secret that the subsystem must prove to have; `secret` is needed too.
    pub subsystem_secret: Option<Secret>,
    /// How long a [`Multipath`] host goes on to connect a path that it has lost.
    pub patience: Duration,
}

impl Default for HostOptions {
    fn default() -> Self {
        // A UUID of version 8, the same for every program that does not choose one.
        let host_id = *b"feroce\x80nvmehost\0";
        let uuid = "6665726f-6365-806e-766d-65686f737400";
        let name = format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}");
        let host = name.parse().unwrap_or_else(|_| Nqn::discovery());
        Self {
            host,
            host_id,
            queues: 1,
            depth: 32,
            keep_alive_ms: 0,
            secret: None,
            subsystem_secret: None,
            patience: PATIENCE,
        }
    }
}

/// What a host asks a controller about.
#[derive(Debug)]
struct Admin {
    queue: HostQueue,
    controller: u16,
}

impl Admin {
    async fn connect(
        manager: &Manager,
        to: SocketAddr,
        nqn: &Nqn,
        options: &HostOptions,
    ) -> Result<Self, HostError> {
        let queue = HostQueue::connect(manager, to, 0, ADMIN_QUEUE, 0).await?;
        let controller = associate(&queue, 0, ADMIN_QUEUE, ANY_CONTROLLER, nqn, options).await?;
        let this = Self { queue, controller };
        this.set_property(property::CC, CC_ENTRIES | CC_ENABLE).await?;
        for _ in 0..TRIES {
            if this.property(property::CSTS).await? & u64::from(CSTS_READY) != 0 {
                return Ok(this);
            }
        }
        Err(HostError::Target("its controller does not become ready"))
    }

    async fn property(&self, offset: u32) -> Result<u64, HostError> {
        let mut command = Command::fabrics(fabrics::PROPERTY_GET);
        command.cdw[0] = (offset == property::CAP).into();
        command.cdw[1] = offset;
        Ok(self.queue.call(command, Payload::None).await?.result)
    }

    async fn set_property(&self, offset: u32, value: u32) -> Result<(), HostError> {
        let mut command = Command::fabrics(fabrics::PROPERTY_SET);
        command.cdw[1] = offset;
        command.cdw[2] = value;
        self.queue.call(command, Payload::None).await.map(drop)
    }

    async fn identify(&self, cns: u8, nsid: u32) -> Result<Vec<u8>, HostError> {
        let mut command = Command { nsid, ..Command::new(admin::IDENTIFY) };
        command.cdw[0] = cns.into();
        let mut bytes = vec![0; IDENTIFY];
        self.queue.call(command, Payload::In(&mut bytes)).await?;
        Ok(bytes)
    }

    async fn log_page(&self, id: u8, offset: u64, len: usize) -> Result<Vec<u8>, HostError> {
        let page = LogPage { id, offset, len: len as u64 };
        // Of the controller; a page of discovery is of no namespace.
        let nsid = if id == log::DISCOVERY { 0 } else { u32::MAX };
        let command = Command { nsid, ..Command::new(admin::GET_LOG_PAGE) }.with_log_page(page);
        let mut bytes = vec![0; len];
        self.queue.call(command, Payload::In(&mut bytes)).await?;
        Ok(bytes)
    }

    async fn shut_down(self) -> Result<(), HostError> {
        self.set_property(property::CC, CC_ENTRIES | CC_ENABLE | CC_SHUTDOWN).await?;
        self.queue.disconnect().await
    }
}

/// Sends Connect on a queue; the result is the number of the controller.
async fn associate(
    queue: &HostQueue,
    number: u16,
    size: u16,
    controller: u16,
    nqn: &Nqn,
    options: &HostOptions,
) -> Result<u16, HostError> {
    let mut command = Command::fabrics(fabrics::CONNECT);
    command.cdw[0] = u32::from(number) << 16;
    command.cdw[1] = u32::from(size - 1);
    command.cdw[2] = if number == 0 { options.keep_alive_ms } else { 0 };
    let (subsystem, host) = (Some(nqn.clone()), Some(options.host.clone()));
    let data = ConnectData { host_id: options.host_id, controller, subsystem, host }.emit();
    let connected = queue.call(command, Payload::Out(&data)).await;
    let completion = connected.map_err(|e| match e {
        HostError::Command(status) => HostError::Refused(status),
        e => e,
    })?;
    let asks = completion.result & (AUTHENTICATE | SECURE_CHANNEL) != 0;
    match &options.secret {
        Some(secret) if asks => authenticate(queue, nqn, options, secret).await?,
        None if asks => return Err(HostError::NoSecret),
        _ if options.subsystem_secret.is_some() && !nqn.is_discovery() => {
            return Err(HostError::Unproven);
        }
        _ => {}
    }
    Ok(completion.result as u16)
}

/// Proves who this host is, and lets the subsystem prove itself if there is a secret for that.
async fn authenticate(
    queue: &HostQueue,
    nqn: &Nqn,
    options: &HostOptions,
    secret: &Secret,
) -> Result<(), HostError> {
    let parties = Parties {
        host: options.host.clone(),
        subsystem: nqn.clone(),
        secret: secret.clone(),
        subsystem_secret: options.subsystem_secret.clone(),
    };
    let mut exchange = HostAuth::new(parties, auth::random);
    let send = async |message: &[u8]| {
        let cdw = auth::words(message.len());
        let command = Command { cdw, ..Command::fabrics(fabrics::AUTH_SEND) };
        queue.call(command, Payload::Out(message)).await.map(drop)
    };
    let receive = async || {
        let cdw = auth::words(auth::MESSAGE);
        let command = Command { cdw, ..Command::fabrics(fabrics::AUTH_RECEIVE) };
        let mut message = vec![0; auth::MESSAGE];
        queue.call(command, Payload::In(&mut message)).await.map(|_| message)
    };
    send(&exchange.negotiate()).await?;
    let replied = exchange.reply(&receive().await?);
    let finished = match replied {
        Ok(reply) => {
            send(&reply).await?;
            exchange.finish(&receive().await?)
        }
        Err(why) => Err(why),
    };
    match finished {
        Ok(Some(last)) => send(&last).await,
        Ok(None) => Ok(()),
        Err(why) => {
            // A target that has failed itself does not listen any more.
            let _ = send(&exchange.failure(why)).await;
            Err(HostError::Authentication(why))
        }
    }
}

/// The subsystems with disks that a target has for this host.
pub async fn discover(
    manager: &Manager,
    to: SocketAddr,
    options: &HostOptions,
) -> Result<Vec<DiscoveryEntry>, HostError> {
    let admin = Admin::connect(manager, to, &Nqn::discovery(), options).await?;
    let header = admin.log_page(log::DISCOVERY, 0, DISCOVERY_ENTRY).await?;
    let count = DiscoveryLog::count(&header);
    if count > ENTRIES {
        return Err(HostError::Target("it has more than 1024 subsystems"));
    }
    let mut bytes = header;
    for i in 1..=count {
        let offset = i * DISCOVERY_ENTRY as u64;
        bytes.extend(admin.log_page(log::DISCOVERY, offset, DISCOVERY_ENTRY).await?);
    }
    admin.shut_down().await?;
    let mut entries = DiscoveryLog::parse(&bytes).entries;
    entries.retain(DiscoveryEntry::has_disks);
    Ok(entries)
}

/// An association with a subsystem of a target. Dropping it disconnects.
///
/// See [`Target`](crate::Target) for an example.
#[derive(Debug)]
pub struct Host {
    // Declared before the admin queue: I/O queues disconnect first.
    queues: Arc<Queues>,
    admin: Admin,
    identity: IdentifyController,
    /// Disks that [`Multipath`] has found to be those that it knows.
    checked: Mutex<BTreeSet<u32>>,
}

impl Host {
    /// Connects to a subsystem.
    pub async fn connect(
        manager: &Manager,
        to: SocketAddr,
        nqn: &Nqn,
        options: &HostOptions,
    ) -> Result<Self, HostError> {
        let admin = Admin::connect(manager, to, nqn, options).await?;
        let identity = IdentifyController::parse(&admin.identify(cns::CONTROLLER, 0).await?);
        // Keyed descriptors, without which there is no data over RDMA.
        if identity.sgls & 1 << 2 == 0 {
            return Err(HostError::Target("it has no keyed SGLs"));
        }
        let entries = (admin.property(property::CAP).await? & 0xffff) as u16;
        let depth = options.depth.clamp(2, 128).min(entries.saturating_add(1)).max(2);
        let mut command = Command::new(admin::SET_FEATURES);
        command.cdw[0] = feature::QUEUES.into();
        let wanted = u32::from(options.queues.max(1) - 1);
        command.cdw[1] = wanted | wanted << 16;
        let granted = admin.queue.call(command, Payload::None).await?.result;
        let granted = (granted & 0xffff).min(granted >> 16 & 0xffff) as u16;
        let count = options.queues.max(1).min(granted.saturating_add(1));
        let capsule = (identity.command_capsule as usize).saturating_mul(16);
        let in_capsule = if identity.data_offset == 0 { capsule } else { 0 };
        let in_capsule = in_capsule.saturating_sub(CAPSULE);
        let mut queues = Vec::new();
        for number in 1..=count {
            let queue = HostQueue::connect(manager, to, number, depth, in_capsule).await?;
            let made = associate(&queue, number, depth, admin.controller, nqn, options).await;
            if let Err(HostError::Refused(_)) = made {
                // A target that was started again does not know the controller. Then this fails as
                // lost, which says that another attempt may succeed.
                admin.property(property::CSTS).await?;
            }
            made?;
            queues.push(queue);
        }
        let queues = Arc::new(Queues::new(queues));
        Ok(Self { queues, admin, identity, checked: Mutex::default() })
    }

    /// What the controller says of itself.
    pub fn identity(&self) -> &IdentifyController {
        &self.identity
    }

    /// Number of the controller.
    pub fn controller(&self) -> u16 {
        self.admin.controller
    }

    /// I/O queues that the target has granted.
    pub fn queues(&self) -> usize {
        self.queues.all().len()
    }

    /// Numbers of the disks.
    pub async fn namespaces(&self) -> Result<Vec<u32>, HostError> {
        let bytes = self.admin.identify(cns::NAMESPACE_LIST, 0).await?;
        let numbers = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        Ok(numbers.take_while(|&nsid| nsid != 0).collect())
    }

    /// A disk by its number.
    pub async fn namespace(&self, nsid: u32) -> Result<RemoteNamespace, HostError> {
        let found = self.identify_namespace(nsid).await?;
        let way = Way::One(Arc::clone(&self.queues));
        Ok(RemoteNamespace::new(way, nsid, found, self.longest()))
    }

    async fn identify_namespace(&self, nsid: u32) -> Result<IdentifyNamespace, HostError> {
        let found = IdentifyNamespace::parse(&self.admin.identify(cns::NAMESPACE, nsid).await?);
        if found.blocks == 0 {
            return Err(HostError::Command(crate::wire::Status::INVALID_NAMESPACE));
        }
        if !(9..=16).contains(&found.block_bits) {
            return Err(HostError::Target("blocks have less than 512 bytes or more than 64 KiB"));
        }
        Ok(found)
    }

    /// Longest transfer in bytes, if there is a limit.
    fn longest(&self) -> Option<usize> {
        let mdts = 4096_usize.checked_shl(self.identity.mdts.into()).filter(|&most| most >= 4096);
        if self.identity.mdts == 0 { None } else { mdts }
    }

    /// Executes a command for a disk.
    async fn io(&self, command: Command, payload: Payload<'_>) -> Result<(), HostError> {
        self.queues.call(command, payload).await
    }

    fn has_checked(&self, nsid: u32) -> bool {
        self.checked.lock().unwrap_or_else(PoisonError::into_inner).contains(&nsid)
    }

    fn note_checked(&self, nsid: u32) {
        self.checked.lock().unwrap_or_else(PoisonError::into_inner).insert(nsid);
    }

    /// Resolves when the connection of a queue is lost.
    pub async fn lost(&self) {
        let all = self.queues.all().iter().chain([&self.admin.queue]);
        let mut all: Vec<Pin<Box<_>>> = all.map(|queue| Box::pin(queue.lost())).collect();
        poll_fn(|cx| {
            let is_lost = all.iter_mut().any(|lost| lost.as_mut().poll(cx).is_ready());
            if is_lost { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Ends all connections at once. Commands under way fail.
    fn abandon(&self) {
        self.queues.all().iter().chain([&self.admin.queue]).for_each(HostQueue::abandon);
    }

    /// How much the disks are used, by all hosts.
    pub async fn health(&self) -> Result<Health, HostError> {
        Ok(Health::parse(&self.admin.log_page(log::HEALTH, 0, HEALTH).await?))
    }

    /// Gives the target a sign of life.
    pub async fn keep_alive(&self) -> Result<(), HostError> {
        self.admin.queue.call(Command::new(admin::KEEP_ALIVE), Payload::None).await.map(drop)
    }

    /// Shuts the controller down and disconnects. Disks that were taken from this fail from then
    /// on.
    pub async fn disconnect(self) -> Result<(), HostError> {
        let Self { queues, admin, .. } = self;
        if let Some(queues) = Arc::into_inner(queues) {
            for queue in queues.into_all() {
                queue.disconnect().await?;
            }
        }
        admin.shut_down().await
    }
}

const _: () = assert!(CONNECT_DATA <= crate::controller::IN_CAPSULE);
