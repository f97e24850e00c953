//! Numbers of devices that were opened in the same way: the kernel gives each its own seed.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::collections::BTreeSet;

use feroce::{Access, Device, QpCap};

/// Checks that the numbers, and the steps from one to the next, are all different. Two of 24 random
/// bits may be equal by chance.
pub(crate) fn assert_differ(what: &str, numbers: &[u32]) {
    let steps = numbers.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    for different in [numbers.iter().copied().collect(), steps] {
        let different: BTreeSet<u32> = different;
        assert!(different.len() + 2 >= numbers.len(), "{what}: {numbers:x?}");
    }
}

#[test]
fn the_first_numbers_of_devices_differ() {
    let (mut qpns, mut prefixes, mut psns, mut keys) = (vec![], vec![], vec![], vec![]);
    for _ in 0..40 {
        let context = Device::at(["127.185.2.1".parse().unwrap()]).open().unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4).unwrap());
        let qp = pd.rc_qp(&cq, &cq, QpCap::new(4, 4)).create().unwrap();
        let end = qp.endpoint().unwrap();
        let mr = pd.alloc_mr(64, Access::REMOTE_READ).unwrap();
        qpns.push(end.qpn.get());
        prefixes.push(end.qpn.get() >> 16);
        psns.push(end.psn.get());
        keys.push(mr.rkey().0);
    }
    assert_differ("queue pair numbers", &qpns);
    assert_differ("PSNs", &psns);
    assert_differ("keys", &keys);
    // The upper bits say which process it is, and are drawn as well: 40 of 255 values.
    prefixes.sort_unstable();
    prefixes.dedup();
    assert!(prefixes.len() > 20, "{prefixes:x?}");
}
