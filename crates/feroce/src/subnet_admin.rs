//! Questions to the subnet administration (SA), which is a part of the subnet manager.
//!
//! The fabric does what the kernel does for such a question: it repeats the datagram while the
//! subnet manager does not answer, and gives it back when time is up.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use feroce_umad::{Host, Joiner, Registration, pieces};
use feroce_wire::cm::ServiceId;
use feroce_wire::mad::{
    Class, MAD_LEN, MadHeader, McMemberRecord, Method, PathRecord, SA_DATA_LEN, SaAttribute, SaMad,
    Status,
};
use feroce_wire::{Gid, Lid, Pkey, Qkey, Qpn};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv, send};

use crate::{Error, sys};

/// The version of the class.
const CLASS_VERSION: u8 = 2;
/// How often a question is repeated.
const RETRIES: u32 = 3;
/// The well-known queue key of queue pair 1.
const QKEY: u32 = 0x8001_0000;
/// Bytes in front of a datagram, as the kernel's `ib_user_mad` has them.
const HEAD: usize = 64;

/// Components of a path record that a question names (IBTA vol1 15.2.5.16).
mod path {
    pub(super) const SERVICE_ID: u64 = 0b11;
    pub(super) const DGID: u64 = 1 << 2;
    pub(super) const SGID: u64 = 1 << 3;
    pub(super) const REVERSIBLE: u64 = 1 << 11;
    pub(super) const NUMB_PATH: u64 = 1 << 12;
    pub(super) const PKEY: u64 = 1 << 13;
}

/// Components of a member record (IBTA vol1 15.2.5.17).
mod member {
    pub(super) const MGID: u64 = 1 << 0;
    pub(super) const PORT_GID: u64 = 1 << 1;
    pub(super) const QKEY: u64 = 1 << 2;
    pub(super) const MTU: u64 = 0b11 << 4;
    pub(super) const TRAFFIC_CLASS: u64 = 1 << 6;
    pub(super) const PKEY: u64 = 1 << 7;
    pub(super) const RATE: u64 = 0b11 << 8;
    pub(super) const SL: u64 = 1 << 12;
    pub(super) const FLOW_LABEL: u64 = 1 << 13;
    pub(super) const HOP_LIMIT: u64 = 1 << 14;
    pub(super) const JOIN_STATE: u64 = 1 << 16;
}

/// A port as its questions need it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asker {
    /// Its GID.
    pub(crate) gid: Gid,
    /// Its partition.
    pub(crate) pkey: Pkey,
    /// Where the subnet manager is.
    pub(crate) sm_lid: Lid,
    /// The service level on the way there.
    pub(crate) sm_sl: u8,
}

/// What is asked, before it is sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    method: Method,
    attribute: SaAttribute,
    components: u64,
    record: Vec<u8>,
}

impl Request {
    /// A path to a service at the port with a GID, which also leads back.
    pub(crate) fn path(asker: &Asker, to: Gid, service: ServiceId) -> Self {
        let record = PathRecord {
            service_id: service.0,
            dgid: to,
            sgid: asker.gid,
            reversible: true,
            number_of_paths: 1,
            pkey: asker.pkey,
            ..PathRecord::default()
        };
        Self {
            method: Method::GET,
            attribute: SaAttribute::PATH,
            components: path::SERVICE_ID
                | path::DGID
                | path::SGID
                | path::REVERSIBLE
                | path::NUMB_PATH
                | path::PKEY,
            record: record.to_bytes().to_vec(),
        }
    }

    /// Joins a multicast group, which comes into being if it does not exist.
    pub(crate) fn join(asker: &Asker, group: Gid, join_state: u8, qkey: Qkey) -> Self {
        let record = McMemberRecord {
            mgid: group,
            port_gid: asker.gid,
            qkey,
            pkey: asker.pkey,
            scope: group.0[1] & 15,
            join_state,
            ..McMemberRecord::default()
        };
        Self {
            method: Method::SET,
            attribute: SaAttribute::MC_MEMBER,
            components: member::MGID
                | member::PORT_GID
                | member::QKEY
                | member::TRAFFIC_CLASS
                | member::PKEY
                | member::SL
                | member::FLOW_LABEL
                | member::JOIN_STATE,
            record: record.to_bytes().to_vec(),
        }
    }

    /// Joins a multicast group which, if it does not exist, comes into being like another one.
    pub(crate) fn join_like(
        asker: &Asker,
        group: Gid,
        join_state: u8,
        like: &McMemberRecord,
    ) -> Self {
        let plain = Self::join(asker, group, join_state, like.qkey);
        let record = McMemberRecord {
            mgid: group,
            port_gid: asker.gid,
            pkey: asker.pkey,
            scope: group.0[1] & 15,
            join_state,
            ..*like
        };
        let components = plain.components | member::MTU | member::RATE | member::HOP_LIMIT;
        Self { components, record: record.to_bytes().to_vec(), ..plain }
    }

    /// What a multicast group is like.
    pub(crate) fn group(group: Gid) -> Self {
        let record = McMemberRecord { mgid: group, ..McMemberRecord::default() };
        Self {
            method: Method::GET,
            attribute: SaAttribute::MC_MEMBER,
            components: member::MGID,
            record: record.to_bytes().to_vec(),
        }
    }

    fn datagram(&self, transaction: u32) -> [u8; MAD_LEN] {
        let header = MadHeader {
            base_version: 1,
            class: Class::SUBNET_ADMINISTRATION.0,
            class_version: CLASS_VERSION,
            method: self.method.0,
            transaction: transaction.into(),
            attribute: self.attribute.0,
            ..MadHeader::default()
        };
        let mut data = [0; SA_DATA_LEN];
        data[..self.record.len()].copy_from_slice(&self.record);
        SaMad { header, component_mask: self.components, data, ..SaMad::default() }.to_bytes()
    }
}

/// A question that was sent.
#[derive(Debug)]
pub(crate) struct Question {
    socket: OwnedFd,
    joiner: Mutex<Joiner>,
}

/// Why there is no record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// The subnet manager does not answer in time.
    Silence,
    /// The subnet manager refuses, with this status.
    Status(u16),
}

impl Refusal {
    /// The status of an event, as Linux reports it.
    pub(crate) fn status(self) -> i32 {
        match self {
            Self::Silence => -libc::ETIMEDOUT,
            Self::Status(_) => -libc::EINVAL,
        }
    }
}

impl Question {
    /// Sends a question, which is answered or given up within the time limit.
    pub(crate) fn ask(
        host: &Host,
        port: u8,
        asker: &Asker,
        request: &Request,
        timeout_ms: u32,
    ) -> Result<Self, Error> {
        let (socket, file) = host.open(port)?;
        let registration = Registration {
            class: Class::SUBNET_ADMINISTRATION.0,
            version: CLASS_VERSION,
            ..Registration::default()
        };
        let agent = host.register(file, registration)?;
        let mad = request.datagram(sys::random_u64()? as u32);
        let mut bytes = vec![0; HEAD];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &agent.to_ne_bytes());
        put(8, &(timeout_ms / (RETRIES + 1)).max(1).to_ne_bytes());
        put(12, &RETRIES.to_ne_bytes());
        put(16, &((HEAD + MAD_LEN) as u32).to_ne_bytes());
        put(20, &Qpn::QP1.get().to_be_bytes());
        put(24, &QKEY.to_be_bytes());
        put(28, &asker.sm_lid.0.to_be_bytes());
        put(30, &[asker.sm_sl]);
        bytes.extend(mad);
        for piece in pieces(&bytes) {
            send(socket.as_raw_fd(), &piece, MsgFlags::MSG_NOSIGNAL).map_err(io::Error::from)?;
        }
        Ok(Self { socket, joiner: Mutex::default() })
    }

    /// Readable when there is an answer.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Waits for the record of the answer.
    pub(crate) fn wait(&self, timeout_ms: u32) -> Result<[u8; SA_DATA_LEN], Refusal> {
        let timeout = PollTimeout::try_from(timeout_ms).unwrap_or(PollTimeout::MAX);
        loop {
            if let Some(answer) = self.look() {
                return answer;
            }
            match poll(&mut [PollFd::new(self.fd(), PollFlags::POLLIN)], timeout) {
                Ok(1..) | Err(Errno::EINTR) => {}
                _ => return Err(Refusal::Silence),
            }
        }
    }

    /// The record of the answer; `None` if there is none yet.
    pub(crate) fn look(&self) -> Option<Result<[u8; SA_DATA_LEN], Refusal>> {
        let mut joiner = self.joiner.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut buffer = vec![0; feroce_umad::HEAD_LEN + feroce_umad::MAX_PIECE];
        loop {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(len @ 1..) => {
                    let whole = joiner.take(buffer.get(..len).unwrap_or_default());
                    if let Some(answer) = whole.and_then(|bytes| read(&bytes)) {
                        return Some(answer);
                    }
                }
                Err(Errno::EAGAIN) => return None,
                Err(Errno::EINTR) => {}
                // The fabric has ended.
                Ok(0) | Err(_) => return Some(Err(Refusal::Silence)),
            }
        }
    }
}

/// The answer that a message of the fabric is; `None` if it is none.
fn read(bytes: &[u8]) -> Option<Result<[u8; SA_DATA_LEN], Refusal>> {
    let (head, mad) = bytes.split_at_checked(HEAD)?;
    if head[4..8] != [0; 4] {
        return Some(Err(Refusal::Silence));
    }
    let (answer, _) = SaMad::parse(mad).ok()?;
    match answer.header.status & !Status::DIRECTION {
        0 => Some(Ok(answer.data)),
        status => Some(Err(Refusal::Status(status))),
    }
}

/// The path in the record of an answer, if its LIDs can be used.
pub(crate) fn read_path(record: &[u8; SA_DATA_LEN]) -> Option<PathRecord> {
    let (path, _) = PathRecord::parse(record).ok()?;
    let is_usable = |lid: Lid| lid != Lid(0) && lid.0 < 0xc000;
    (is_usable(path.slid) && is_usable(path.dlid)).then_some(path)
}

/// The membership in the record of an answer, if its LID can be used.
pub(crate) fn read_member(record: &[u8; SA_DATA_LEN]) -> Option<McMemberRecord> {
    let (member, _) = McMemberRecord::parse(record).ok()?;
    member.mlid.is_multicast().then_some(member)
}
