//! A subnet under arbitrary files and arbitrary datagrams.

use feroce_subnet::{
    DataRun, MadPacket, Net, Output, PortRef, Subnet, Traffic, TrunkMessage, take_frame,
};
use feroce_train::Instant;
use feroce_wire::mad::MAD_LEN;
use feroce_wire::{Lid, Pkey, Qkey, Qpn};

use crate::input::Input;

const FT4: &str = include_str!("../../crates/subnet/tests/nets/ft4.net");

/// The most outputs that one action may have: each port hears of it a few times.
const MAX_OUTPUTS: usize = 256;

/// A topology file: read or refused, and a subnet if it was read.
pub fn subnet_net(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match Net::parse(&text) {
        Ok(net) => {
            let subnet = Subnet::new(&net);
            assert_eq!(subnet.nodes().len(), net.nodes.len());
        }
        Err(error) => assert!(error.line >= 1 && error.line <= text.lines().count().max(1)),
    }
}

/// Datagrams of any content from the port of a host, links that go down and time that passes.
pub fn subnet_agents(bytes: &[u8]) {
    let net = Net::parse(FT4).expect("a topology");
    let mut subnet = Subnet::new(&net);
    let host = PortRef { node: net.find("Host1").expect("a host"), port: 1 };
    let mut now = Instant::from_nanos(1);
    let mut input = Input::new(bytes);
    while !input.is_empty() {
        match input.u8() % 4 {
            kind @ (0 | 1) => {
                let qpn = if kind == 0 { Qpn::QP0 } else { Qpn::QP1 };
                let dlid = Lid(input.u16());
                let mut mad = [0; MAD_LEN];
                mad.fill_with(|| input.u8());
                let packet = MadPacket {
                    slid: subnet.port(host).expect("a port").info().lid,
                    dlid,
                    sl: 0,
                    pkey: Pkey::DEFAULT,
                    src_qpn: qpn,
                    dst_qpn: qpn,
                    qkey: Qkey(0),
                    gids: None,
                    mad,
                };
                subnet.send(now, host, packet);
            }
            2 => {
                let which = input.u8();
                let [at, _] = net.links[usize::from(which >> 1) % net.links.len()].ends;
                subnet.set_link(now, at, which & 1 == 1);
            }
            _ => {
                now = now.plus_nanos(u64::from(input.u8()) << 24);
                subnet.handle_timeout(now);
                assert!(subnet.poll_timeout().is_none_or(|at| at > now), "a deadline passed");
            }
        }
        let mut outputs = 0;
        while let Some(output) = subnet.poll_output() {
            outputs += 1;
            assert!(outputs <= MAX_OUTPUTS, "one action never ends");
            if let Output::Received(at, packet) = output {
                subnet.refuse(now, at, &packet);
            }
        }
    }
}

/// A fabric in two parts.
const PARTS: &str = "part=a\nSwitch 4 \"A\"\n[1] \"HostA\"[1]\n[2] \"B\"[2]\nHca 1 \"HostA\"\n\
                     part=b\nSwitch 4 \"B\"\n[1] \"HostB\"[1]\nHca 1 \"HostB\"\n";

/// What another part of a fabric says: each message is written again as it was, and none of them
/// harms the part that hears it.
pub fn subnet_trunk(bytes: &[u8]) {
    let net = Net::parse(PARTS).expect("a topology");
    let now = Instant::from_nanos(1);
    let mut subnet = Subnet::of_part(&net, 0);
    let mut traffic: Traffic<()> = Traffic::new(&subnet, 0);
    let mut rest = bytes;
    while let Ok(Some((frame, len))) = take_frame(rest) {
        if let Some(message) = TrunkMessage::parse(frame) {
            let mut again = Vec::new();
            message.emit(&mut again);
            assert_eq!(rest.get(..len), Some(&again[..]));
            hear(now, &mut subnet, &mut traffic, message);
        }
        rest = &rest[len..];
        while subnet.poll_output().is_some() {}
        while traffic.poll_event(&subnet).is_some() {}
    }
}

fn hear(
    now: Instant,
    subnet: &mut Subnet,
    traffic: &mut Traffic<()>,
    message: TrunkMessage<'_>,
) -> bool {
    match message {
        TrunkMessage::Signal(at, signal) => subnet.handle_signal(now, at, signal),
        TrunkMessage::Datagram(at, hops, packet) => {
            subnet.handle_packet(now, at, packet, hops.into())
        }
        TrunkMessage::Packets(landing, meta, stride, bytes) => {
            let run = DataRun {
                slid: meta.src.lid,
                dlid: meta.dst.lid,
                sl: meta.sl,
                pkey: Pkey::DEFAULT,
                packets: bytes.len().div_ceil(stride.into()) as u32,
                words: bytes.len() as u64 / 4,
                longest: bytes.len().min(stride.into()),
            };
            traffic.arrive(now, subnet, landing, &run, ())
        }
        TrunkMessage::Credit(at, lane, credit) => traffic.hear(now, subnet, (at, lane), credit),
        _ => true,
    }
}
