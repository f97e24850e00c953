//! Packets by hand: headers as bytes, and what packets carry.

use feroce_engine::{Config, Event};
use feroce_wire::{
    Aeth, AtomicEth, CreditCode, Exts, Msn, NakCode, Op, Reth, Rkey, RnrTimer, Syndrome,
};

use crate::{Packet, header};

/// Path MTU of scripted queue pairs.
pub const MTU: usize = 1024;
/// An acknowledgement that advertises no credits.
pub const ACK: Syndrome = Syndrome::Ack { credits: CreditCode::NONE };

/// A NAK.
pub fn nak(code: NakCode) -> Syndrome {
    Syndrome::Nak(code)
}

/// An RNR NAK with this timer code.
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

    /// Syndrome of the AETH.
    pub fn syndrome(&self) -> Syndrome {
        self.exts().aeth.unwrap().syndrome
    }

    /// MSN of the AETH.
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

/// PSN, syndrome and MSN of acknowledgements.
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

/// An engine that does not advertise credits.
pub fn no_credits() -> Config {
    Config { advertise_credits: false, ..Config::default() }
}

/// Whether a completion queue asked to wake its consumer.
pub fn is_wake(event: &Event) -> bool {
    matches!(event, Event::Completion(_))
}
