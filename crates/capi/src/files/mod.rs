//! The files of the kernel's RDMA drivers, for programs that look for them.
//!
//! Without those drivers there is no `/sys/class/infiniband` and no `/dev/infiniband`, and
//! programs that want to see a device there before they use it do without RDMA. So the files are
//! made ([`contents`]) in a directory of the user's ([`directory`]), and calls of the C library
//! that name a path under one of those two are led there ([`interposed`]). This library is in
//! front of the C library when it is preloaded, and so are children of the program, since they
//! inherit the environment.
//!
//! A call with any other path pays for a comparison of its first bytes, and for nothing else.

mod adapter;
mod contents;
mod counters;
mod directory;
mod interposed;
mod ioctl;
mod path;
mod raw;

pub(crate) use directory::leave;

/// Where a file of the kernel's really is: programs that are given this path find it even where
/// their calls do not come by here. The path itself, if there is no such file.
pub(crate) fn real(path: &str) -> String {
    let real = directory::root().map(|root| root.join(path.trim_start_matches('/')));
    let real =
        real.filter(|real| real.exists()).and_then(|real| real.into_os_string().into_string().ok());
    real.unwrap_or_else(|| path.to_owned())
}
