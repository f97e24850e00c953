//! What carries messages between a program and the process of a fabric.

use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd};

use feroce_train::Instant;

use super::{PortSocket, Received, Sent};

/// A program's end of a channel to the process of a fabric. Nothing here blocks.
pub trait PortChannel: fmt::Debug + Send {
    /// Sends a message.
    fn send(&mut self, message: &[u8]) -> Sent;

    /// Receives a message into `buffer`, which has [`MAX_MESSAGE`](super::MAX_MESSAGE) bytes.
    fn receive(&mut self, now: Instant, buffer: &mut [u8]) -> Received;

    /// Prepares for a sleep: [`wait_fd`](PortChannel::wait_fd) becomes readable when there is a
    /// message. Returns false if there is one already.
    fn arm(&mut self) -> bool;

    /// The descriptor to sleep on.
    fn wait_fd(&self) -> BorrowedFd<'_>;
}

impl PortChannel for PortSocket {
    fn send(&mut self, message: &[u8]) -> Sent {
        Self::send(self, message)
    }

    fn receive(&mut self, _: Instant, buffer: &mut [u8]) -> Received {
        Self::receive(self, buffer)
    }

    fn arm(&mut self) -> bool {
        true
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}
