//! Commands: the submission queue entry at the beginning of a capsule.

use super::bytes::{array, byte, le16, le32, le64, put};
use super::sgl::Sgl;

/// Length of a command; data in the capsule follows.
pub const CAPSULE: usize = 64;

/// Bits 7:6 of the flags: the data is described by an SGL, as fabrics demand.
const FLAG_SGL: u8 = 0x40;

/// Opcodes of the admin queue.
pub mod admin {
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT: u8 = 0x0c;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
}

/// The opcode of fabrics commands, and their types.
pub mod fabrics {
    /// The opcode of all of them.
    pub const OPCODE: u8 = 0x7f;
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Authentication Send.
    pub const AUTH_SEND: u8 = 0x05;
    /// Authentication Receive.
    pub const AUTH_RECEIVE: u8 = 0x06;
    /// Disconnect.
    pub const DISCONNECT: u8 = 0x08;
}

/// Opcodes of I/O queues.
pub mod io {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET: u8 = 0x09;
}

/// What Identify asks for.
pub mod cns {
    /// A namespace.
    pub const NAMESPACE: u8 = 0x00;
    /// The controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Numbers of the active namespaces.
    pub const NAMESPACE_LIST: u8 = 0x02;
    /// Identifiers of a namespace.
    pub const DESCRIPTORS: u8 = 0x03;
}

/// Features.
pub mod feature {
    /// Number of Queues.
    pub const QUEUES: u8 = 0x07;
    /// Asynchronous Event Configuration.
    pub const ASYNC_EVENTS: u8 = 0x0b;
    /// Keep Alive Timer.
    pub const KEEP_ALIVE: u8 = 0x0f;
}

/// Log pages.
pub mod log {
    /// Error Information.
    pub const ERRORS: u8 = 0x01;
    /// SMART / Health Information.
    pub const HEALTH: u8 = 0x02;
    /// Firmware Slot Information.
    pub const FIRMWARE: u8 = 0x03;
    /// Commands Supported and Effects.
    pub const EFFECTS: u8 = 0x05;
    /// Discovery.
    pub const DISCOVERY: u8 = 0x70;
}

/// A command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Command {
    /// What to do.
    pub opcode: u8,
    /// Fused operation and kind of data description.
    pub flags: u8,
    /// The number that the completion repeats.
    pub cid: u16,
    /// The namespace; of fabrics commands, the type in the lowest byte.
    pub nsid: u32,
    /// Bytes 8 to 23: two reserved words and the metadata pointer.
    pub reserved: [u8; 16],
    /// The data.
    pub sgl: Sgl,
    /// Words 10 to 15, whose meaning depends on the command.
    pub cdw: [u32; 6],
}

/// What Read, Write, Compare and Write Zeroes say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rw {
    /// First block.
    pub lba: u64,
    /// Blocks, at least 1.
    pub blocks: u32,
    /// Whether the data must be durable before the command completes.
    pub force_unit_access: bool,
}

/// What Get Log Page says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogPage {
    /// Which page.
    pub id: u8,
    /// First byte.
    pub offset: u64,
    /// Bytes, at least 4.
    pub len: u64,
}

/// A range of Dataset Management.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataRange {
    /// First block.
    pub lba: u64,
    /// Blocks.
    pub blocks: u32,
}

impl DataRange {
    /// Length of a range in bytes.
    pub const LEN: usize = 16;

    /// The ranges that bytes hold; what is left over is ignored.
    pub fn parse_all(bytes: &[u8]) -> impl Iterator<Item = Self> {
        let ranges = bytes.chunks_exact(Self::LEN);
        ranges.map(|range| Self { lba: le64(range, 8), blocks: le32(range, 4) })
    }

    /// Its bytes.
    pub fn emit(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        put(&mut out, 4, &self.blocks.to_le_bytes());
        put(&mut out, 8, &self.lba.to_le_bytes());
        out
    }
}

impl Command {
    /// A command without data.
    pub fn new(opcode: u8) -> Self {
        Self { opcode, flags: FLAG_SGL, sgl: Sgl::none(), ..Self::default() }
    }

    /// A fabrics command without data.
    pub fn fabrics(kind: u8) -> Self {
        Self { nsid: kind.into(), ..Self::new(fabrics::OPCODE) }
    }

    /// From the first 64 bytes of a capsule; a shorter one is none.
    pub fn parse(capsule: &[u8]) -> Option<Self> {
        let bytes = capsule.get(..CAPSULE)?;
        Some(Self {
            opcode: byte(bytes, 0),
            flags: byte(bytes, 1),
            cid: le16(bytes, 2),
            nsid: le32(bytes, 4),
            reserved: array(bytes, 8),
            sgl: Sgl(array(bytes, 24)),
            cdw: std::array::from_fn(|i| le32(bytes, 40 + 4 * i)),
        })
    }

    /// Its bytes.
    pub fn emit(&self) -> [u8; CAPSULE] {
        let mut out = [0; CAPSULE];
        out[0] = self.opcode;
        out[1] = self.flags;
        put(&mut out, 2, &self.cid.to_le_bytes());
        put(&mut out, 4, &self.nsid.to_le_bytes());
        put(&mut out, 8, &self.reserved);
        put(&mut out, 24, &self.sgl.0);
        for (i, word) in self.cdw.iter().enumerate() {
            put(&mut out, 40 + 4 * i, &word.to_le_bytes());
        }
        out
    }

    /// The type of a fabrics command.
    pub fn fabrics_type(&self) -> u8 {
        self.nsid.to_le_bytes()[0]
    }

    /// Two words as one number.
    pub(crate) fn long(&self, low: usize) -> u64 {
        u64::from(self.cdw[low]) | u64::from(self.cdw[low + 1]) << 32
    }

    /// What Read, Write, Compare and Write Zeroes say.
    pub fn rw(&self) -> Rw {
        Rw {
            lba: self.long(0),
            blocks: (self.cdw[2] & 0xffff) + 1,
            force_unit_access: self.cdw[2] & 1 << 30 != 0,
        }
    }

    /// The same command with these blocks, of which there are 1 to 65536.
    #[must_use]
    pub fn with_rw(mut self, rw: Rw) -> Self {
        self.cdw[0] = rw.lba as u32;
        self.cdw[1] = (rw.lba >> 32) as u32;
        self.cdw[2] = rw.blocks.wrapping_sub(1) & 0xffff | u32::from(rw.force_unit_access) << 30;
        self
    }

    /// What Get Log Page says.
    pub fn log_page(&self) -> LogPage {
        let words = u64::from(self.cdw[0] >> 16) | u64::from(self.cdw[1] & 0xffff) << 16;
        LogPage { id: self.cdw[0] as u8, offset: self.long(2), len: 4 * (words + 1) }
    }

    /// The same command with this part of a log page.
    #[must_use]
    pub fn with_log_page(mut self, page: LogPage) -> Self {
        let words = (page.len / 4).saturating_sub(1) as u32;
        self.cdw[0] = u32::from(page.id) | words << 16;
        self.cdw[1] = words >> 16;
        self.cdw[2] = page.offset as u32;
        self.cdw[3] = (page.offset >> 32) as u32;
        self
    }
}
