//! Connections on devices of the kernel's drivers: ids and channels of librdmacm, with the devices
//! that they use.

mod channel;
mod id;
mod manager;

pub(crate) use channel::KernelChannel;
pub(crate) use id::KernelId;
pub(crate) use manager::KernelManager;
