//! Subsystems: disks under one name, and the hosts that may use them.

use std::fmt;
use std::sync::Arc;

use crate::auth::{Parties, Secret};
use crate::counters::Counters;
use crate::namespace::Namespace;
use crate::wire::Nqn;

/// Disks under one name. The first has the number 1.
///
/// ```
/// use feroce_nvme::{MemoryNamespace, Subsystem};
///
/// let disks = Subsystem::new("nqn.2024-01.com.example:disks".parse()?)
///     .disk(MemoryNamespace::new(2048))
///     .allow("nqn.2024-01.com.example:host".parse()?);
/// # Ok::<(), feroce_nvme::wire::NqnError>(())
/// ```
#[derive(Clone)]
pub struct Subsystem {
    nqn: Nqn,
    disks: Vec<Arc<dyn Namespace>>,
    allowed: Vec<Nqn>,
    /// Hosts that must prove themselves, with their secrets and those of the subsystem for them.
    secrets: Vec<(Nqn, Secret, Option<Secret>)>,
    counters: Arc<Counters>,
}

impl fmt::Debug for Subsystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subsystem")
            .field("nqn", &self.nqn)
            .field("disks", &self.disks)
            .field("allowed", &self.allowed)
            .finish_non_exhaustive()
    }
}

impl Subsystem {
    /// A subsystem without disks that every host may use.
    pub fn new(nqn: Nqn) -> Self {
        Self {
            nqn,
            disks: Vec::new(),
            allowed: Vec::new(),
            secrets: Vec::new(),
            counters: Arc::default(),
        }
    }

    /// Adds a disk.
    #[must_use]
    pub fn disk(mut self, disk: impl Namespace + 'static) -> Self {
        self.disks.push(Arc::new(disk));
        self
    }

    /// Lets this host in. Once a host is named, hosts that are not are refused.
    ///
    /// A host is believed what it says its name is. Any program that can reach the target and knows
    /// a name that is allowed can use the disks; see [`Subsystem::authenticate`].
    #[must_use]
    pub fn allow(mut self, host: Nqn) -> Self {
        self.allowed.push(host);
        self
    }

    /// Lets this host in if it proves that it has `secret` (DH-HMAC-CHAP). If the host asks, the
    /// subsystem proves that it has `own`.
    #[must_use]
    pub fn authenticate(mut self, host: Nqn, secret: Secret, own: Option<Secret>) -> Self {
        self.allowed.push(host.clone());
        self.secrets.push((host, secret, own));
        self
    }

    /// What a host must prove, if it must.
    pub(crate) fn parties(&self, host: &Nqn) -> Option<Parties> {
        let (_, secret, own) = self.secrets.iter().find(|(of, ..)| of == host)?;
        Some(Parties {
            host: host.clone(),
            subsystem: self.nqn.clone(),
            secret: secret.clone(),
            subsystem_secret: own.clone(),
        })
    }

    /// Its name.
    pub fn nqn(&self) -> &Nqn {
        &self.nqn
    }

    /// A disk by its number.
    pub fn namespace(&self, nsid: u32) -> Option<&Arc<dyn Namespace>> {
        self.disks.get(usize::try_from(nsid).ok()?.checked_sub(1)?)
    }

    /// How many disks there are.
    pub fn count(&self) -> u32 {
        u32::try_from(self.disks.len()).unwrap_or(u32::MAX)
    }

    /// Whether a host may use it.
    pub fn allows(&self, host: &Nqn) -> bool {
        self.allowed.is_empty() || self.allowed.contains(host)
    }

    /// What hosts did with its disks.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// An identifier of a disk that stays the same as long as names and generation do.
    pub(crate) fn guid(&self, nsid: u32) -> [u8; 16] {
        let generation = self.namespace(nsid).map_or(0, |disk| disk.generation());
        // The usual generation leaves the identifier to the names.
        let generation = generation.to_be_bytes().into_iter().filter(|_| generation != 0);
        let bytes = self.nqn.as_str().bytes().chain(nsid.to_be_bytes()).chain(generation);
        // FNV-1a with 128 bits.
        let hash = bytes.fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
            (hash ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b)
        });
        hash.to_be_bytes()
    }
}
