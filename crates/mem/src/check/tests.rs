use alloc::sync::Arc;
use core::ptr;

use feroce_wire::{Lkey, Qpn, Rkey};

use super::*;
use crate::{Atomic, Iova, MrLimits, Read, Region, Write};

const PD: PdId = PdId(1);
const OTHER_PD: PdId = PdId(2);
const QP: Qpn = Qpn::new(17);

fn table() -> MrTable {
    MrTable::new(1, MrLimits::default())
}

fn reg(table: &mut MrTable, region: &Arc<Region>, iova: Iova, access: Access) -> (Lkey, Rkey) {
    let lkey = table.reg(PD, region.clone(), 0, region.len(), iova, access).unwrap();
    (lkey, Rkey(lkey.0))
}

/// The outcome without the grant.
fn outcome<R: Right>(result: Result<Grant<R>, AccessError>) -> Result<usize, AccessError> {
    result.map(|grant| grant.len())
}

#[test]
fn a_key_must_exist_and_be_current() {
    let mut table = table();
    let region = Region::alloc(64).unwrap();
    let (lkey, rkey) = reg(&mut table, &region, Iova::ZeroBased, Access::all());
    for wrong in [0, 255, lkey.0 ^ 1, lkey.0 ^ 0x100, u32::MAX] {
        let local = table.grant_local::<Read>(PD, Lkey(wrong), 0, 1);
        assert_eq!(outcome(local), Err(AccessError::BadKey));
        let remote = table.grant_remote::<Read>(PD, QP, Rkey(wrong), 0, 1);
        assert_eq!(outcome(remote), Err(AccessError::BadKey));
    }
    assert!(table.dereg(lkey).unwrap().is_quiet());
    let local = table.grant_local::<Read>(PD, lkey, 0, 1);
    assert_eq!(outcome(local), Err(AccessError::BadKey));
    let remote = table.grant_remote::<Read>(PD, QP, rkey, 0, 1);
    assert_eq!(outcome(remote), Err(AccessError::BadKey));
}

#[test]
fn a_key_works_in_its_protection_domain() {
    let mut table = table();
    let region = Region::alloc(64).unwrap();
    let (lkey, rkey) = reg(&mut table, &region, Iova::ZeroBased, Access::all());
    let local = table.grant_local::<Read>(OTHER_PD, lkey, 0, 1);
    assert_eq!(outcome(local), Err(AccessError::WrongPd));
    let remote = table.grant_remote::<Read>(OTHER_PD, QP, rkey, 0, 1);
    assert_eq!(outcome(remote), Err(AccessError::WrongPd));
}

#[test]
fn each_right_needs_its_flag() {
    let remotes = [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC];
    for given in remotes {
        let mut table = table();
        let region = Region::alloc(64).unwrap();
        let access = given | Access::LOCAL_WRITE;
        let (_, rkey) = reg(&mut table, &region, Iova::ZeroBased, access);
        let outcomes = [
            outcome(table.grant_remote::<Read>(PD, QP, rkey, 0, 8)),
            outcome(table.grant_remote::<Write>(PD, QP, rkey, 0, 8)),
            outcome(table.grant_remote::<Atomic>(PD, QP, rkey, 0, 8)),
        ];
        for (needed, outcome) in remotes.into_iter().zip(outcomes) {
            let expected = if needed == given { Ok(8) } else { Err(AccessError::NotPermitted) };
            assert_eq!(outcome, expected, "{needed:?} with {given:?}");
        }
    }
}

#[test]
fn local_reads_need_no_flag_and_local_writes_do() {
    let mut table = table();
    let region = Region::alloc(64).unwrap();
    let (lkey, _) = reg(&mut table, &region, Iova::ZeroBased, Access::REMOTE_READ);
    assert_eq!(outcome(table.grant_local::<Read>(PD, lkey, 0, 8)), Ok(8));
    let denied = Err(AccessError::NotPermitted);
    assert_eq!(outcome(table.grant_local::<Write>(PD, lkey, 0, 8)), denied);
    assert_eq!(outcome(table.grant_local::<Atomic>(PD, lkey, 0, 8)), denied);
    let (lkey, _) = reg(&mut table, &region, Iova::ZeroBased, Access::LOCAL_WRITE);
    assert_eq!(outcome(table.grant_local::<Write>(PD, lkey, 0, 8)), Ok(8));
    assert_eq!(outcome(table.grant_local::<Atomic>(PD, lkey, 0, 8)), Ok(8));
}

#[test]
fn ranges_count_from_the_address_of_the_registration() {
    let region = Region::alloc(256).unwrap();
    for (iova, first) in [
        (Iova::Natural, region.addr() + 64),
        (Iova::At(0x1234_5000), 0x1234_5000),
        (Iova::At(u64::MAX - 15), u64::MAX - 15),
        (Iova::ZeroBased, 0),
    ] {
        let mut table = table();
        let access = Access::all() - Access::ZERO_BASED;
        let lkey = table.reg(PD, region.clone(), 64, 16, iova, access).unwrap();
        let rkey = Rkey(lkey.0);
        let at = |offset: i64, len| {
            let va = first.wrapping_add_signed(offset);
            let local = u32::try_from(len).map(|len| table.grant_local::<Write>(PD, lkey, va, len));
            let remote = outcome(table.grant_remote::<Write>(PD, QP, rkey, va, len));
            if let Ok(local) = local {
                assert_eq!(outcome(local), remote);
            }
            remote
        };
        assert_eq!(at(0, 16), Ok(16));
        assert_eq!(at(15, 1), Ok(1));
        for (offset, len) in [(-1, 1), (-1, 17), (0, 17), (1, 16), (15, 2), (16, 1), (17, 1)] {
            assert_eq!(at(offset, len), Err(AccessError::OutOfBounds), "{offset} {len} {iova:?}");
        }
        for len in [u64::MAX, u64::MAX - 7, u64::from(u32::MAX), 1 << 63] {
            assert_eq!(at(8, len), Err(AccessError::OutOfBounds));
        }
        let grant = table.grant_remote::<Write>(PD, QP, rkey, first + 3, 2).unwrap();
        grant.copy_in(0, &[8, 9]).unwrap();
        let mut out = [0; 4];
        region.read_at(66, &mut out).unwrap();
        assert_eq!(out, [0, 8, 9, 0]);
    }
}

#[test]
fn a_key_that_was_looked_up_once_is_checked_for_each_range() {
    let mut table = table();
    let region = Region::alloc(64).unwrap();
    let (lkey, _) = reg(&mut table, &region, Iova::At(1000), Access::REMOTE_READ);
    assert_eq!(table.local(OTHER_PD, lkey).err(), Some(AccessError::WrongPd));
    assert_eq!(table.local(PD, Lkey(lkey.0 ^ 0x100)).err(), Some(AccessError::BadKey));
    let mr = table.local(PD, lkey).unwrap();
    let read = |addr, len| mr.lend::<Read>(addr, len).map(|loan| loan.len());
    assert_eq!((read(1000, 64), read(1063, 1), read(0, 0)), (Ok(64), Ok(1), Ok(0)));
    assert_eq!(read(1063, 2), Err(AccessError::OutOfBounds));
    assert_eq!(read(999, 1), Err(AccessError::OutOfBounds));
    assert_eq!(mr.lend::<Write>(1000, 1).err(), Some(AccessError::NotPermitted));
}

#[test]
fn operations_of_length_0_check_nothing() {
    let mut table = table();
    let local = table.grant_local::<Write>(OTHER_PD, Lkey(3), u64::MAX, 0);
    assert_eq!(outcome(local), Ok(0));
    let remote = table.grant_remote::<Read>(OTHER_PD, QP, Rkey(u32::MAX), u64::MAX, 0);
    assert_eq!(outcome(remote), Ok(0));
    let (_, rkey) = reg(&mut table, &Region::null(), Iova::ZeroBased, Access::all());
    let atomic = table.grant_remote::<Atomic>(PD, QP, rkey, 0, 0);
    assert_eq!(outcome(atomic), Err(AccessError::Misaligned));
}

#[test]
fn atomics_need_an_aligned_word() {
    let mut table = table();
    let region = Region::alloc(64).unwrap();
    let (_, rkey) = reg(&mut table, &region, Iova::ZeroBased, Access::all());
    let at = |va, len| outcome(table.grant_remote::<Atomic>(PD, QP, rkey, va, len));
    assert_eq!(at(8, 8), Ok(8));
    for (va, len) in [(1, 8), (4, 8), (15, 8), (0, 4), (0, 16)] {
        assert_eq!(at(va, len), Err(AccessError::Misaligned), "{va} {len}");
    }
    assert_eq!(at(60, 8), Err(AccessError::OutOfBounds));

    // The address that counts is the real one.
    let lkey = table.reg(PD, region, 4, 32, Iova::At(0x1000), Access::all()).unwrap();
    let at = |va| outcome(table.grant_remote::<Atomic>(PD, QP, Rkey(lkey.0), va, 8));
    assert_eq!(at(0x1000), Err(AccessError::Misaligned));
    assert_eq!(at(0x1004), Ok(8));
}

#[test]
fn flush_checks_key_rights_and_range() {
    let mut table = table();
    let region = Region::alloc(64).unwrap();
    let access = Access::FLUSH_GLOBAL;
    let (_, rkey) = reg(&mut table, &region, Iova::At(0x1000), access);
    let check = |va, len, levels| table.check_flush(PD, QP, rkey, va, len, levels);
    assert_eq!(check(0x1000, 64, Access::FLUSH_GLOBAL), Ok(()));
    assert_eq!(check(0, 0, Access::FLUSH_GLOBAL), Ok(()));
    assert_eq!(check(0x1000, 65, Access::FLUSH_GLOBAL), Err(AccessError::OutOfBounds));
    let persistent = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    assert_eq!(check(0x1000, 64, persistent), Err(AccessError::NotPermitted));
    assert_eq!(table.check_flush(OTHER_PD, QP, rkey, 0x1000, 1, access), Err(AccessError::WrongPd));
    assert_eq!(table.check_flush(PD, QP, Rkey(1), 0, 0, access), Err(AccessError::BadKey));
}

#[test]
#[expect(unsafe_code, reason = "the whole address space comes through the unsafe door")]
fn the_whole_address_space_can_be_registered() {
    let mut table = table();
    let target = Region::alloc(64).unwrap();
    // SAFETY: only the bytes of `target`, which outlives it, are touched.
    let all = unsafe { Region::from_raw(ptr::null_mut(), usize::MAX, None) };
    let access = Access::all().difference(Access::ZERO_BASED);
    let (lkey, rkey) = reg(&mut table, &all, Iova::Natural, access);
    let info = table.lookup(lkey).unwrap();
    assert_eq!((info.iova, info.len), (0, u64::MAX));
    let grant = table.grant_remote::<Write>(PD, QP, rkey, target.addr() + 5, 3).unwrap();
    grant.copy_in(0, &[1, 2, 3]).unwrap();
    let mut out = [0; 10];
    target.read_at(0, &mut out).unwrap();
    assert_eq!(out, [0, 0, 0, 0, 0, 1, 2, 3, 0, 0]);
    let end = table.grant_remote::<Write>(PD, QP, rkey, u64::MAX, 1);
    assert_eq!(outcome(end), Err(AccessError::OutOfBounds));
    let wrap = table.grant_remote::<Write>(PD, QP, rkey, u64::MAX - 1, 2);
    assert_eq!(outcome(wrap), Err(AccessError::OutOfBounds));
}

#[test]
fn a_null_region_takes_everything() {
    let mut table = table();
    let (lkey, rkey) = reg(&mut table, &Region::null(), Iova::ZeroBased, Access::all());
    let write = table.grant_local::<Write>(PD, lkey, 0xdead_beef, 100).unwrap();
    write.copy_in(0, &[1; 100]).unwrap();
    let mut out = [9; 100];
    let read = table.grant_remote::<Read>(PD, QP, rkey, 0xdead_beef, 100).unwrap();
    read.copy_out(0, &mut out).unwrap();
    assert_eq!(out, [0; 100]);
    let word = table.grant_remote::<Atomic>(PD, QP, rkey, 64, 8).unwrap();
    assert_eq!((word.fetch_add(5), word.compare_swap(0, 7), word.fetch_add(0)), (0, 0, 0));
}
