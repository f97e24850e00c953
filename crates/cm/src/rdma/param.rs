//! Parameters of connections, and their place in messages.

use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;

use feroce_wire::cm::{IP_CM_LEN, IpCm};
use feroce_wire::{Qkey, Qpn};

use crate::params::Accept;

/// Default queue key of datagram services.
#[doc(alias = "RDMA_UDP_QKEY")]
pub const UDP_QKEY: Qkey = Qkey(0x0123_4567);

/// Bytes of private data that a consumer may put into a request for a connection.
pub const CONNECT_DATA: usize = 92 - IP_CM_LEN;

/// Bytes of private data that a consumer may put into a request for a datagram service.
pub const SIDR_DATA: usize = 216 - IP_CM_LEN;

/// Parameters of a connection, as either side gives them.
#[doc(alias = "rdma_conn_param")]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnParam {
    /// Private data for the consumer at the other end.
    pub private_data: Vec<u8>,
    /// READs and atomics that our queue pair can answer at the same time; 255 means as many as the
    /// device supports.
    pub responder_resources: u8,
    /// READs and atomics that our queue pair may have outstanding; 255 means as many as the device
    /// supports.
    pub initiator_depth: u8,
    /// Whether end-to-end credits are used.
    pub flow_control: bool,
    /// Retry count of both sides, for requests without an answer; ignored when accepting.
    pub retry_count: u8,
    /// RNR retry count of the peer.
    pub rnr_retry_count: u8,
    /// Whether the queue pair uses a shared receive queue; only for ids without queue pair.
    pub srq: bool,
    /// The queue pair; only for ids without one.
    pub qpn: Qpn,
}

impl Default for ConnParam {
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            responder_resources: 16,
            initiator_depth: 16,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            qpn: Qpn::default(),
        }
    }
}

/// More private data than the message has room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLong {
    /// Room that there is, in bytes.
    pub most: usize,
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {} bytes of private data fit here", self.most)
    }
}

impl core::error::Error for TooLong {}

/// `data` in a field of `N` bytes, the rest zero.
pub fn fill<const N: usize>(data: &[u8]) -> Result<[u8; N], TooLong> {
    let mut field = [0; N];
    field.get_mut(..data.len()).ok_or(TooLong { most: N })?.copy_from_slice(data);
    Ok(field)
}

/// Private data of a request for a connection: the addresses, then the consumer's.
pub fn connect_data(src: SocketAddr, dst: SocketAddr, data: &[u8]) -> Result<[u8; 92], TooLong> {
    with_header(src, dst, data)
}

/// Private data of a request for a datagram service: the addresses, then the consumer's.
pub fn sidr_data(src: SocketAddr, dst: SocketAddr, data: &[u8]) -> Result<[u8; 216], TooLong> {
    with_header(src, dst, data)
}

fn with_header<const N: usize>(
    src: SocketAddr,
    dst: SocketAddr,
    data: &[u8],
) -> Result<[u8; N], TooLong> {
    let mut header = [0; IP_CM_LEN];
    IpCm { version: 0, src_port: src.port(), src: src.ip(), dst: dst.ip() }.emit(&mut header);
    let mut field = [0; N];
    let (head, rest) = field.split_at_mut(IP_CM_LEN);
    head.copy_from_slice(&header);
    let room = rest.len();
    rest.get_mut(..data.len()).ok_or(TooLong { most: room })?.copy_from_slice(data);
    Ok(field)
}

/// The flow label that Linux derives from the two port numbers of a connection, so that connections
/// between the same ports take the same path.
pub const fn flow_label(src_port: u16, dst_port: u16) -> u32 {
    (src_port as u32 * 31 + dst_port as u32) & 0xf_ffff
}

/// The parameters of an answer, from those of the consumer.
pub fn accept(param: &ConnParam) -> Result<Accept, TooLong> {
    Ok(Accept {
        qpn: param.qpn,
        srq: param.srq,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control,
        rnr_retry: param.rnr_retry_count.min(7),
        private_data: fill(&param.private_data)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_labels_are_those_of_linux() {
        // From a capture of rping.
        assert_eq!(flow_label(0x9f64, 7174), 0x36922);
    }

    #[test]
    fn private_data_that_does_not_fit_is_refused() {
        let at: SocketAddr = ([10, 0, 0, 1], 7).into();
        assert!(connect_data(at, at, &[1; CONNECT_DATA]).is_ok());
        assert_eq!(connect_data(at, at, &[1; 57]), Err(TooLong { most: 56 }));
        assert_eq!(sidr_data(at, at, &[1; 181]), Err(TooLong { most: 180 }));
        assert_eq!(fill::<4>(&[1, 2]), Ok([1, 2, 0, 0]));
    }
}
