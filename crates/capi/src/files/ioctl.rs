//! The command that rdma-core gives to its devices.
//!
//! Programs that have the descriptor of a device, from `ibv_context.cmd_fd` or by opening a file
//! under `/dev/infiniband`, may give it commands of the kernel's. There is no driver behind it, but
//! the null device, so the command is answered here as a driver answers a method it does not have.

use core::ffi::{c_int, c_ulong, c_void};
use core::mem::{MaybeUninit, transmute};

use super::raw;
use crate::errno;
use crate::next::Next;

/// `RDMA_VERBS_IOCTL` of `rdma/rdma_user_ioctl.h`.
const RDMA_VERBS_IOCTL: c_ulong = 0xc018_1b01;

/// The longest command: a page.
const MAX: u16 = 4096;

/// `struct ib_uverbs_ioctl_hdr`, without the attributes behind it.
#[repr(C)]
struct Header {
    length: u16,
    object_id: u16,
    method_id: u16,
    num_attrs: u16,
    reserved1: u64,
    driver_id: u32,
    reserved2: u32,
}

/// The length of an attribute behind the header.
const ATTRIBUTE: usize = 16;

type Call = unsafe extern "C-unwind" fn(c_int, c_ulong, *mut c_void) -> c_int;

/// The next function of that name.
pub(super) static NEXT: Next = Next::new("ioctl\0");

/// The argument is optional, which makes no difference to where it is: in the same register.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if request == RDMA_VERBS_IOCTL && is_null_device(fd) {
        // SAFETY: the argument of this command points to a header, or is NULL.
        errno::set(unsafe { refusal(argument.cast()) });
        return -1;
    }
    // SAFETY: dlsym(3) found the function of the C library under this name, which has the type
    // `Call` to a caller with one argument behind the request.
    let next = NEXT.get().map_or(raw::ioctl as Call, |next| unsafe { transmute::<_, Call>(next) });
    // SAFETY: the arguments are those that the caller passed for this function.
    unsafe { next(fd, request, argument) }
}

/// Why the kernel would refuse a command.
///
/// # Safety
/// `header` is NULL or points to a header.
unsafe fn refusal(header: *const Header) -> c_int {
    if header.is_null() {
        return libc::EFAULT;
    }
    // SAFETY: by this function's contract, `header` points to a header.
    let Header { length, num_attrs, .. } = unsafe { header.read_unaligned() };
    let expected = size_of::<Header>() + usize::from(num_attrs) * ATTRIBUTE;
    if length > MAX || usize::from(length) != expected {
        return libc::EINVAL;
    }
    libc::EPROTONOSUPPORT
}

/// Whether a descriptor leads to the null device, which stands for devices.
fn is_null_device(fd: c_int) -> bool {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fstat(2) writes one `stat`, to which the pointer leads, and refuses a descriptor that
    // is not open.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: fstat(2) succeeded, so it has filled in the structure.
    let stat = unsafe { stat.assume_init() };
    stat.st_mode & libc::S_IFMT == libc::S_IFCHR && stat.st_rdev == libc::makedev(1, 3)
}
