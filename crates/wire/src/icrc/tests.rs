use alloc::vec::Vec;

use super::*;

/// The first packet of the capture `ib_atomic_cas`, from its IPv4 header on: a compare-and-swap.
const CMP_SWAP: [u8; 72] = [
    0x45, 0x00, 0x00, 0x48, 0xe9, 0x0d, 0x40, 0x00, 0x40, 0x11, 0x3c, 0xfb, 0x0a, 0x4d, 0x00, 0x01,
    0x0a, 0x4d, 0x00, 0x02, 0xc8, 0x3d, 0x12, 0xb7, 0x00, 0x34, 0x00, 0x00, 0x13, 0x00, 0xff, 0xff,
    0x00, 0x00, 0x00, 0x86, 0x80, 0x8e, 0x50, 0xbc, 0x00, 0x00, 0x55, 0xc6, 0x64, 0x76, 0xa0, 0x00,
    0x00, 0x00, 0x95, 0x73, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x7d, 0x7e, 0x66, 0xa9,
];

/// CRC-32, one bit at a time.
fn slow_crc(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    !crc
}

fn split(packet: &[u8; 72]) -> ([u8; 20], [u8; 8], &[u8], u32) {
    let (ip, rest) = packet.split_first_chunk().expect("IPv4");
    let (udp, rest) = rest.split_first_chunk().expect("UDP");
    let (transport, icrc) = rest.split_last_chunk().expect("ICRC");
    (*ip, *udp, transport, u32::from_le_bytes(*icrc))
}

#[test]
fn the_constants_are_right() {
    assert_eq!(slow_crc(b"123456789"), 0xcbf4_3926);
    assert_eq!(slow_crc(&[0xff; 8]), NO_LRH);
}

#[test]
fn a_packet_of_linux_verifies() {
    let (ip, udp, transport, icrc) = split(&CMP_SWAP);
    assert_eq!(ipv4(&ip, &udp, transport), icrc);
    let prefix = IcrcPrefix::ipv4(&ip, &udp);
    assert_eq!(prefix.seal(transport), icrc.to_le_bytes());
    assert!(prefix.verify(transport, icrc.to_le_bytes()));
    assert!(!prefix.verify(&transport[1..], icrc.to_le_bytes()));
}

#[test]
fn pieces_give_the_same_as_the_whole() {
    let (ip, udp, transport, icrc) = split(&CMP_SWAP);
    let prefix = IcrcPrefix::ipv4(&ip, &udp);
    for cut in 12..=transport.len() {
        let (head, tail) = transport.split_at(cut);
        let mut digest = prefix.begin(head);
        for byte in tail.chunks(5) {
            digest.update(byte);
        }
        assert_eq!(digest.seal(), icrc.to_le_bytes(), "cut at {cut}");
    }
}

/// Exactly the bits that change on the way may change.
#[test]
fn masked_bits_are_those_of_the_annex() {
    let (ip, udp, transport, icrc) = split(&CMP_SWAP);
    let free = |bit: usize| {
        let (byte, ip_end, udp_end) = (bit / 8, 20, 28);
        [1, 8, 10, 11, ip_end + 6, ip_end + 7, udp_end + 4].contains(&byte)
    };
    for bit in 0..(20 + 8 + transport.len()) * 8 {
        let mut packet = CMP_SWAP;
        packet[bit / 8] ^= 0x80 >> (bit % 8);
        let (ip, udp, transport, _) = split(&packet);
        assert_eq!(ipv4(&ip, &udp, transport) == icrc, free(bit), "bit {bit}");
    }
    assert_eq!(ipv4(&ip, &udp, transport), icrc);
}

#[test]
fn ipv6_and_grh_mask_class_flow_and_hops() {
    let mut header = [0x60; 40];
    for (byte, i) in header.iter_mut().zip(0..).skip(1) {
        *byte = i;
    }
    let udp = [0xc0, 1, 0x12, 0xb7, 0, 24, 0x12, 0x34];
    let transport = [0x04, 0, 0xff, 0xff, 0xa5, 0, 0, 1, 0, 0, 0, 2, 9, 9, 9, 9];
    let mut expected = Vec::from([0xff; 8]);
    expected.extend([0x6f, 0xff, 0xff, 0xff, 4, 5, 6, 0xff]);
    expected.extend(8..40);
    let mut v1 = expected.clone();
    expected.extend([0xc0, 1, 0x12, 0xb7, 0, 24, 0xff, 0xff]);
    for bytes in [&mut expected, &mut v1] {
        bytes.extend([0x04, 0, 0xff, 0xff, 0xff, 0, 0, 1, 0, 0, 0, 2, 9, 9, 9, 9]);
    }
    assert_eq!(ipv6(&header, &udp, &transport), slow_crc(&expected));
    assert_eq!(roce_v1(&header, &transport), slow_crc(&v1));
}

#[test]
fn a_local_packet_masks_its_virtual_lane() {
    let lrh = [0x52, 0x32, 0, 7, 0, 9, 0, 8];
    let transport = [0x64, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 2];
    let mut expected = Vec::from([0xf2, 0x32, 0, 7, 0, 9, 0, 8]);
    expected.extend([0x64, 0, 0xff, 0xff, 0xff, 0, 0, 1, 0, 0, 0, 2]);
    assert_eq!(ib_local(&lrh, &transport), slow_crc(&expected));
}

#[test]
fn the_identification_can_be_replaced_and_found() {
    let (ip, udp, transport, _) = split(&CMP_SWAP);
    let prefix = IcrcPrefix::ipv4(&ip, &udp);
    for options in [0, 4, 40] {
        let mut header = Vec::from(ip);
        header.extend(core::iter::repeat_n(1, options));
        let base = IcrcPrefix::ipv4(&header, &udp);
        for id in (0..=u16::MAX).step_by(251) {
            header[4..6].copy_from_slice(&id.to_be_bytes());
            let direct = IcrcPrefix::ipv4(&header, &udp);
            assert_eq!(base.with_ipv4_id(id), direct);
            let icrc = direct.icrc(transport);
            assert_eq!(base.find_ipv4_id(transport, icrc), Some(id));
            assert_eq!(base.find_ipv4_id(transport, icrc ^ 1), None);
        }
    }
    let v6 = IcrcPrefix::ipv6(&[0x60; 40], &udp);
    assert_eq!(v6.with_ipv4_id(7), v6);
    assert_eq!(v6.find_ipv4_id(transport, v6.icrc(transport)), None);
    assert_eq!(prefix.find_ipv4_id(&[0; 70_000], 0), None);
}

#[test]
fn odd_lengths_are_harmless() {
    let udp = [0; 8];
    for len in [0, 1, 19, 61, 300] {
        let prefix = IcrcPrefix::ipv4(&[0x45; 300][..len], &udp);
        for transport in [0, 1, 4, 5, 11, 12] {
            let _ = prefix.seal(&[0; 12][..transport]);
            let _ = prefix.with_ipv4_id(9).find_ipv4_id(&[0; 12][..transport], 1);
        }
    }
}
