//! Receives frames.

use std::os::fd::AsRawFd;

use feroce_train::{Ecn, Framing, RxMeta, RxTrain};
use feroce_wire::{Bth, Ethernet, GRH_NEXT_HEADER, Gid, Grh, VlanTag};
use nix::errno::Errno;

use super::EtherLink;
use crate::icrc::ICRC_LEN;
use crate::sys::{FrameInfo, MAX_FRAMES};

impl EtherLink {
    /// Takes at most `budget` frames.
    pub(super) fn receive_frames(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> usize {
        let mut taken = 0;
        while taken < budget {
            let most = self.most.min(budget - taken);
            let got = match self.inbox.receive(self.socket.as_raw_fd(), most) {
                Ok(got) => got,
                Err(Errno::EAGAIN | Errno::EINTR) => break,
                Err(e) => {
                    // The interface went down; the kernel says so once.
                    self.counters.rx_errors += 1;
                    self.config.log.debug(format_args!("recvmmsg: {e}"));
                    break;
                }
            };
            for i in 0..got {
                let (frame, info) = self.inbox.frame(i);
                let Some((meta, packet)) = read(frame, info) else {
                    self.counters.rx_malformed += 1;
                    continue;
                };
                if !is_for(&self.addresses, &self.groups, meta.dst.gid) {
                    self.counters.rx_foreign += 1;
                    continue;
                }
                self.counters.rx_packets += 1;
                let stride = packet.len();
                sink(&RxTrain { meta, bytes: packet, stride, trailer: 0, remote: None });
            }
            taken += got;
            if got < most {
                self.most = (got + 1).min(MAX_FRAMES);
                break;
            }
            self.most = (2 * self.most).min(MAX_FRAMES);
        }
        taken
    }
}

fn is_for(addresses: &[Gid], groups: &[Gid], dst: Gid) -> bool {
    let all = if dst.is_multicast() { groups } else { addresses };
    all.contains(&dst)
}

/// What a frame says below the BTH, and the packet from there to its ICRC.
fn read(frame: &[u8], info: FrameInfo) -> Option<(RxMeta, &[u8])> {
    if info.is_cut {
        return None;
    }
    let (ethernet, rest) = Ethernet::parse(frame).ok()?;
    let (grh, rest) = Grh::parse(rest).ok()?;
    let packet = rest.get(..usize::from(grh.payload_len))?;
    let is_transport = grh.ip_version == 6 && grh.next_header == GRH_NEXT_HEADER;
    if !is_transport || packet.len() < Bth::LEN + ICRC_LEN {
        return None;
    }
    let tag = info.vlan_tci.map(VlanTag).or(ethernet.vlan);
    let meta = RxMeta {
        src: grh.sgid.into(),
        dst: grh.dgid.into(),
        udp_sport: 0,
        traffic_class: grh.traffic_class & !3,
        hop_limit: grh.hop_limit,
        ecn: Ecn::NotCapable,
        framing: Framing::RoceV1,
        sl: tag.map_or(0, |tag| tag.priority() as u8),
    };
    Some((meta, packet))
}

#[cfg(test)]
mod tests {
    use feroce_wire::ROCE_V1_ETHERTYPE;

    use super::*;

    fn frame(grh: Grh, vlan: Option<VlanTag>) -> Vec<u8> {
        let mut bytes = vec![0; Ethernet::MAX_LEN];
        let ethernet = Ethernet { dst: [2; 6], src: [4; 6], vlan, ethertype: ROCE_V1_ETHERTYPE };
        let len = ethernet.emit(&mut bytes).expect("room");
        bytes.truncate(len);
        let mut head = [0; Grh::LEN];
        grh.emit(&mut head);
        bytes.extend(head);
        bytes.extend([7; 16]);
        bytes
    }

    fn info(frame: &[u8]) -> FrameInfo {
        FrameInfo { len: frame.len(), is_cut: false, vlan_tci: None }
    }

    #[test]
    fn the_tag_is_found_where_it_is() {
        let grh = Grh::new(Gid([1; 16]), Gid([2; 16]), 16);
        let plain = frame(grh, None);
        let sl = |bytes: &[u8], info| read(bytes, info).expect("a packet").0.sl;
        assert_eq!(sl(&plain, info(&plain)), 0);
        let beside = FrameInfo { vlan_tci: Some(5 << 13 | 100), ..info(&plain) };
        assert_eq!(sl(&plain, beside), 5);
        let inside = frame(grh, Some(VlanTag(3 << 13 | 100)));
        assert_eq!(sl(&inside, info(&inside)), 3);
        let (meta, packet) = read(&inside, info(&inside)).expect("a packet");
        assert_eq!((meta.src.gid, meta.dst.gid), (Gid([1; 16]), Gid([2; 16])));
        assert_eq!(packet, [7; 16]);
    }

    #[test]
    fn what_is_no_packet_is_refused() {
        let good = Grh::new(Gid([1; 16]), Gid([2; 16]), 16);
        let refused = |grh: Grh| {
            let bytes = frame(grh, None);
            read(&bytes, info(&bytes)).is_none()
        };
        assert!(!refused(good));
        assert!(refused(Grh { payload_len: 17, ..good }), "longer than the frame");
        assert!(refused(Grh { payload_len: 15, ..good }), "no BTH and ICRC");
        assert!(refused(Grh { next_header: 17, ..good }));
        assert!(refused(Grh { ip_version: 4, ..good }));
        let bytes = frame(good, None);
        assert!(read(&bytes, FrameInfo { is_cut: true, ..info(&bytes) }).is_none());
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len], info(&bytes[..len])).is_none(), "{len} bytes");
        }
        let padded = [&bytes[..], &[0; 6]].concat();
        let (_, packet) = read(&padded, info(&padded)).expect("a packet behind which is padding");
        assert_eq!(packet.len(), 16);
    }
}
