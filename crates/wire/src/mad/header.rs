//! The 24 bytes in front of every management datagram (IBTA vol1 13.4.2).

use crate::field::fixed_header;
use crate::layout::Value;
use crate::mad::{Attribute, Class, Method, Status};

mod field {
    use crate::field::Field;

    pub(super) const BASE_VERSION: Field<0, 1> = Field;
    pub(super) const CLASS: Field<1, 1> = Field;
    pub(super) const CLASS_VERSION: Field<2, 1> = Field;
    pub(super) const METHOD: Field<3, 1> = Field;
    pub(super) const STATUS: Field<4, 2> = Field;
    pub(super) const CLASS_SPECIFIC: Field<6, 2> = Field;
    pub(super) const TRANSACTION: Field<8, 8> = Field;
    pub(super) const ATTRIBUTE: Field<16, 2> = Field;
    pub(super) const RESERVED: Field<18, 2> = Field;
    pub(super) const MODIFIER: Field<20, 4> = Field;
}

/// Bytes of a whole management datagram.
pub const MAD_LEN: usize = 256;
/// Bytes behind the header.
pub const MAD_DATA_LEN: usize = MAD_LEN - MadHeader::LEN;
/// Class of communication management.
pub const CLASS_CM: u8 = 0x07;
/// The only base version there is.
pub const BASE_VERSION: u8 = 1;
/// Class version of communication management.
pub const CM_CLASS_VERSION: u8 = 2;
/// Method of every communication management message.
pub const METHOD_SEND: u8 = 0x03;

/// Header of a management datagram. The reserved field is written as zero and not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadHeader {
    /// Version of this header.
    pub base_version: u8,
    /// Management class.
    pub class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Method, with the response bit.
    pub method: u8,
    /// Status of a response.
    pub status: u16,
    /// What the class makes of it.
    pub class_specific: u16,
    /// Ties responses to requests.
    pub transaction: u64,
    /// What the datagram is about.
    pub attribute: u16,
    /// More of that.
    pub modifier: u32,
}

impl MadHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 24;

    /// Header of a communication management message.
    pub const fn cm(attribute: u16, transaction: u64) -> Self {
        Self {
            base_version: BASE_VERSION,
            class: CLASS_CM,
            class_version: CM_CLASS_VERSION,
            method: METHOD_SEND,
            status: 0,
            class_specific: 0,
            transaction,
            attribute,
            modifier: 0,
        }
    }

    /// Header of a request of subnet or performance management, without transaction.
    pub const fn request(class: Class, method: Method, attribute: Attribute) -> Self {
        Self {
            base_version: BASE_VERSION,
            class: class.0,
            class_version: 1,
            method: method.0,
            status: 0,
            class_specific: 0,
            transaction: 0,
            attribute: attribute.0,
            modifier: 0,
        }
    }

    /// The header of the response to a request of this header. The class keeps what is its own.
    #[must_use]
    pub const fn response(self, status: Status) -> Self {
        let method = match Method(self.method) {
            Method::SET => Method::GET_RESP.0,
            Method::TRAP => Method::TRAP_REPRESS.0,
            Method(method) => method | 0x80,
        };
        Self { method, status: status.0, ..self }
    }

    /// Whether a communication manager should read on.
    pub const fn is_cm(&self) -> bool {
        self.base_version == BASE_VERSION
            && self.class == CLASS_CM
            && self.class_version == CM_CLASS_VERSION
            && self.method == METHOD_SEND
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        field::BASE_VERSION.put(out, [self.base_version]);
        field::CLASS.put(out, [self.class]);
        field::CLASS_VERSION.put(out, [self.class_version]);
        field::METHOD.put(out, [self.method]);
        field::STATUS.put(out, self.status.to_be_bytes());
        field::CLASS_SPECIFIC.put(out, self.class_specific.to_be_bytes());
        field::TRANSACTION.put(out, self.transaction.to_be_bytes());
        field::ATTRIBUTE.put(out, self.attribute.to_be_bytes());
        field::RESERVED.put(out, [0; 2]);
        field::MODIFIER.put(out, self.modifier.to_be_bytes());
    }
}

fixed_header! {
    /// A management datagram header in place.
    MadHeaderView => MadHeader
}

impl MadHeaderView<'_> {
    /// Every field at once.
    pub fn to_repr(self) -> MadHeader {
        MadHeader {
            base_version: field::BASE_VERSION.get(self.0)[0],
            class: field::CLASS.get(self.0)[0],
            class_version: field::CLASS_VERSION.get(self.0)[0],
            method: field::METHOD.get(self.0)[0],
            status: u16::from_be_bytes(field::STATUS.get(self.0)),
            class_specific: u16::from_be_bytes(field::CLASS_SPECIFIC.get(self.0)),
            transaction: u64::from_be_bytes(field::TRANSACTION.get(self.0)),
            attribute: u16::from_be_bytes(field::ATTRIBUTE.get(self.0)),
            modifier: u32::from_be_bytes(field::MODIFIER.get(self.0)),
        }
    }
}

/// All zeros: no header that any class accepts.
impl Default for MadHeader {
    fn default() -> Self {
        MadHeaderView(&[0; Self::LEN]).to_repr()
    }
}

impl Value for MadHeader {
    fn get(bytes: &[u8], at: usize, _bits: usize) -> Self {
        let bytes = bytes.get(at / 8..).unwrap_or_default();
        MadHeaderView::new_checked(bytes).map(MadHeaderView::to_repr).unwrap_or_default()
    }

    fn put(&self, bytes: &mut [u8], at: usize, _bits: usize) {
        if let Some(out) = bytes.get_mut(at / 8..).and_then(|rest| rest.first_chunk_mut()) {
            self.emit(out);
        }
    }
}
