//! A subnet under arbitrary files and arbitrary datagrams.

use feroce_subnet::{MadPacket, Net, Output, PortRef, Subnet};
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
