//! A packet with a wrong ICRC, to show that the probe for such packets finds one.

use std::net::{Ipv4Addr, UdpSocket};
use std::thread::park_timeout;

use super::lab::{Lab, Side};
use super::{PAUSE, cells::Network, failed, is_past};
use crate::{Failure, Outcome};

/// The UDP port of RoCEv2.
const ROCE: u16 = 4791;

/// How long the driver may take to notice.
const LIMIT: core::time::Duration = core::time::Duration::from_secs(30);

/// A datagram for queue pair 1 that is right in everything but the last four bytes.
fn datagram() -> Vec<u8> {
    let bth = [0x64, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 1];
    let deth = [0x80, 0x01, 0, 0, 0, 0, 0, 1];
    [&bth[..], &deth, &[0; 256], &[0xde, 0xad, 0xbe, 0xef]].concat()
}

/// Fails unless the driver refuses such a packet and the agent sees it.
pub(super) fn is_noticed(lab: &Lab) -> Outcome {
    let wrong = || -> Outcome<u64> {
        let counters = lab.counters()?;
        Ok(counters.iter().find(|(name, _)| name == "icrc_wrong").map_or(0, |(_, value)| *value))
    };
    let before = wrong()?;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(|e| failed("bind", e))?;
    let guest = (Side::Kernel.address(Network::V4), ROCE);
    socket.send_to(&datagram(), guest).map_err(|e| failed("the cable", e))?;
    let limit = super::deadline(LIMIT);
    while wrong()? != before + 1 {
        if is_past(limit) {
            return Err(Failure::Failed("a wrong ICRC is not noticed in the guest".into()));
        }
        park_timeout(PAUSE);
    }
    Ok(())
}
