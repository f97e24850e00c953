//! Agents: what programs register for, and which of them a datagram is for.

use feroce_wire::mad::{Class, MadHeader};

use super::{FileId, MAX_AGENTS, Programs};
use crate::packet::PortRef;

/// Where datagrams of vendors' classes have the number of the organisation.
const OUI_AT: usize = 37;

/// What a program registers for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Registration {
    /// Management class.
    pub class: u8,
    /// Version of the class.
    pub version: u8,
    /// Organisation, for classes that have one.
    pub oui: [u8; 3],
    /// Requests that it wants, a bit for each method; 0: only responses to its own requests.
    pub methods: u128,
    /// Version of multi-packet transfers: 0 or 1.
    pub rmpp_version: u8,
    /// The program cuts and joins segments itself.
    pub has_own_rmpp: bool,
}

/// Why a registration is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RegisterError {
    /// The port is not open.
    NotOpen,
    /// The class has no multi-packet transfers, or not this version of them.
    Rmpp,
    /// Another agent of the port has one of the methods.
    InUse,
    /// The program has too many agents.
    TooMany,
}

#[derive(Debug)]
pub(super) struct Agent {
    pub(super) file: FileId,
    /// The number that the program knows it by.
    pub(super) id: u32,
    pub(super) at: PortRef,
    registration: Registration,
}

impl Agent {
    /// Whether the program sends and receives messages whole.
    pub(super) fn joins_segments(&self) -> bool {
        self.registration.rmpp_version != 0 && !self.registration.has_own_rmpp
    }
}

impl Registration {
    /// Whether datagrams of another registration go to the same agents.
    fn is_alike(&self, other: &Self) -> bool {
        let oui_is_alike = !Class(self.class).has_oui() || self.oui == other.oui;
        (self.class, self.version) == (other.class, other.version) && oui_is_alike
    }
}

/// Whether the class has multi-packet transfers: subnet administration, device administration, boot
/// and BIS management, and the vendors' classes that name an organisation.
fn has_transfers(class: u8) -> bool {
    matches!(class, 0x03 | 0x06 | 0x10 | 0x12) || Class(class).has_oui()
}

impl Programs {
    /// A program registers an agent. The result is its number.
    pub fn register(&mut self, file: FileId, new: Registration) -> Result<u32, RegisterError> {
        let at = self.files.get(&file).ok_or(RegisterError::NotOpen)?.at;
        if new.rmpp_version > 1 || (new.rmpp_version == 1 && !has_transfers(new.class)) {
            return Err(RegisterError::Rmpp);
        }
        let clashes = |agent: &Agent| {
            let other = &agent.registration;
            agent.at == at && new.is_alike(other) && new.methods & other.methods != 0
        };
        if self.agents.values().any(clashes) {
            return Err(RegisterError::InUse);
        }
        let is_taken = |id: &u32| self.agents_of(file).any(|(_, agent)| agent.id == *id);
        let id = (0..MAX_AGENTS).find(|id| !is_taken(id)).ok_or(RegisterError::TooMany)?;
        // Zero stands for no agent.
        self.last_agent = self.last_agent.checked_add(1).ok_or(RegisterError::TooMany)?;
        self.agents.insert(self.last_agent, Agent { file, id, at, registration: new });
        Ok(id)
    }

    /// A program gives an agent up. False if it has no such agent.
    pub fn unregister(&mut self, file: FileId, id: u32) -> bool {
        let found = self.agents_of(file).find(|(_, agent)| agent.id == id).map(|(upper, _)| upper);
        found.is_some_and(|upper| {
            self.forget(upper);
            true
        })
    }

    pub(super) fn forget(&mut self, upper: u32) {
        self.agents.remove(&upper);
        self.requests.retain(|_, request| request.agent != upper);
        self.transfers.retain(|_, transfer| transfer.agent != upper);
        self.assemblies.retain(|key, _| key.agent != upper);
    }

    pub(super) fn agents_of(&self, file: FileId) -> impl Iterator<Item = (u32, &Agent)> {
        let agents = self.agents.iter().map(|(upper, agent)| (*upper, agent));
        agents.filter(move |(_, agent)| agent.file == file)
    }

    /// The agent that has registered for a request.
    pub(super) fn taker(&self, at: PortRef, header: &MadHeader, mad: &[u8]) -> Option<u32> {
        let mut oui = [0; 3];
        oui.copy_from_slice(mad.get(OUI_AT..OUI_AT + 3)?);
        let asked = Registration {
            class: header.class,
            version: header.class_version,
            oui,
            ..Registration::default()
        };
        let bit = 1_u128.checked_shl(u32::from(header.method)).unwrap_or(0);
        let takes = |agent: &Agent| {
            let has = &agent.registration;
            agent.at == at && has.is_alike(&asked) && has.methods & bit != 0
        };
        self.agents.iter().find(|(_, agent)| takes(agent)).map(|(upper, _)| *upper)
    }
}
