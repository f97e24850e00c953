//! The calls of `rdma/rsocket.h`: pointers to slices and addresses, errors to `errno`. The sockets
//! are those of `feroce_rsocket`.

pub(crate) mod calls;
pub(crate) mod iomap;
pub(crate) mod option;
pub(crate) mod poll;
pub(crate) mod program;
pub(crate) mod transfer;
