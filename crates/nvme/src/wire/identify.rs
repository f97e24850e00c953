//! What Identify returns: NVMe Base 5.17.2, NVM Command Set 4.1.5.

use super::bytes::{array, byte, le16, le32, le64, put, put_text, text};
use super::property::VERSION;

/// Length of every structure that Identify returns.
pub const IDENTIFY: usize = 4096;

/// A controller.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IdentifyController {
    /// Serial number, at most 20 bytes.
    pub serial: String,
    /// Model, at most 40 bytes.
    pub model: String,
    /// Revision of the firmware, at most 8 bytes.
    pub firmware: String,
    /// Longest transfer: 4096 bytes times 2 to this power; 0 for no limit.
    pub mdts: u8,
    /// Whether the subsystem has other controllers, at this address or another one.
    pub is_shared: bool,
    /// The controller.
    pub controller: u16,
    /// Whether it is a discovery controller.
    pub is_discovery: bool,
    /// Commands that can be outstanding on a queue.
    pub max_commands: u16,
    /// Greatest number of a namespace.
    pub namespaces: u32,
    /// Optional commands: 1 compare, 4 dataset management, 8 write zeroes.
    pub optional: u16,
    /// Whether writes are durable only after a flush.
    pub write_cache: bool,
    /// Name of the subsystem.
    pub subsystem: String,
    /// Longest command capsule in units of 16 bytes.
    pub command_capsule: u32,
    /// Longest response capsule in units of 16 bytes.
    pub response_capsule: u32,
    /// Where data in a capsule begins, in units of 16 bytes behind the command.
    pub data_offset: u16,
    /// Asynchronous event requests that it holds, less one.
    pub events: u8,
    /// Granularity of the keep-alive timer in units of 100 ms.
    pub keep_alive: u16,
    /// Version of the specification.
    pub version: u32,
    /// How data may be described.
    pub sgls: u32,
}

/// SGLs are supported, also keyed ones and offsets in capsules.
const SGLS: u32 = 1 | 1 << 2 | 1 << 20;

impl IdentifyController {
    /// With the values that every controller of this crate has.
    pub fn new() -> Self {
        Self { version: VERSION, sgls: SGLS, response_capsule: 1, ..Self::default() }
    }

    /// From the data of the command.
    pub fn parse(bytes: &[u8]) -> Self {
        Self {
            serial: text(bytes, 4, 20),
            model: text(bytes, 24, 40),
            firmware: text(bytes, 64, 8),
            is_shared: byte(bytes, 76) & 2 != 0,
            mdts: byte(bytes, 77),
            controller: le16(bytes, 78),
            version: le32(bytes, 80),
            is_discovery: byte(bytes, 111) == 2,
            events: byte(bytes, 259),
            keep_alive: le16(bytes, 320),
            max_commands: le16(bytes, 514),
            namespaces: le32(bytes, 516),
            optional: le16(bytes, 520),
            write_cache: byte(bytes, 525) & 1 != 0,
            sgls: le32(bytes, 536),
            subsystem: text(bytes, 768, 256),
            command_capsule: le32(bytes, 1792),
            response_capsule: le32(bytes, 1796),
            data_offset: le16(bytes, 1800),
        }
    }

    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = vec![0; IDENTIFY];
        put_text(&mut out, 4, 20, &self.serial, b' ');
        put_text(&mut out, 24, 40, &self.model, b' ');
        put_text(&mut out, 64, 8, &self.firmware, b' ');
        // Several ports, and several controllers.
        out[76] = if self.is_shared { 3 } else { 0 };
        out[77] = self.mdts;
        put(&mut out, 78, &self.controller.to_le_bytes());
        put(&mut out, 80, &self.version.to_le_bytes());
        out[111] = if self.is_discovery { 2 } else { 1 };
        // Abort commands at a time, less one, and entries of the error log, less one.
        out[258] = 3;
        out[259] = self.events;
        // Log pages can be read from any offset.
        out[261] = 1 << 2;
        put(&mut out, 320, &self.keep_alive.to_le_bytes());
        if !self.is_discovery {
            // Entries of 64 and 16 bytes, and no others.
            put(&mut out, 512, &[0x66, 0x44]);
        }
        put(&mut out, 514, &self.max_commands.to_le_bytes());
        put(&mut out, 516, &self.namespaces.to_le_bytes());
        put(&mut out, 520, &self.optional.to_le_bytes());
        out[525] = self.write_cache.into();
        put(&mut out, 536, &self.sgls.to_le_bytes());
        put_text(&mut out, 768, 256, &self.subsystem, 0);
        put(&mut out, 1792, &self.command_capsule.to_le_bytes());
        put(&mut out, 1796, &self.response_capsule.to_le_bytes());
        put(&mut out, 1800, &self.data_offset.to_le_bytes());
        // One keyed descriptor per command.
        out[1803] = 1;
        out
    }
}

/// A namespace with one format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IdentifyNamespace {
    /// Blocks.
    pub blocks: u64,
    /// Bytes in a block: 2 to this power.
    pub block_bits: u8,
    /// An identifier that no other namespace has.
    pub guid: [u8; 16],
    /// Whether the namespace cannot be written.
    pub read_only: bool,
    /// Whether several controllers can use it at a time.
    pub is_shared: bool,
}

impl IdentifyNamespace {
    /// From the data of the command.
    pub fn parse(bytes: &[u8]) -> Self {
        let format = usize::from(byte(bytes, 26) & 0xf);
        Self {
            blocks: le64(bytes, 0),
            block_bits: byte(bytes, 130 + 4 * format),
            guid: array(bytes, 104),
            read_only: byte(bytes, 99) & 1 != 0,
            is_shared: byte(bytes, 30) & 1 != 0,
        }
    }

    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = vec![0; IDENTIFY];
        // Size, capacity and use.
        for at in [0, 8, 16] {
            put(&mut out, at, &self.blocks.to_le_bytes());
        }
        out[30] = self.is_shared.into();
        // Blocks that were deallocated read as zeros.
        out[33] = 1;
        out[99] = self.read_only.into();
        put(&mut out, 104, &self.guid);
        out[130] = self.block_bits;
        out
    }
}

/// The numbers of namespaces after `after`, at most 1024.
pub fn namespace_list(all: impl IntoIterator<Item = u32>, after: u32) -> Vec<u8> {
    let mut out = vec![0; IDENTIFY];
    let numbers = all.into_iter().filter(|&nsid| nsid > after).take(IDENTIFY / 4);
    for (i, nsid) in numbers.enumerate() {
        put(&mut out, 4 * i, &nsid.to_le_bytes());
    }
    out
}

/// The descriptors of a namespace: its identifier as NGUID, and the command set.
pub fn descriptors(guid: [u8; 16]) -> Vec<u8> {
    let mut out = vec![0; IDENTIFY];
    put(&mut out, 0, &[2, 16]);
    put(&mut out, 4, &guid);
    put(&mut out, 20, &[4, 1]);
    out
}
