//! Work requests: what a consumer asks a queue pair to do.

use alloc::boxed::Box;
use core::fmt;
use core::hint::cold_path;

use bitflags::bitflags;
use feroce_mem::{Access, Bind};
use feroce_train::InlineBytes;
use feroce_wire::{Imm, Lkey, Qkey, Qpn, Rkey, Srqn};

use crate::hca::cqe::WcOpcode;
use crate::hca::id::AhId;

/// Most scatter/gather entries in one work request.
pub const MAX_SGE: usize = 32;

/// Most bytes in one message.
pub const MAX_MESSAGE: u64 = 1 << 31;

/// A piece of registered memory: scatter/gather element.
///
/// ```
/// # use feroce_engine::{Sge, SgeList};
/// # use feroce_wire::Lkey;
/// let header = Sge { addr: 0x1000, len: 16, lkey: Lkey(0x100) };
/// let body = Sge { addr: 0x8000, len: 4096, lkey: Lkey(0x200) };
/// assert_eq!(SgeList::new(&[header, body]).total_len(), 4112);
/// ```
#[doc(alias = "ibv_sge")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sge {
    /// First byte, in the address space of the memory region.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Key of the memory region.
    pub lkey: Lkey,
}

/// A list of scatter/gather elements; up to three need no allocation.
///
/// ```
/// # use feroce_engine::{Data, Sge, SgeList};
/// let pieces = [Sge { len: 16, ..Sge::default() }, Sge { len: 4096, ..Sge::default() }];
/// let gathered = Data::Sges(SgeList::new(&pieces));
/// assert_eq!(gathered.len(), 4112);
/// ```
#[doc(alias = "ibv_sge")]
#[derive(Clone, PartialEq, Eq)]
pub struct SgeList(Repr);

#[derive(Clone, PartialEq, Eq)]
enum Repr {
    Inline { len: u8, sges: [Sge; 3] },
    Heap(Box<[Sge]>),
}

impl SgeList {
    /// No elements.
    pub const EMPTY: Self =
        Self(Repr::Inline { len: 0, sges: [Sge { addr: 0, len: 0, lkey: Lkey(0) }; 3] });

    /// Copies `sges`.
    #[inline]
    pub fn new(sges: &[Sge]) -> Self {
        let mut inline = [Sge::default(); 3];
        match inline.get_mut(..sges.len()) {
            Some(room) => {
                room.copy_from_slice(sges);
                Self(Repr::Inline { len: sges.len() as u8, sges: inline })
            }
            None => Self(Repr::Heap(Box::from(sges))),
        }
    }

    /// The elements.
    #[inline]
    pub fn as_slice(&self) -> &[Sge] {
        match &self.0 {
            Repr::Inline { len, sges } => sges.get(..usize::from(*len)).unwrap_or(sges),
            Repr::Heap(sges) => {
                cold_path();
                sges
            }
        }
    }

    /// Bytes in all elements together.
    #[inline]
    pub fn total_len(&self) -> u64 {
        match self.as_slice() {
            // Most lists have one element; the loop is longer code.
            [sge] => u64::from(sge.len),
            sges => {
                cold_path();
                sges.iter().map(|s| u64::from(s.len)).sum()
            }
        }
    }
}

impl FromIterator<Sge> for SgeList {
    #[inline]
    fn from_iter<I: IntoIterator<Item = Sge>>(sges: I) -> Self {
        let mut all = sges.into_iter();
        let (mut len, mut inline) = (0, [Sge::default(); 3]);
        while let Some(room) = inline.get_mut(usize::from(len)) {
            let Some(sge) = all.next() else { return Self(Repr::Inline { len, sges: inline }) };
            *room = sge;
            len += 1;
        }
        match all.next() {
            None => Self(Repr::Inline { len, sges: inline }),
            Some(fourth) => {
                let first = inline.into_iter().chain([fourth]);
                Self(Repr::Heap(first.chain(all).collect()))
            }
        }
    }
}

impl Default for SgeList {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl fmt::Debug for SgeList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

impl From<Sge> for SgeList {
    #[inline]
    fn from(sge: Sge) -> Self {
        Self::new(&[sge])
    }
}

/// Where the bytes of a work request are.
///
/// ```
/// # use feroce_engine::Data;
/// # use feroce_train::InlineBytes;
/// // Bytes that are copied when they are posted; no memory need be registered for them.
/// let data = Data::Inline(InlineBytes::new(b"hello"));
/// assert_eq!(data.len(), 5);
/// ```
#[derive(Clone, Debug)]
pub enum Data {
    /// In registered memory.
    Sges(SgeList),
    /// Copied at posting time; the buffer may be reused at once.
    #[doc(alias = "IBV_SEND_INLINE")]
    Inline(InlineBytes),
}

impl Data {
    /// No bytes at all.
    pub const EMPTY: Self = Self::Sges(SgeList::EMPTY);

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        match self {
            Self::Sges(sges) => sges.total_len(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// Whether there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for Data {
    fn default() -> Self {
        Self::EMPTY
    }
}

/// Memory of the peer.
///
/// ```
/// # use feroce_engine::{Remote, SendOp};
/// # use feroce_wire::Rkey;
/// // Told by the peer, by any means.
/// let (addr, rkey) = (0x7f00_0000_1000, Rkey(0x1234));
/// let op = SendOp::Write(Remote { addr, rkey });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Remote {
    /// Address in the peer's region.
    pub addr: u64,
    /// Key the peer gave out.
    pub rkey: Rkey,
}

/// How far a flush must go.
///
/// ```
/// # use feroce_engine::FlushKind;
/// let durable = FlushKind { persistent: true, ..FlushKind::default() };
/// ```
#[doc(alias = "ibv_placement_type")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlushKind {
    /// Make earlier writes visible to every observer.
    pub global: bool,
    /// Make earlier writes persistent.
    pub persistent: bool,
    /// The whole memory region rather than the given range.
    pub whole_region: bool,
}

/// The operation of a send work request.
///
/// ```
/// # use feroce_engine::{Remote, SendOp};
/// # let remote = Remote::default();
/// let op = SendOp::CmpSwap { remote, compare: 0, swap: 1 };
/// assert!(op.is_fetch(), "the old value comes back");
/// ```
#[doc(alias = "ibv_wr_opcode")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// Send to a receive buffer of the peer.
    #[doc(alias = "IBV_WR_SEND")]
    Send,
    /// Send, with four bytes for the peer's completion.
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    SendImm(Imm),
    /// Send, and invalidate a key of the peer.
    #[doc(alias = "IBV_WR_SEND_WITH_INV")]
    SendInv(Rkey),
    /// Write to memory of the peer.
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    Write(Remote),
    /// Write, and consume a receive with four bytes of immediate data.
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    WriteImm(Remote, Imm),
    /// Read memory of the peer.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    Read(Remote),
    /// Compare and swap eight bytes; the old value lands in the local buffer.
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    CmpSwap {
        /// The eight bytes.
        remote: Remote,
        /// Swap only if they equal this.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Fetch and add eight bytes; the old value lands in the local buffer.
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    FetchAdd {
        /// The eight bytes.
        remote: Remote,
        /// What to add, wrapping.
        add: u64,
    },
    /// Write eight bytes in one store, so that no reader sees half of them.
    #[doc(alias = "IBV_WR_ATOMIC_WRITE")]
    AtomicWrite(Remote),
    /// Make earlier writes visible or persistent.
    #[doc(alias = "IBV_WR_FLUSH")]
    Flush {
        /// Start of the range.
        remote: Remote,
        /// Its length.
        len: u32,
        /// How far.
        kind: FlushKind,
    },
    /// Bind a memory window, or unbind it with an empty range.
    #[doc(alias = "IBV_WR_BIND_MW")]
    BindMw {
        /// The window.
        mw: Rkey,
        /// Its key afterwards: the same index, with a tag that the consumer chooses.
        new_rkey: Rkey,
        /// What it is to cover.
        binding: Bind,
    },
    /// Invalidate a type 2 window or a fast-registered region of our own, when all earlier requests
    /// of the queue are done.
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    LocalInv(Rkey),
    /// Map a fast-registration key.
    Reg {
        /// The key from `alloc_mr`, with the tag the consumer chose.
        key: Lkey,
        /// Where the mapping starts in the region behind the key.
        offset: u64,
        /// Its length.
        len: u64,
        /// Address of its first byte for the users of the key.
        iova: u64,
        /// Rights.
        access: Access,
    },
}

impl SendOp {
    /// The operation as a completion names it.
    pub(crate) const fn wc_opcode(&self) -> WcOpcode {
        match self {
            Self::Send | Self::SendImm(_) | Self::SendInv(_) => WcOpcode::Send,
            Self::Write(_) | Self::WriteImm(..) => WcOpcode::Write,
            Self::Read(_) => WcOpcode::Read,
            Self::CmpSwap { .. } => WcOpcode::CmpSwap,
            Self::FetchAdd { .. } => WcOpcode::FetchAdd,
            Self::AtomicWrite(_) => WcOpcode::AtomicWrite,
            Self::Flush { .. } => WcOpcode::Flush,
            Self::BindMw { .. } => WcOpcode::BindMw,
            Self::LocalInv(_) => WcOpcode::LocalInv,
            Self::Reg { .. } => WcOpcode::Reg,
        }
    }

    /// Whether the adapter executes it without sending anything.
    #[inline]
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::BindMw { .. } | Self::LocalInv(_) | Self::Reg { .. })
    }

    /// Whether a receive of the peer is consumed.
    #[inline]
    pub const fn consumes_receive(&self) -> bool {
        matches!(self, Self::Send | Self::SendImm(_) | Self::SendInv(_) | Self::WriteImm(..))
    }

    /// Whether the answer brings data back.
    #[inline]
    pub const fn is_fetch(&self) -> bool {
        matches!(self, Self::Read(_) | Self::CmpSwap { .. } | Self::FetchAdd { .. })
    }

    /// Whether it is answered by a read, atomic, flush or atomic-write response and so occupies
    /// one of the peer's responder resources.
    #[inline]
    pub const fn needs_responder_resource(&self) -> bool {
        self.is_fetch() || matches!(self, Self::Flush { .. } | Self::AtomicWrite(_))
    }
}

bitflags! {
    /// Modifiers of a send work request.
    ///
    /// ```
    /// # use feroce_engine::{Data, SendFlags, SendOp, SendWr};
    /// let wake = SendFlags::SIGNALED | SendFlags::SOLICITED;
    /// let last = SendWr { flags: wake, ..SendWr::new(2, SendOp::Send, Data::EMPTY) };
    /// ```
    #[doc(alias = "ibv_send_flags")]
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct SendFlags: u8 {
        /// Report success, too.
        #[doc(alias = "IBV_SEND_SIGNALED")]
        const SIGNALED = 1;
        /// Wake the peer's completion channel if it waits for solicited events.
        #[doc(alias = "IBV_SEND_SOLICITED")]
        const SOLICITED = 2;
        /// Start only when all earlier reads and atomics are complete.
        #[doc(alias = "IBV_SEND_FENCE")]
        const FENCE = 4;
    }
}

/// The destination of a send work request, as far as the queue pair does not determine it.
///
/// ```
/// # use feroce_engine::{Data, Dest, SendOp, SendWr};
/// # use feroce_wire::Srqn;
/// let dest = Dest::Xrc(Srqn::new(3));
/// let wr = SendWr { dest, ..SendWr::new(1, SendOp::Send, Data::EMPTY) };
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Dest {
    /// The queue pair that ours is connected to.
    #[default]
    Connected,
    /// A datagram to any queue pair.
    Ud {
        /// The address handle, which holds the path.
        ah: AhId,
        /// The queue pair.
        qpn: Qpn,
        /// Its queue key; with the high bit set, the key of the sending queue pair is used.
        qkey: Qkey,
    },
    /// A shared receive queue behind an XRC target.
    Xrc(Srqn),
}

/// A send work request.
///
/// ```
/// # use feroce_engine::{Data, SendOp, SendWr};
/// # use feroce_train::InlineBytes;
/// let wr = SendWr::new(7, SendOp::Send, Data::Inline(InlineBytes::new(b"hello")));
/// assert_eq!(wr.wr_id, 7);
/// ```
#[doc(alias = "ibv_send_wr")]
#[derive(Clone, Debug)]
pub struct SendWr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// Bytes to send, or where fetched bytes go.
    pub data: Data,
    /// Modifiers.
    pub flags: SendFlags,
    /// Whom it addresses.
    pub dest: Dest,
}

impl SendWr {
    /// A signalled request on a connected queue pair.
    #[inline]
    pub fn new(wr_id: u64, op: SendOp, data: Data) -> Self {
        Self { wr_id, op, data, flags: SendFlags::SIGNALED, dest: Dest::Connected }
    }
}

/// A receive work request.
///
/// ```
/// # use feroce_engine::{RecvWr, Sge, SgeList};
/// # use feroce_wire::Lkey;
/// let buffer = Sge { addr: 0x1000, len: 4096, lkey: Lkey(0x100) };
/// let wr = RecvWr::new(1, buffer);
/// let scattered = RecvWr::new(2, SgeList::new(&[buffer, buffer]));
/// ```
#[doc(alias = "ibv_recv_wr")]
#[derive(Clone, Debug, Default)]
pub struct RecvWr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where an incoming message goes.
    pub sges: SgeList,
}

impl RecvWr {
    /// A receive into one scatter element, or into several.
    #[inline]
    pub fn new(wr_id: u64, sges: impl Into<SgeList>) -> Self {
        Self { wr_id, sges: sges.into() }
    }
}
