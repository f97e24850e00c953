use alloc::sync::Arc;
use core::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::thread;

use feroce_wire::{Lkey, Qpn, Rkey};

use super::*;
use crate::{Access, Iova, MrLimits, MrTable, PdId};

const PD: PdId = PdId(1);
const QP: Qpn = Qpn::new(17);

fn registered(len: usize) -> (MrTable, Arc<Region>, Lkey) {
    let mut table = MrTable::new(1, MrLimits::default());
    let region = Region::alloc(len).unwrap();
    let lkey = table.reg(PD, region.clone(), 0, len, Iova::ZeroBased, Access::all()).unwrap();
    (table, region, lkey)
}

#[test]
fn a_grant_ends_where_it_ends() {
    let (table, region, lkey) = registered(64);
    let write = table.grant_local::<Write>(PD, lkey, 16, 8).unwrap();
    assert_eq!((write.len(), write.is_empty()), (8, false));
    assert_eq!(write.copy_in(0, &[1; 9]), Err(OutOfBounds));
    assert_eq!(write.copy_in(1, &[1; 8]), Err(OutOfBounds));
    assert_eq!(write.copy_in(8, &[1]), Err(OutOfBounds));
    assert_eq!(write.copy_in(usize::MAX, &[1]), Err(OutOfBounds));
    assert_eq!(write.copy_in(9, &[]), Err(OutOfBounds));
    assert_eq!(write.copy_in(8, &[]), Ok(()));
    assert_eq!(write.copy_in(2, &[1; 6]), Ok(()));
    let mut all = [9; 64];
    region.read_at(0, &mut all).unwrap();
    let mut expected = [0; 64];
    expected[18..24].fill(1);
    assert_eq!(all, expected);

    let read = table.grant_local::<Read>(PD, lkey, 16, 8).unwrap();
    let mut out = [9; 8];
    assert_eq!(read.copy_out(1, &mut out), Err(OutOfBounds));
    assert_eq!(read.copy_out(0, &mut out), Ok(()));
    assert_eq!(out, [0, 0, 1, 1, 1, 1, 1, 1]);
}

#[test]
fn a_grant_can_be_divided_but_not_widened() {
    let (table, region, lkey) = registered(64);
    let mut rest = table.grant_local::<Write>(PD, lkey, 8, 16).unwrap();
    let head = rest.split_to(4);
    assert_eq!((head.len(), rest.len()), (4, 12));
    head.copy_in(0, &[1; 4]).unwrap();
    rest.copy_in(0, &[2; 12]).unwrap();
    let middle = rest.sub(4, 4).unwrap();
    middle.copy_in(0, &[3; 4]).unwrap();
    assert_eq!(middle.copy_in(0, &[3; 5]), Err(OutOfBounds));
    assert!(rest.sub(4, 9).is_none());
    assert!(rest.sub(13, 0).is_none());
    assert!(rest.sub(usize::MAX, usize::MAX).is_none());
    assert!(rest.sub(12, 0).unwrap().is_empty());
    let mut out = [0; 24];
    region.read_at(4, &mut out).unwrap();
    let expected = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 2, 2, 2, 2, 0, 0, 0, 0];
    assert_eq!(out, expected);

    let all = rest.split_to(usize::MAX);
    assert_eq!((all.len(), rest.len()), (12, 0));
    assert_eq!(rest.copy_in(0, &[1]), Err(OutOfBounds));
    assert!(rest.split_to(0).is_empty());
}

#[test]
fn empty_grants_hold_nothing() {
    let empty = Grant::<Read>::empty();
    assert_eq!((empty.len(), empty.is_empty()), (0, true));
    assert_eq!(empty.copy_out(0, &mut []), Ok(()));
    assert_eq!(empty.copy_out(0, &mut [0]), Err(OutOfBounds));
    assert_eq!(Grant::<Write>::empty().copy_in(0, &[]), Ok(()));

    let (mut table, _region, lkey) = registered(64);
    let mut grant = table.grant_local::<Read>(PD, lkey, 0, 8).unwrap();
    let _none = grant.sub(3, 0).unwrap();
    let _also_none = grant.split_to(0);
    let dereg = table.dereg(lkey).unwrap();
    assert!(!dereg.is_quiet());
    drop(grant);
    assert!(dereg.is_quiet());
}

#[test]
fn atomics_return_what_was_there() {
    let (table, region, lkey) = registered(64);
    let word = table.grant_remote::<Atomic>(PD, QP, Rkey(lkey.0), 8, 8).unwrap();
    assert_eq!(word.fetch_add(5), 0);
    assert_eq!(word.fetch_add(u64::MAX), 5);
    assert_eq!(word.compare_swap(3, 9), 4);
    assert_eq!(word.compare_swap(4, 9), 4);
    assert_eq!(region.load_u64(8), Ok(9));
    word.store(1 << 63);
    assert_eq!(region.load_u64(8), Ok(1 << 63));
    assert_eq!((region.load_u64(0), region.load_u64(16)), (Ok(0), Ok(0)));
}

#[test]
fn quiet_counts_the_grants_of_one_registration() {
    let (mut table, region, first) = registered(64);
    let second = table.reg(PD, region.clone(), 0, 64, Iova::ZeroBased, Access::all()).unwrap();
    let of_second = table.grant_local::<Read>(PD, second, 0, 8).unwrap();
    let of_first = table.grant_local::<Read>(PD, first, 0, 8).unwrap();
    let copy = of_first.clone();
    let dereg = table.dereg(first).unwrap();
    drop(of_first);
    assert!(!dereg.is_quiet());
    drop(copy);
    assert!(dereg.is_quiet(), "the other registration does not matter");
    dereg.wait(|| unreachable!("it is quiet"));
    drop(of_second);
}

#[test]
fn dereg_waits_for_a_grant_on_another_thread() {
    let (mut table, region, lkey) = registered(64);
    let grant = table.grant_local::<Write>(PD, lkey, 0, 64).unwrap();
    let (go, wait) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            wait.recv().unwrap();
            grant.copy_in(0, &[7; 64]).unwrap();
            drop(grant);
        });
        let dereg = table.dereg(lkey).unwrap();
        assert!(!dereg.is_quiet());
        let looks = AtomicUsize::new(0);
        dereg.wait(|| {
            if looks.fetch_add(1, Ordering::Relaxed) == 2 {
                go.send(()).unwrap();
            }
            thread::yield_now();
        });
        assert!(looks.into_inner() >= 3);
        let mut all = [0; 64];
        region.read_at(0, &mut all).unwrap();
        assert_eq!(all, [7; 64], "what the grant wrote is visible");
    });
}

#[test]
fn atomics_of_peers_and_owner_add_up() {
    const ROUNDS: u64 = 20_000;
    let (table, region, lkey) = registered(64);
    let rkey = Rkey(lkey.0);
    thread::scope(|scope| {
        for _ in 0..2 {
            let add = table.grant_remote::<Atomic>(PD, QP, rkey, 8, 8).unwrap();
            scope.spawn(move || (0..ROUNDS).for_each(|_| _ = add.fetch_add(1)));
        }
        let swap = table.grant_remote::<Atomic>(PD, QP, rkey, 8, 8).unwrap();
        scope.spawn(move || {
            for _ in 0..ROUNDS {
                let mut seen = swap.compare_swap(0, 0);
                loop {
                    match swap.compare_swap(seen, seen + 1) {
                        now if now == seen => break,
                        now => seen = now,
                    }
                }
            }
        });
        for _ in 0..ROUNDS {
            region.fetch_add_u64(8, 1).unwrap();
        }
    });
    assert_eq!(region.load_u64(8), Ok(4 * ROUNDS));
}

#[test]
fn grants_can_move_between_threads() {
    fn check<T: Send + Sync>() {}
    check::<Grant<Read>>();
    check::<Grant<Write>>();
    check::<Grant<Atomic>>();
    check::<MrTable>();
    check::<Dereg>();
}

#[test]
fn a_loan_does_what_the_grant_does_and_counts_nothing() {
    let (mut table, region, key) = registered(64);
    let loan = table.lend_local::<Write>(PD, key, 8, 4).unwrap();
    assert_eq!(loan.copy_in(b"12345"), Err(OutOfBounds));
    loan.copy_in(b"1234").unwrap();
    let grant = loan.keep();
    grant.copy_in(2, b"xy").unwrap();
    let mut bytes = [0; 6];
    region.read_at(7, &mut bytes).unwrap();
    assert_eq!(&bytes, b"\x0012xy\0");
    table.lend_local::<Write>(PD, key, 0, 0).unwrap().copy_in(b"").unwrap();
    assert!(table.lend_local::<Write>(PD, key, 0, 0).unwrap().copy_in(b"1").is_err());
    let dereg = table.dereg(key).unwrap();
    assert!(!dereg.is_quiet());
    drop(grant);
    assert!(dereg.is_quiet());
}
