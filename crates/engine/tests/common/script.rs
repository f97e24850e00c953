//! Short words for scripts: what packets carry, and answers of the peer.

use feroce_engine::{
    Config, Event, LossPolicy, QpAttr, QpInitAttr, QpState, QpType, RecvWr, SendWr, WcStatus,
};
use feroce_train::Instant;
use feroce_wire::{
    Aeth, AtomicAckEth, AtomicEth, CreditCode, Exts, Gid, Msn, NakCode, Op, Pmtu, Psn, Reth, Rkey,
    RnrTimer, Service, Syndrome,
};

use super::{Host, OUR_PSN, PEER_PSN, PEER_QPN, Packet, Scripted, bring_up, header};

/// Path MTU of scripted queue pairs.
pub const MTU: usize = 1024;
/// An acknowledgement without a word about credits.
pub const ACK: Syndrome = Syndrome::Ack { credits: CreditCode::NONE };

pub fn nak(code: NakCode) -> Syndrome {
    Syndrome::Nak(code)
}

pub fn rnr(timer: u8) -> Syndrome {
    Syndrome::RnrNak { timer: RnrTimer::new(timer) }
}

impl Packet {
    /// Extension headers.
    pub fn exts(&self) -> Exts {
        self.parts().0
    }

    /// What follows the headers, without padding.
    pub fn payload(&self) -> &[u8] {
        self.parts().1
    }

    fn parts(&self) -> (Exts, &[u8]) {
        let (service, op) = self.bth().opcode.decode().unwrap();
        Exts::parse(service, op, self.rest()).unwrap()
    }

    pub fn syndrome(&self) -> Syndrome {
        self.exts().aeth.unwrap().syndrome
    }

    pub fn msn(&self) -> u32 {
        self.exts().aeth.unwrap().msn.get()
    }
}

/// Operations and PSNs of packets.
pub fn seen(packets: &[Packet]) -> Vec<(Op, u32)> {
    packets.iter().map(|p| (p.op(), p.psn())).collect()
}

/// PSNs of packets.
pub fn psns(packets: &[Packet]) -> Vec<u32> {
    packets.iter().map(Packet::psn).collect()
}

/// What acknowledgements say: PSN, syndrome, MSN.
pub fn said(packets: &[Packet]) -> Vec<(u32, Syndrome, u32)> {
    packets.iter().map(|p| (p.psn(), p.syndrome(), p.msn())).collect()
}

/// A RETH as bytes.
pub fn reth(va: u64, rkey: Rkey, len: u32) -> Vec<u8> {
    header(|out| Reth { va, rkey, len }.emit(out))
}

/// An AtomicETH as bytes.
pub fn atomic(va: u64, rkey: Rkey, swap_add: u64, compare: u64) -> Vec<u8> {
    header(|out| AtomicEth { va, rkey, swap_add, compare }.emit(out))
}

/// An AETH as bytes.
pub fn aeth(syndrome: Syndrome, msn: u32) -> Vec<u8> {
    header(|out| Aeth { syndrome, msn: Msn::new(msn) }.emit(out))
}

/// Headers followed by payload.
pub fn with(mut head: Vec<u8>, payload: &[u8]) -> Vec<u8> {
    head.extend_from_slice(payload);
    head
}

impl Scripted {
    /// A reliable connection that does not advertise credits, so that what acknowledgements say
    /// does not depend on how many receives are posted.
    pub fn rc() -> Self {
        Self::rc_with(QpAttr::default())
    }

    /// The same with attributes.
    pub fn rc_with(with: QpAttr) -> Self {
        Self::with_config(QpType::Rc, with, no_credits())
    }

    /// A scripted queue pair made as `init` says, whose requests start with `first`.
    pub fn made(
        config: Config,
        with: QpAttr,
        first: u32,
        init: impl FnOnce(&mut Host) -> QpInitAttr,
    ) -> Self {
        let mut host = Host::with_config(1, config);
        let init = init(&mut host);
        let mut qp = host.create_qp(init);
        qp.first_psn = Psn::new(first);
        let now = Instant::from_nanos(1_000_000);
        let peer = Gid::from_ipv4([10, 0, 0, 99]);
        bring_up(&mut host, now, &qp, (peer, PEER_QPN, Psn::new(PEER_PSN)), Pmtu::B1024, &with);
        let service = match init.qp_type {
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            QpType::Ud => Service::Ud,
            QpType::XrcIni | QpType::XrcTgt => Service::Xrc,
        };
        Self { now, host, qp, peer, service }
    }

    /// A reliable connection to which a lost packet is fatal.
    pub fn lossless() -> Self {
        Self::made(no_credits(), QpAttr::default(), OUR_PSN, |host| QpInitAttr {
            loss: LossPolicy::Fatal,
            ..host.init_attr(QpType::Rc)
        })
    }

    /// The peer says `syndrome` about `psn`.
    pub fn answer(&mut self, psn: u32, syndrome: Syndrome) -> Vec<Packet> {
        self.send(Op::Acknowledge, psn, false, &aeth(syndrome, 0))
    }

    /// The peer answers a read.
    pub fn respond(&mut self, op: Op, psn: u32, data: &[u8]) -> Vec<Packet> {
        let head = if op == Op::ReadResponseMiddle { Vec::new() } else { aeth(ACK, 0) };
        self.send(op, psn, false, &with(head, data))
    }

    /// The peer answers an atomic.
    pub fn respond_atomic(&mut self, psn: u32, original: u64) -> Vec<Packet> {
        let eth = header(|out| AtomicAckEth { original }.emit(out));
        self.send(Op::AtomicAcknowledge, psn, false, &with(aeth(ACK, 0), &eth))
    }

    /// Posts a receive.
    pub fn recv(&mut self, wr_id: u64, addr: u64, len: u32) {
        let wr: RecvWr = self.host.recv(wr_id, addr, len);
        self.qp.rq.as_mut().unwrap().post(wr).unwrap();
    }

    /// Posts several requests and returns what the engine sends.
    pub fn post_all(&mut self, wrs: impl IntoIterator<Item = SendWr>) -> Vec<Packet> {
        for wr in wrs {
            self.qp.sq.post(wr).unwrap();
        }
        self.host.transmit(self.now)
    }

    /// Who completed, and how.
    pub fn done(&mut self) -> Vec<(u64, WcStatus)> {
        self.host.poll_all().iter().map(|c| (c.wr_id, c.status)).collect()
    }

    pub fn state(&self) -> QpState {
        self.qp.sq.state()
    }

    /// The key of all memory.
    pub fn rkey(&self) -> Rkey {
        Rkey(self.host.lkey.0)
    }

    /// Events so far, completion wake-ups left out.
    pub fn events(&mut self) -> Vec<feroce_engine::AsyncEvent> {
        self.host.async_events()
    }
}

pub fn no_credits() -> Config {
    Config { advertise_credits: false, ..Config::default() }
}

/// Whether a completion queue asked to wake its consumer.
pub fn is_wake(event: &Event) -> bool {
    matches!(event, Event::Completion(_))
}
