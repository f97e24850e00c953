//! What the tests of this crate share.
#![allow(dead_code, unused_imports, reason = "every test binary uses a part of it")]

#[path = "../../../link/tests/common/trains.rs"]
mod trains;

use std::path::Path as FilePath;
use std::sync::Arc;

use feroce_link::{Carrier, Control, IcrcPolicy, UdpConfig, UdpLink};
use feroce_local::{HostLink, Registry};
use feroce_mem::{DirectWrite, Source};
use feroce_wire::Gid;

pub(crate) use trains::*;

/// A carrier to other hosts that receives where a [`HostLink`] tells it to.
pub(crate) fn wire() -> UdpLink {
    UdpLink::new(UdpConfig { listen: false, ..UdpConfig::default() }, &[]).expect("a link")
}

/// A WRITE of the first bytes of a source.
pub(crate) fn of(va: u64, len: usize, source: &dyn Source, is_awaited: bool) -> DirectWrite<'_> {
    DirectWrite { va, len, source, is_awaited }
}

/// A process of the registry at `root`, and its link with one address. `fetches`: no layer above
/// the link needs to see packets.
pub(crate) fn registry(
    root: &FilePath,
    address: Gid,
    fetches: bool,
) -> (Arc<Registry>, HostLink<UdpLink>) {
    std::fs::create_dir_all(root).expect("a directory");
    let registry = Arc::new(Registry::join(root, 3).expect("a registry"));
    let icrc = Some(IcrcPolicy::Strict);
    let link = HostLink::new(wire(), Arc::clone(&registry), icrc).expect("a link");
    let mut link = if fetches { link.fetching() } else { link };
    link.control(Control::Addresses(&[address])).expect("an address");
    (registry, link)
}
