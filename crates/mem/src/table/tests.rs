use feroce_wire::{Qpn, Rkey};

use super::*;
use crate::{AccessError, Read, Write};

const PD: PdId = PdId(1);
const OTHER_PD: PdId = PdId(2);
const QP: Qpn = Qpn::new(17);

fn table() -> MrTable {
    MrTable::new(1, MrLimits::default())
}

#[test]
fn registration_stays_in_the_region() {
    let mut table = table();
    let region = Region::alloc(64).unwrap();
    for (offset, len) in [(0, 65), (1, 64), (64, 1), (65, 0), (usize::MAX, 1), (1, usize::MAX)] {
        let result = table.reg(PD, region.clone(), offset, len, Iova::ZeroBased, Access::empty());
        assert_eq!(result, Err(RegError::OutOfBounds), "{offset} {len}");
    }
    assert!(table.is_empty());
    assert!(!table.pd_in_use(PD));
}

#[test]
fn registration_of_nothing_is_allowed() {
    let mut table = table();
    let region = Region::alloc(0).unwrap();
    let lkey = table.reg(PD, region, 0, 0, Iova::At(u64::MAX), Access::all()).unwrap();
    assert_eq!(table.lookup(lkey).unwrap().len, 0);
    let result = table.grant_local::<Read>(PD, lkey, u64::MAX, 1);
    assert_eq!(result.unwrap_err(), AccessError::OutOfBounds);
}

#[test]
fn addresses_may_reach_the_end_of_the_space_and_not_pass_it() {
    let mut table = table();
    let region = Region::alloc(64).unwrap();
    let mut at =
        |iova| table.reg(PD, region.clone(), 0, 64, Iova::At(iova), Access::empty()).map(|_| ());
    assert_eq!(at(u64::MAX - 63), Ok(()));
    assert_eq!(at(u64::MAX - 62), Err(RegError::IovaOverflow));
    assert_eq!(at(u64::MAX), Err(RegError::IovaOverflow));
}

#[test]
fn contradicting_flags_are_refused() {
    let mut table = table();
    let region = Region::alloc(64).unwrap();
    let result = table.reg(PD, region, 0, 64, Iova::Natural, Access::REMOTE_WRITE);
    assert_eq!(result, Err(RegError::InvalidAccess));
}

#[test]
fn the_table_has_a_limit() {
    let mut table = MrTable::new(1, MrLimits { max_entries: 2 });
    let region = Region::alloc(64).unwrap();
    let reg =
        |table: &mut MrTable| table.reg(PD, region.clone(), 0, 64, Iova::Natural, Access::empty());
    let first = reg(&mut table).unwrap();
    table.alloc_mw(PD, MwType::One).unwrap();
    assert_eq!(reg(&mut table), Err(RegError::TableFull));
    assert_eq!(table.alloc_mw(PD, MwType::Two), Err(RegError::TableFull));
    assert!(table.dereg(first).unwrap().is_quiet());
    let again = reg(&mut table).unwrap();
    assert_ne!(again, first);
    assert_eq!(table.len(), 2);
}

#[test]
fn dereg_knows_its_keys() {
    let mut table = table();
    let region = Region::alloc(64).unwrap();
    let lkey = table.reg(PD, region, 0, 64, Iova::Natural, Access::empty()).unwrap();
    let window = table.alloc_mw(PD, MwType::One).unwrap();
    assert_eq!(table.dereg(Lkey(window.0)).unwrap_err(), DeregError::Unknown);
    assert_eq!(table.dereg(Lkey(0)).unwrap_err(), DeregError::Unknown);
    assert!(table.dereg(lkey).unwrap().is_quiet());
    assert_eq!(table.dereg(lkey).unwrap_err(), DeregError::Unknown);
}

#[test]
fn lookup_tells_what_was_registered() {
    let mut table = table();
    let region = Region::alloc(64).unwrap();
    let access = Access::LOCAL_WRITE;
    let natural = table.reg(PD, region.clone(), 8, 16, Iova::Natural, access).unwrap();
    let iova = region.addr() + 8;
    let info = MrInfo { pd: PD, iova, len: 16, access, kind: MrKind::Region };
    assert_eq!(table.lookup(natural), Some(info));
    assert_eq!(table.lookup(Rkey(natural.0)), Some(info));
    // The flag and the address say the same thing.
    let zero_based = access | Access::ZERO_BASED;
    for (iova, flags) in [(Iova::ZeroBased, access), (Iova::Natural, zero_based)] {
        let lkey = table.reg(PD, region.clone(), 8, 16, iova, flags).unwrap();
        let info = table.lookup(lkey).unwrap();
        assert_eq!((info.iova, info.access), (0, zero_based));
    }
    let fast = table.alloc_mr(OTHER_PD, region).unwrap();
    let info = table.lookup(fast).unwrap();
    assert_eq!((info.pd, info.len, info.kind), (OTHER_PD, 0, MrKind::FastRegion));
    assert_eq!(table.lookup(Lkey(7)), None);
}

#[test]
fn protection_domains_are_counted() {
    let mut table = table();
    let region = Region::alloc(64).unwrap();
    let first = table.reg(PD, region.clone(), 0, 64, Iova::Natural, Access::empty()).unwrap();
    let second = table.alloc_mr(PD, region).unwrap();
    let window = table.alloc_mw(PD, MwType::Two).unwrap();
    let moved = Rereg { pd: Some(OTHER_PD), ..Rereg::default() };
    assert!(table.pd_in_use(PD) && !table.pd_in_use(OTHER_PD));
    assert!(table.rereg(first, moved).unwrap().is_quiet());
    assert!(table.pd_in_use(PD) && table.pd_in_use(OTHER_PD));
    assert!(table.dereg(first).unwrap().is_quiet());
    assert!(!table.pd_in_use(OTHER_PD));
    assert!(table.dereg(second).unwrap().is_quiet());
    assert!(table.pd_in_use(PD));
    table.dealloc_mw(window).unwrap();
    assert!(!table.pd_in_use(PD) && table.is_empty());
}

#[test]
fn rereg_changes_what_it_is_told_and_keeps_the_key() {
    let mut table = table();
    let region = Region::alloc(64).unwrap();
    let lkey = table.reg(PD, region, 0, 64, Iova::At(0x1000), Access::empty()).unwrap();
    let granted = table.grant_local::<Read>(PD, lkey, 0x1000, 64).unwrap();

    let writable = Rereg { access: Some(Access::LOCAL_WRITE), ..Rereg::default() };
    let old = table.rereg(lkey, writable).unwrap();
    assert!(!old.is_quiet(), "a grant of before is in use");
    assert!(table.grant_local::<Write>(PD, lkey, 0x1000, 64).is_ok());
    drop(granted);
    assert!(old.is_quiet());

    let other = Region::alloc(128).unwrap();
    let range = Some((other.clone(), 32, 96, Iova::At(0x8000)));
    let moved = Rereg { pd: Some(OTHER_PD), range, ..Rereg::default() };
    assert!(table.rereg(lkey, moved).unwrap().is_quiet());
    let denied = table.grant_local::<Write>(PD, lkey, 0x8000, 96).unwrap_err();
    assert_eq!(denied, AccessError::WrongPd);
    let denied = table.grant_local::<Write>(OTHER_PD, lkey, 0x1000, 64).unwrap_err();
    assert_eq!(denied, AccessError::OutOfBounds);
    let grant = table.grant_local::<Write>(OTHER_PD, lkey, 0x8000, 96).unwrap();
    grant.copy_in(0, &[1]).unwrap();
    let mut out = [0; 2];
    other.read_at(31, &mut out).unwrap();
    assert_eq!(out, [0, 1]);
}

#[test]
fn a_failed_rereg_changes_nothing() {
    let mut table = table();
    let region = Region::alloc(64).unwrap();
    let lkey = table.reg(PD, region.clone(), 0, 64, Iova::At(0x1000), Access::empty()).unwrap();
    let before = table.lookup(lkey);
    let range = |len, iova| Rereg {
        pd: Some(OTHER_PD),
        range: Some((region.clone(), 0, len, iova)),
        access: None,
    };
    let access = Rereg { access: Some(Access::REMOTE_ATOMIC), ..Rereg::default() };
    for (change, error) in [
        (range(65, Iova::Natural), RegError::OutOfBounds),
        (range(64, Iova::At(u64::MAX)), RegError::IovaOverflow),
        (access, RegError::InvalidAccess),
    ] {
        assert_eq!(table.rereg(lkey, change).unwrap_err(), error);
        assert_eq!(table.lookup(lkey), before);
    }
    assert_eq!(table.rereg(Lkey(9), Rereg::default()).unwrap_err(), RegError::UnknownKey);
    let fast = table.alloc_mr(PD, region.clone()).unwrap();
    assert_eq!(table.rereg(fast, Rereg::default()).unwrap_err(), RegError::WrongKind);
    assert!(table.grant_remote::<Read>(PD, QP, Rkey(lkey.0), 0x1000, 1).is_err());
}

#[test]
fn zero_based_addresses_go_with_the_range() {
    let mut table = table();
    let region = Region::alloc(64).unwrap();
    let lkey = table.reg(PD, region.clone(), 0, 64, Iova::ZeroBased, Access::empty()).unwrap();
    let change = Rereg { access: Some(Access::LOCAL_WRITE), ..Rereg::default() };
    assert!(table.rereg(lkey, change).unwrap().is_quiet());
    let info = table.lookup(lkey).unwrap();
    assert_eq!((info.iova, info.access), (0, Access::LOCAL_WRITE | Access::ZERO_BASED));

    let range = Some((region.clone(), 8, 8, Iova::Natural));
    let change = Rereg { range, ..Rereg::default() };
    assert!(table.rereg(lkey, change).unwrap().is_quiet());
    let info = table.lookup(lkey).unwrap();
    assert_eq!((info.iova, info.access), (region.addr() + 8, Access::LOCAL_WRITE));
}

#[test]
fn a_copy_has_the_key_and_ends_by_itself() {
    let (mut first, mut second) = (table(), MrTable::new(2, MrLimits::default()));
    let region = Region::alloc(64).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let key = first.reg(PD, region.clone(), 8, 16, Iova::At(100), access).unwrap();
    second.copy_reg(&first, key).unwrap();
    assert_eq!(second.copy_reg(&first, key), Err(RegError::TableFull), "it is there");
    assert_eq!(second.lookup(key), first.lookup(key));
    assert!(second.pd_in_use(PD));
    let grant = second.grant_remote::<Write>(PD, QP, Rkey(key.0), 101, 15).unwrap();
    grant.copy_in(0, &[7]).unwrap();
    assert!(first.dereg(key).unwrap().is_quiet(), "the grant is of the copy");
    assert!(first.grant_remote::<Write>(PD, QP, Rkey(key.0), 101, 15).is_err());
    let dereg = second.dereg(key).unwrap();
    assert!(!dereg.is_quiet());
    drop(grant);
    assert!(dereg.is_quiet());
    assert_eq!(second.copy_reg(&first, key), Err(RegError::UnknownKey));
}
