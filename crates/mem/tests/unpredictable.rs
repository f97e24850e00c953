//! Keys cannot be predicted.

#[path = "../../wire/tests/common/uniform.rs"]
mod uniform;

use feroce_mem::{Access, Iova, MrLimits, MrTable, MwType, PdId, Region};

#[test]
fn ten_thousand_keys() {
    let region = Region::alloc(4096).expect("memory");
    for (seed, keep) in [(1, true), (2, false)] {
        let mut table = MrTable::new(seed, MrLimits::default());
        let mut keys = Vec::new();
        for n in 0..10_000 {
            // A program that deregisters gets as good keys as one that only registers.
            if n % 2 == 0 {
                let access = Access::REMOTE_READ;
                let reg = table.reg(PdId(1), region.clone(), 0, 4096, Iova::ZeroBased, access);
                let key = reg.expect("registered");
                keys.push(key.0);
                if !keep {
                    assert!(table.dereg(key).expect("deregistered").is_quiet());
                }
            } else {
                let key = table.alloc_mw(PdId(1), MwType::Two).expect("a window");
                keys.push(key.0);
                if !keep {
                    table.dealloc_mw(key).expect("destroyed");
                }
            }
        }
        uniform::assert_unpredictable("keys", &keys, 32);
        let indices: Vec<u32> = keys.iter().map(|key| key >> 8).collect();
        uniform::assert_unpredictable("indices of keys", &indices, 24);
    }
}
