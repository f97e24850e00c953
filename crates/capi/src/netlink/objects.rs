//! What an answer says about the objects of a device.

use std::net::SocketAddr;

use super::facts::{CmId, Cq, Device, Mr, Pd, Qp, Srq};
use super::message::Message;
use super::numbers::attribute::*;

/// The only port of a device.
pub(crate) const PORT: u32 = 1;

/// Queue pairs that the entry of a shared receive queue names.
const MOST_IN_ENTRY: usize = 32;

/// The length of `struct __kernel_sockaddr_storage`.
const SOCKADDR: usize = 128;

/// The attributes of a kind of object: with all of them, with one of them, and with the number of
/// one.
pub(crate) struct Attributes {
    pub(crate) table: u16,
    pub(crate) entry: u16,
    pub(crate) number: u16,
}

/// A kind of object.
pub(crate) struct Kind<T: 'static> {
    pub(crate) attributes: Attributes,
    /// Whether it belongs to a port, which a request then names.
    pub(crate) has_port: bool,
    pub(crate) of: fn(&Device) -> &[T],
    pub(crate) number_of: fn(&T) -> u32,
    describe: fn(&mut Message, &T),
}

impl<T> Kind<T> {
    /// A kind of object that belongs to a device: its attributes, as in [`Attributes`].
    const fn new(
        [table, entry, number]: [u16; 3],
        of: fn(&Device) -> &[T],
        number_of: fn(&T) -> u32,
        describe: fn(&mut Message, &T),
    ) -> Self {
        let attributes = Attributes { table, entry, number };
        Self { attributes, has_port: false, of, number_of, describe }
    }

    /// The same, of a port.
    const fn of_port(self) -> Self {
        Self { has_port: true, ..self }
    }

    /// What an entry says about an object.
    pub(crate) fn describe(&self, m: &mut Message, device: &Device, object: &T) {
        (self.describe)(m, object);
        m.u32(RES_PID, device.pid);
    }
}

pub(crate) const QPS: Kind<Qp> =
    Kind::new([RES_QP, RES_QP_ENTRY, RES_LQPN], |device| &device.qps, |qp| qp.number, about_qp)
        .of_port();

pub(crate) const CM_IDS: Kind<CmId> = Kind::new(
    [RES_CM_ID, RES_CM_ID_ENTRY, RES_CM_IDN],
    |device| &device.cm_ids,
    |id| id.number,
    about_cm_id,
)
.of_port();

pub(crate) const CQS: Kind<Cq> = Kind::new(
    [RES_CQ, RES_CQ_ENTRY, RES_CQN],
    |device| &device.cqs,
    |cq| cq.number,
    |m, cq| {
        m.u32(RES_CQE, cq.depth);
        m.u64(RES_USECNT, cq.users);
        m.u8(DEV_DIM, 0);
        m.u32s([(RES_CQN, cq.number), (RES_CTXN, cq.context)]);
    },
);

pub(crate) const MRS: Kind<Mr> = Kind::new(
    [RES_MR, RES_MR_ENTRY, RES_MRN],
    |device| &device.mrs,
    |mr| mr.number,
    |m, mr| {
        m.u32s([(RES_RKEY, mr.rkey), (RES_LKEY, mr.lkey)]);
        m.u64(RES_MRLEN, mr.len);
        m.u32s([(RES_MRN, mr.number), (RES_PDN, mr.pd)]);
    },
);

pub(crate) const PDS: Kind<Pd> = Kind::new(
    [RES_PD, RES_PD_ENTRY, RES_PDN],
    |device| &device.pds,
    |pd| pd.number,
    |m, pd| {
        m.u32(RES_LOCAL_DMA_LKEY, 0);
        m.u64(RES_USECNT, pd.users);
        m.u32s([(RES_PDN, pd.number), (RES_CTXN, pd.context)]);
    },
);

pub(crate) const CONTEXTS: Kind<u32> = Kind::new(
    [RES_CTX, RES_CTX_ENTRY, RES_CTXN],
    |device| &device.contexts,
    |context| *context,
    |m, context| m.u32(RES_CTXN, *context),
);

pub(crate) const SRQS: Kind<Srq> = Kind::new(
    [RES_SRQ, RES_SRQ_ENTRY, RES_SRQN],
    |device| &device.srqs,
    |srq| srq.number,
    |m, srq| {
        m.u32(RES_SRQN, srq.number);
        m.u8(RES_TYPE, srq.kind);
        m.u32(RES_PDN, srq.pd);
        m.nest(RES_QP, |m| {
            // The rest would not fit into a message.
            for qpn in srq.qps.iter().take(MOST_IN_ENTRY) {
                m.nest(RES_QP_ENTRY, |m| m.u32(RES_LQPN, *qpn));
            }
        });
    },
);

fn about_qp(m: &mut Message, qp: &Qp) {
    m.u32s([(PORT_INDEX, PORT), (RES_LQPN, qp.number), (RES_PDN, qp.pd)]);
    if let Some(peer) = qp.peer {
        m.u32s([(RES_RQPN, peer.qpn), (RES_RQ_PSN, peer.rq_psn)]);
    }
    m.u32(RES_SQ_PSN, qp.sq_psn);
    if qp.peer.is_some() {
        // Alternate paths are not supported, so every path counts as migrated.
        m.u8(RES_PATH_MIG_STATE, 0);
    }
    m.u8(RES_TYPE, qp.kind);
    m.u8(RES_STATE, qp.state);
}

fn about_cm_id(m: &mut Message, id: &CmId) {
    m.u32(PORT_INDEX, PORT);
    if let Some((qpn, kind)) = id.qp {
        m.u32(RES_LQPN, qpn);
        m.u8(RES_TYPE, kind);
    }
    m.u32(RES_PS, id.ps);
    m.u8(RES_STATE, id.state);
    if let Some(local) = id.local {
        m.bytes(RES_SRC_ADDR, &sockaddr(local));
        let none = SocketAddr::new(if local.is_ipv4() { [0; 4].into() } else { [0; 16].into() }, 0);
        m.bytes(RES_DST_ADDR, &sockaddr(id.peer.unwrap_or(none)));
    }
    m.u32(RES_CM_IDN, id.number);
}

/// An address as `struct sockaddr_in` or `sockaddr_in6`, in a `sockaddr_storage`.
fn sockaddr(addr: SocketAddr) -> [u8; SOCKADDR] {
    const AF_INET: u16 = 2;
    const AF_INET6: u16 = 10;
    let mut bytes = [0; SOCKADDR];
    bytes[2..4].copy_from_slice(&addr.port().to_be_bytes());
    match addr {
        SocketAddr::V4(addr) => {
            bytes[..2].copy_from_slice(&AF_INET.to_ne_bytes());
            bytes[4..8].copy_from_slice(&addr.ip().octets());
        }
        SocketAddr::V6(addr) => {
            bytes[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
            bytes[4..8].copy_from_slice(&addr.flowinfo().to_be_bytes());
            bytes[8..24].copy_from_slice(&addr.ip().octets());
            bytes[24..28].copy_from_slice(&addr.scope_id().to_ne_bytes());
        }
    }
    bytes
}
