//! Status of completions: NVMe Base 3.3.3.2.

use std::fmt;
use std::io;

/// How a command ended: status code, type, and the bit "do not retry", as Linux prints them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Status(pub u16);

/// The bit "do not retry".
const DNR: u16 = 0x4000;

/// Constants with their names.
macro_rules! statuses {
    ($($(#[$doc:meta])* $constant:ident = $code:literal, $name:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $constant: Self = Self($code);)*

            /// What it means, in words.
            pub fn name(self) -> &'static str {
                match self.0 & 0x7ff {
                    $($code => $name,)*
                    _ => "unknown status",
                }
            }
        }
    };
}

statuses! {
    /// Success.
    SUCCESS = 0x000, "success";
    /// The opcode is not supported.
    INVALID_OPCODE = 0x001, "invalid opcode";
    /// A field has a value that is not supported.
    INVALID_FIELD = 0x002, "invalid field";
    /// The data could not be transferred.
    TRANSFER = 0x004, "data transfer error";
    /// The controller failed.
    INTERNAL = 0x006, "internal error";
    /// The host has aborted the command.
    ABORTED = 0x007, "aborted by request";
    /// There is no such namespace.
    INVALID_NAMESPACE = 0x00b, "invalid namespace";
    /// The command came at the wrong time.
    SEQUENCE = 0x00c, "command sequence error";
    /// The length of the data is wrong.
    SGL_LENGTH = 0x00f, "data SGL length invalid";
    /// The description of the data has a type that is not supported.
    SGL_TYPE = 0x011, "SGL descriptor type invalid";
    /// The data is not where the description says.
    SGL_OFFSET = 0x016, "SGL offset invalid";
    /// The namespace is write protected.
    WRITE_PROTECTED = 0x020, "namespace is write protected";
    /// Blocks beyond the end.
    LBA_RANGE = 0x080, "LBA out of range";
    /// There is no room for the data.
    CAPACITY = 0x081, "capacity exceeded";
    /// There is no such queue.
    INVALID_QUEUE = 0x101, "invalid queue identifier";
    /// More asynchronous event requests than the controller holds.
    ASYNC_LIMIT = 0x105, "asynchronous event request limit exceeded";
    /// There is no such log page.
    INVALID_LOG_PAGE = 0x109, "invalid log page";
    /// The format of Connect is not supported.
    CONNECT_FORMAT = 0x180, "incompatible format of Connect";
    /// The controller has no resources for another connection.
    CONNECT_BUSY = 0x181, "controller busy";
    /// A parameter of Connect is wrong: usually there is no subsystem of that name.
    CONNECT_PARAMETERS = 0x182, "invalid parameters of Connect";
    /// The host must not use the subsystem.
    CONNECT_HOST = 0x184, "host is not allowed";
    /// The host must authenticate first.
    AUTH_REQUIRED = 0x191, "authentication required";
    /// Data could not be written.
    WRITE_FAULT = 0x280, "write fault";
    /// Data could not be read.
    READ_ERROR = 0x281, "unrecovered read error";
    /// Compare found different data.
    COMPARE = 0x285, "compare failure";
    /// The host has lost its connection to the controller.
    PATH = 0x370, "host pathing error";
    /// The operation is not permitted.
    ACCESS_DENIED = 0x286, "access denied";
}

impl Status {
    /// The same, and the host should not try again.
    #[must_use]
    pub const fn do_not_retry(self) -> Self {
        Self(self.0 | DNR)
    }

    /// Whether it is success.
    pub fn is_ok(self) -> bool {
        self.0 & 0x7ff == 0
    }

    /// The code and its type, without the bits beside them.
    pub fn code(self) -> u16 {
        self.0 & 0x7ff
    }

    /// Whether the host should not try again.
    pub fn is_final(self) -> bool {
        self.0 & DNR != 0
    }

    /// Whether it says something of the path to the disk, and nothing of the disk.
    pub fn is_of_the_path(self) -> bool {
        self.0 & 0x700 == 0x300
    }

    /// Whether the medium has failed.
    pub fn is_of_the_medium(self) -> bool {
        matches!(self.code(), 0x280 | 0x281)
    }

    /// Nothing for success, itself for all else.
    pub fn ok(self) -> Result<(), Self> {
        if self.is_ok() { Ok(()) } else { Err(self) }
    }

    /// The status of an error of a file.
    pub(crate) fn of_io(error: &io::Error, otherwise: Self) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => Self::CAPACITY.do_not_retry(),
            io::ErrorKind::ReadOnlyFilesystem => Self::WRITE_PROTECTED.do_not_retry(),
            io::ErrorKind::PermissionDenied => Self::ACCESS_DENIED.do_not_retry(),
            _ => otherwise,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#x})", self.name(), self.0)
    }
}

impl std::error::Error for Status {}
