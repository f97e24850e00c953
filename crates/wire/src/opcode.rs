//! The opcode byte of the base transport header (IBTA vol1 9.2.1).

/// Transport service: the top three bits of the opcode.
///
/// Reliable datagram (code 2) is not here; its opcodes decode to nothing.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Unreliable datagram.
    Ud = 3,
    /// Congestion notification (RoCEv2 annex A17).
    Cnp = 4,
    /// Extended reliable connection (annex A14).
    Xrc = 5,
}

/// What a packet does: the low five bits of the opcode.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// First packet of a SEND.
    SendFirst = 0x00,
    /// Middle packet of a SEND.
    SendMiddle = 0x01,
    /// Last packet of a SEND.
    SendLast = 0x02,
    /// Last packet of a SEND with immediate.
    SendLastImm = 0x03,
    /// Only packet of a SEND.
    SendOnly = 0x04,
    /// Only packet of a SEND with immediate.
    SendOnlyImm = 0x05,
    /// First packet of an RDMA WRITE.
    WriteFirst = 0x06,
    /// Middle packet of an RDMA WRITE.
    WriteMiddle = 0x07,
    /// Last packet of an RDMA WRITE.
    WriteLast = 0x08,
    /// Last packet of an RDMA WRITE with immediate.
    WriteLastImm = 0x09,
    /// Only packet of an RDMA WRITE.
    WriteOnly = 0x0a,
    /// Only packet of an RDMA WRITE with immediate.
    WriteOnlyImm = 0x0b,
    /// RDMA READ request.
    ReadRequest = 0x0c,
    /// First packet of an RDMA READ response.
    ReadResponseFirst = 0x0d,
    /// Middle packet of an RDMA READ response.
    ReadResponseMiddle = 0x0e,
    /// Last packet of an RDMA READ response.
    ReadResponseLast = 0x0f,
    /// Only packet of an RDMA READ response.
    ReadResponseOnly = 0x10,
    /// Acknowledgement, positive or negative.
    Acknowledge = 0x11,
    /// Acknowledgement of an atomic, with the original value.
    AtomicAcknowledge = 0x12,
    /// Atomic compare and swap.
    CmpSwap = 0x13,
    /// Atomic fetch and add.
    FetchAdd = 0x14,
    /// Last packet of a SEND with invalidate.
    SendLastInv = 0x16,
    /// Only packet of a SEND with invalidate.
    SendOnlyInv = 0x17,
    /// FLUSH (memory placement extensions, annex A19).
    Flush = 0x1c,
    /// ATOMIC WRITE (memory placement extensions, annex A19).
    AtomicWrite = 0x1d,
    /// Congestion notification; its code is the whole byte.
    Cnp = 0x81,
}

impl Op {
    /// Every operation.
    pub const ALL: [Self; 26] = [
        Self::SendFirst,
        Self::SendMiddle,
        Self::SendLast,
        Self::SendLastImm,
        Self::SendOnly,
        Self::SendOnlyImm,
        Self::WriteFirst,
        Self::WriteMiddle,
        Self::WriteLast,
        Self::WriteLastImm,
        Self::WriteOnly,
        Self::WriteOnlyImm,
        Self::ReadRequest,
        Self::ReadResponseFirst,
        Self::ReadResponseMiddle,
        Self::ReadResponseLast,
        Self::ReadResponseOnly,
        Self::Acknowledge,
        Self::AtomicAcknowledge,
        Self::CmpSwap,
        Self::FetchAdd,
        Self::SendLastInv,
        Self::SendOnlyInv,
        Self::Flush,
        Self::AtomicWrite,
        Self::Cnp,
    ];

    /// First of several packets.
    #[inline]
    pub const fn is_first(self) -> bool {
        matches!(self, Self::SendFirst | Self::WriteFirst | Self::ReadResponseFirst)
    }

    /// Neither first nor last of several packets.
    #[inline]
    pub const fn is_middle(self) -> bool {
        matches!(self, Self::SendMiddle | Self::WriteMiddle | Self::ReadResponseMiddle)
    }

    /// Last of several packets.
    #[inline]
    pub const fn is_last(self) -> bool {
        matches!(
            self,
            Self::SendLast
                | Self::SendLastImm
                | Self::SendLastInv
                | Self::WriteLast
                | Self::WriteLastImm
                | Self::ReadResponseLast
        )
    }

    /// The whole SEND, RDMA WRITE or RDMA READ response in one packet.
    #[inline]
    pub const fn is_only(self) -> bool {
        matches!(
            self,
            Self::SendOnly
                | Self::SendOnlyImm
                | Self::SendOnlyInv
                | Self::WriteOnly
                | Self::WriteOnlyImm
                | Self::ReadResponseOnly
        )
    }

    /// A request that is always one packet: READ request, atomics, FLUSH, ATOMIC WRITE.
    #[inline]
    const fn is_single(self) -> bool {
        matches!(
            self,
            Self::ReadRequest | Self::CmpSwap | Self::FetchAdd | Self::Flush | Self::AtomicWrite
        )
    }

    /// Starts a message or a read response. Acknowledgements and CNPs do not.
    #[inline]
    pub const fn starts(self) -> bool {
        self.is_first() || self.is_only() || self.is_single()
    }

    /// Ends a message or a read response. Acknowledgements and CNPs do not.
    #[inline]
    pub const fn ends(self) -> bool {
        self.is_last() || self.is_only() || self.is_single()
    }

    /// Sent by a requester.
    #[inline]
    pub const fn is_request(self) -> bool {
        self.is_send() || self.is_write() || self.is_single()
    }

    /// Sent by a responder.
    #[inline]
    pub const fn is_response(self) -> bool {
        self.is_read_response() || matches!(self, Self::Acknowledge | Self::AtomicAcknowledge)
    }

    /// Carries an RDMA extended transport header.
    #[inline]
    pub const fn has_reth(self) -> bool {
        matches!(
            self,
            Self::WriteFirst
                | Self::WriteOnly
                | Self::WriteOnlyImm
                | Self::ReadRequest
                | Self::Flush
                | Self::AtomicWrite
        )
    }

    /// Carries immediate data.
    #[inline]
    pub const fn has_imm(self) -> bool {
        matches!(
            self,
            Self::SendLastImm | Self::SendOnlyImm | Self::WriteLastImm | Self::WriteOnlyImm
        )
    }

    /// Carries the key to invalidate.
    #[inline]
    pub const fn has_ieth(self) -> bool {
        matches!(self, Self::SendLastInv | Self::SendOnlyInv)
    }

    /// Carries an ACK extended transport header.
    #[inline]
    pub const fn has_aeth(self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
                | Self::Acknowledge
                | Self::AtomicAcknowledge
        )
    }

    /// Carries an atomic extended transport header.
    #[inline]
    pub const fn has_atomic_eth(self) -> bool {
        matches!(self, Self::CmpSwap | Self::FetchAdd)
    }

    /// Carries the original value of an atomic.
    #[inline]
    pub const fn has_atomic_ack_eth(self) -> bool {
        matches!(self, Self::AtomicAcknowledge)
    }

    /// Carries a flush extended transport header.
    #[inline]
    pub const fn has_feth(self) -> bool {
        matches!(self, Self::Flush)
    }

    /// Any packet of a SEND.
    #[inline]
    pub const fn is_send(self) -> bool {
        matches!(
            self,
            Self::SendFirst
                | Self::SendMiddle
                | Self::SendLast
                | Self::SendLastImm
                | Self::SendOnly
                | Self::SendOnlyImm
                | Self::SendLastInv
                | Self::SendOnlyInv
        )
    }

    /// Any packet of an RDMA WRITE. ATOMIC WRITE is not one.
    #[inline]
    pub const fn is_write(self) -> bool {
        matches!(
            self,
            Self::WriteFirst
                | Self::WriteMiddle
                | Self::WriteLast
                | Self::WriteLastImm
                | Self::WriteOnly
                | Self::WriteOnlyImm
        )
    }

    /// Any packet of an RDMA READ response.
    #[inline]
    pub const fn is_read_response(self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst
                | Self::ReadResponseMiddle
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
        )
    }

    /// The operation of a run of packets of one message as if it were one packet: this is that of
    /// the first packet, `last` that of the last. `None` if they are not of one message.
    #[inline]
    pub const fn through(self, last: Self) -> Option<Self> {
        Some(match (self, last) {
            (Self::SendFirst, Self::SendMiddle) => Self::SendFirst,
            (Self::SendFirst, Self::SendLast) => Self::SendOnly,
            (Self::SendFirst, Self::SendLastImm) => Self::SendOnlyImm,
            (Self::SendFirst, Self::SendLastInv) => Self::SendOnlyInv,
            (Self::WriteFirst, Self::WriteMiddle) => Self::WriteFirst,
            (Self::WriteFirst, Self::WriteLast) => Self::WriteOnly,
            (Self::WriteFirst, Self::WriteLastImm) => Self::WriteOnlyImm,
            (Self::ReadResponseFirst, Self::ReadResponseMiddle) => Self::ReadResponseFirst,
            (Self::ReadResponseFirst, Self::ReadResponseLast) => Self::ReadResponseOnly,
            (Self::SendMiddle, Self::SendMiddle | Self::SendLast)
            | (Self::SendMiddle, Self::SendLastImm | Self::SendLastInv)
            | (Self::WriteMiddle, Self::WriteMiddle | Self::WriteLast | Self::WriteLastImm)
            | (Self::ReadResponseMiddle, Self::ReadResponseMiddle | Self::ReadResponseLast) => last,
            _ => return None,
        })
    }

    /// The operation of what is left of a run of packets without its first: the inverse of
    /// [`Op::through`], in a way. `None` for what is always one packet.
    #[inline]
    pub const fn continued(self) -> Option<Self> {
        Some(match self {
            Self::SendFirst => Self::SendMiddle,
            Self::SendOnly => Self::SendLast,
            Self::SendOnlyImm => Self::SendLastImm,
            Self::SendOnlyInv => Self::SendLastInv,
            Self::WriteFirst => Self::WriteMiddle,
            Self::WriteOnly => Self::WriteLast,
            Self::WriteOnlyImm => Self::WriteLastImm,
            Self::ReadResponseFirst => Self::ReadResponseMiddle,
            Self::ReadResponseOnly => Self::ReadResponseLast,
            _ if self.is_middle() || self.is_last() => self,
            _ => return None,
        })
    }

    /// Whether `service` has this operation (IBTA vol1 9.2.1 and annexes A14, A17, A19).
    const fn allowed_on(self, service: Service) -> bool {
        match service {
            Service::Rc | Service::Xrc => !matches!(self, Self::Cnp),
            Service::Uc => self.is_write() || (self.is_send() && !self.has_ieth()),
            Service::Ud => matches!(self, Self::SendOnly | Self::SendOnlyImm),
            Service::Cnp => matches!(self, Self::Cnp),
        }
    }
}

/// The opcode byte as it travels, known or not.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

impl Opcode {
    /// The bits that say what a packet does; the others name the service.
    pub const OP_BITS: u8 = 0x1f;

    /// Congestion notification packet.
    pub const CNP: Self = Self::new(Service::Cnp, Op::Cnp);

    /// The byte for `op` on `service`. A pair that does not exist gives a byte that does not
    /// [`decode`](Self::decode) to the pair.
    #[inline]
    pub const fn new(service: Service, op: Op) -> Self {
        Self(((service as u8) << 5) | op as u8)
    }

    /// The service and the operation; `None` for reserved bytes and pairs that do not exist.
    #[inline]
    pub const fn decode(self) -> Option<(Service, Op)> {
        DECODE[self.0 as usize]
    }
}

impl core::fmt::Debug for Opcode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.decode() {
            Some((service, op)) => write!(f, "{service:?}:{op:?}"),
            None => write!(f, "Opcode({:#04x})", self.0),
        }
    }
}

/// [`Opcode::decode`] of every byte.
static DECODE: [Option<(Service, Op)>; 256] = {
    let services = [Service::Rc, Service::Uc, Service::Ud, Service::Cnp, Service::Xrc];
    let mut table = [None; 256];
    let mut s = 0;
    while s < services.len() {
        let mut o = 0;
        while o < Op::ALL.len() {
            let (service, op) = (services[s], Op::ALL[o]);
            if op.allowed_on(service) {
                table[Opcode::new(service, op).0 as usize] = Some((service, op));
            }
            o += 1;
        }
        s += 1;
    }
    table
};

#[cfg(test)]
mod tests;
