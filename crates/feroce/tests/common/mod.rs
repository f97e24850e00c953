//! Two devices on the loopback interface; or twice the one that `FEROCE_TEST_DEVICE` names, for
//! another backend.
#![allow(dead_code, unreachable_pub, reason = "every test binary uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use feroce::{Access, Context, Cq, Cqe, Device, Mr, Pd, Qp, QpCap};

pub const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND)
    .union(Access::FLUSH_GLOBAL);

/// One host: an open device with the usual objects.
pub struct Host {
    pub context: Context,
    pub pd: Pd,
    pub cq: Cq,
    pub mr: Mr,
}

/// Whether the test runs on another backend, on a device that is not a software adapter.
pub fn is_foreign() -> bool {
    std::env::var_os("FEROCE_TEST_DEVICE").is_some()
}

/// Everything that memory of the device under test can be used for: drivers refuse rights that they
/// do not know.
pub fn every_access() -> Access {
    if is_foreign() { ALL - Access::FLUSH_GLOBAL } else { ALL }
}

pub const LEN: usize = 1 << 20;

impl Host {
    /// A host at `127.net.0.number`; tests that run at the same time use different nets.
    pub fn new(net: u8, number: u8) -> Self {
        let device = match std::env::var("FEROCE_TEST_DEVICE") {
            Ok(name) => Device::named(&name).unwrap(),
            Err(_) => Device::at([std::net::Ipv4Addr::new(127, net, 0, number).into()]),
        };
        let context = device.open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(4096).unwrap();
        let mr = pd.alloc_mr(LEN, every_access()).unwrap();
        Self { context, pd, cq, mr }
    }

    pub fn pair(net: u8) -> (Self, Self) {
        (Self::new(net, 1), Self::new(net, 2))
    }

    pub fn rc(&self) -> Qp {
        self.pd.rc_qp(&self.cq, &self.cq, QpCap::new(128, 128)).create().unwrap()
    }

    pub fn fill(&self, offset: usize, len: usize, seed: u8) -> Vec<u8> {
        let bytes: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(7) ^ seed).collect();
        self.mr.write_at(offset, &bytes).unwrap();
        bytes
    }

    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.read_at(offset, &mut bytes).unwrap();
        bytes
    }

    pub fn wait(&self) -> Cqe {
        self.cq.wait().unwrap()
    }
}

pub fn connect(a: &mut Qp, b: &mut Qp) {
    let (ea, eb) = (a.endpoint().unwrap(), b.endpoint().unwrap());
    a.connect(&eb).unwrap();
    b.connect(&ea).unwrap();
}

/// Packets dropped for a reason that neither delay nor loss explains. On a busy machine a peer may
/// answer late; then a retransmitted packet arrives twice, perhaps after its queue pair is
/// destroyed.
pub fn unexplained_drops(context: &Context) -> Vec<(&'static str, u64)> {
    let explained = [
        "drop_ghost_response",
        "drop_response_gap",
        "drop_stale_duplicate",
        "drop_after_gap",
        "drop_bad_sequence",
        "drop_unknown_qp",
    ];
    let drops = context.drops();
    drops.iter().filter(|(name, n)| *n > 0 && !explained.contains(name)).collect()
}
