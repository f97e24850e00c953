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

mod contents;
mod directory;
mod interposed;
mod next;
mod path;
mod raw;
