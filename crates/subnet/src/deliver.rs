//! What a node does with packets that are for it: its agents answer, or its programs get them.

use feroce_train::Instant;
use feroce_wire::Qpn;
use feroce_wire::mad::{
    Attribute, BadKey, Class, DirectedRoute, MAD_LEN, MadHeader, Method, PmMad, Smp, Status,
    TrapNumber,
};

use crate::notify::KIND_SECURITY;
use crate::packet::{MadPacket, PortRef};
use crate::subnet::{Output, Subnet};
use crate::{pma, sma};

impl Subnet {
    /// A packet is for the node at one of whose ports it is.
    pub(crate) fn deliver(&mut self, now: Instant, at: PortRef, packet: MadPacket, hops: u32) {
        let Ok((header, _)) = MadHeader::parse(&packet.mad) else {
            return;
        };
        if packet.dst_qpn == Qpn::QP0 {
            return self.deliver_smp(now, at, packet, header, hops);
        }
        if !self.check_pkey(now, at, &packet) {
            return;
        }
        if header.class == Class::PERFORMANCE.0
            && !Method(header.method).is_response()
            && let Ok((request, _)) = PmMad::parse(&packet.mad)
            && let Some(response) = pma::handle(&mut self.nodes[at.node], &request)
        {
            return self.answer(now, at, &packet, response.to_bytes(), hops);
        }
        self.hand_up(now, at, packet, hops);
    }

    fn deliver_smp(
        &mut self,
        now: Instant,
        at: PortRef,
        packet: MadPacket,
        header: MadHeader,
        hops: u32,
    ) {
        let (method, attribute) = (Method(header.method), Attribute(header.attribute));
        let is_for_agent = Class(header.class).is_subnet()
            && attribute != Attribute::SM_INFO
            && (method == Method::TRAP_REPRESS
                || !(method.is_response() || method == Method::TRAP));
        let Ok((smp, _)) = Smp::parse(&packet.mad) else {
            return;
        };
        if !is_for_agent {
            return self.hand_up(now, at, packet, hops);
        }
        let effects = &mut self.effects;
        let response =
            sma::handle(&mut self.nodes[at.node], now, packet.slid, at.port, &smp, &mut |effect| {
                effects.push_back((at, effect))
            });
        self.touched.push(at.node);
        if let Some(response) = response {
            self.answer(now, at, &packet, response.to_bytes(), hops);
        }
    }

    /// Gives a packet to the programs behind a port. A switch has none.
    fn hand_up(&mut self, now: Instant, at: PortRef, packet: MadPacket, hops: u32) {
        match self.nodes[at.node].switch {
            None => self.outputs.push_back(Output::Received(at, packet)),
            Some(_) => self.answer_unsupported(now, at, &packet, hops),
        }
    }

    /// Answers a request whose attribute no agent knows.
    pub(crate) fn answer_unsupported(
        &mut self,
        now: Instant,
        at: PortRef,
        packet: &MadPacket,
        hops: u32,
    ) {
        let Ok((header, _)) = MadHeader::parse(&packet.mad) else {
            return;
        };
        if matches!(Method(header.method), Method::GET | Method::SET) {
            let mut mad = packet.mad;
            if let Some(out) = mad.first_chunk_mut() {
                header.response(Status::BAD_ATTRIBUTE).emit(out);
            }
            self.answer(now, at, packet, mad, hops);
        }
    }

    /// Sends the answer to a packet back.
    fn answer(
        &mut self,
        now: Instant,
        at: PortRef,
        request: &MadPacket,
        mad: [u8; MAD_LEN],
        hops: u32,
    ) {
        let mut reply = request.reply(mad);
        if let Ok((mut smp, _)) = Smp::parse(&mad)
            && let Some(route) = smp.directed_route()
            && request.dst_qpn == Qpn::QP0
        {
            smp.set_directed_route(DirectedRoute { is_returning: true, ..route });
            reply.mad = smp.to_bytes();
        }
        self.originate(now, at, reply, hops);
    }

    /// Checks the partition of a packet for queue pair 1 (IBTA vol1 10.9.1).
    fn check_pkey(&mut self, now: Instant, at: PortRef, packet: &MadPacket) -> bool {
        let node = &mut self.nodes[at.node];
        let end_port = node.end_port(at.port);
        let Some(port) = node.port_mut(end_port) else {
            return false;
        };
        if port.admits(packet.pkey) {
            return true;
        }
        port.info.p_key_violations = port.info.p_key_violations.saturating_add(1);
        let details = BadKey {
            slid: packet.slid,
            dlid: packet.dlid,
            key: packet.pkey.0.into(),
            sl: packet.sl,
            src_qpn: packet.src_qpn,
            dst_qpn: packet.dst_qpn,
            sgid: packet.gids.map_or_else(Default::default, |(sgid, _)| sgid),
            dgid: packet.gids.map_or_else(Default::default, |(_, dgid)| dgid),
        };
        node.notify(now, end_port, KIND_SECURITY, TrapNumber::BAD_P_KEY, details.to_bytes());
        self.touched.push(at.node);
        false
    }
}
