use super::*;
use crate::{Grant, MrLimits, Read, Rereg, Right, Write};

const PD: PdId = PdId(1);
const OTHER_PD: PdId = PdId(2);
const QP: Qpn = Qpn::new(17);
const OTHER_QP: Qpn = Qpn::new(18);
const IOVA: u64 = 0x1000;

/// A table with one region of 64 bytes at `IOVA`.
fn with_mr(access: Access) -> (MrTable, Arc<Region>, Lkey) {
    let mut table = MrTable::new(1, MrLimits::default());
    let region = Region::alloc(64).unwrap();
    let lkey = table.reg(PD, region.clone(), 0, 64, Iova::At(IOVA), access).unwrap();
    (table, region, lkey)
}

/// The middle of the region, for the peer to read and write.
fn middle(mr: Lkey) -> Bind {
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    Bind { mr, addr: IOVA + 16, len: 32, access, zero_based: false }
}

fn next(key: Rkey) -> Rkey {
    Rkey(key.0 & !0xff | (key.0.wrapping_add(1) & 0xff))
}

fn remote<R: Right>(table: &MrTable, key: Rkey, va: u64, len: u64) -> Result<usize, AccessError> {
    table.grant_remote::<R>(PD, QP, key, va, len).map(|grant| grant.len())
}

const BINDABLE: Access = Access::LOCAL_WRITE.union(Access::MW_BIND);

#[test]
fn a_window_opens_part_of_a_region() {
    let (mut table, region, mr) = with_mr(BINDABLE);
    let unbound = table.alloc_mw(PD, MwType::One).unwrap();
    assert_eq!(remote::<Read>(&table, unbound, IOVA + 16, 1), Err(AccessError::BadKey));
    let mw = bind1(&mut table, PD, unbound, middle(mr)).unwrap();
    assert_eq!(remote::<Read>(&table, mw, IOVA + 16, 32), Ok(32));
    for (va, len) in [(IOVA + 15, 1), (IOVA + 16, 33), (IOVA + 48, 1), (0, 1)] {
        assert_eq!(remote::<Read>(&table, mw, va, len), Err(AccessError::OutOfBounds));
    }
    // The region itself is closed to peers, and the window is no local key.
    assert_eq!(remote::<Read>(&table, Rkey(mr.0), IOVA, 1), Err(AccessError::NotPermitted));
    let local = table.grant_local::<Read>(PD, Lkey(mw.0), IOVA + 16, 1);
    assert_eq!(local.unwrap_err(), AccessError::BadKey);
    let wrong_pd = table.grant_remote::<Read>(OTHER_PD, QP, mw, IOVA + 16, 1);
    assert_eq!(wrong_pd.unwrap_err(), AccessError::WrongPd);

    let grant: Grant<Write> = table.grant_remote(PD, OTHER_QP, mw, IOVA + 20, 2).unwrap();
    grant.copy_in(0, &[1, 2]).unwrap();
    let mut out = [0; 4];
    region.read_at(19, &mut out).unwrap();
    assert_eq!(out, [0, 1, 2, 0]);
}

#[test]
fn a_window_gives_only_its_own_rights() {
    let (mut table, _region, mr) = with_mr(BINDABLE | Access::REMOTE_WRITE);
    let mw = table.alloc_mw(PD, MwType::One).unwrap();
    let bind = Bind { access: Access::REMOTE_READ, ..middle(mr) };
    let mw = bind1(&mut table, PD, mw, bind).unwrap();
    assert_eq!(remote::<Read>(&table, mw, IOVA + 16, 1), Ok(1));
    assert_eq!(remote::<Write>(&table, mw, IOVA + 16, 1), Err(AccessError::NotPermitted));
}

#[test]
fn each_bind_of_type_1_changes_the_key() {
    let (mut table, _region, mr) = with_mr(BINDABLE);
    let mut mw = table.alloc_mw(PD, MwType::One).unwrap();
    let mut seen = [false; 256];
    for round in 0..256 {
        seen[usize::from(Key::from(mw).tag())] = true;
        let bind = Bind { len: if round % 3 == 2 { 0 } else { 32 }, ..middle(mr) };
        let new = bind1(&mut table, PD, mw, bind).unwrap();
        assert_eq!(Key::from(new).index(), Key::from(mw).index());
        assert_eq!(remote::<Read>(&table, mw, IOVA + 16, 1), Err(AccessError::BadKey));
        assert_eq!(remote::<Read>(&table, new, IOVA + 16, 1).is_ok(), bind.len > 0);
        assert_eq!(bind1(&mut table, PD, mw, bind), Err(BindError::BadKey));
        mw = new;
    }
    assert_eq!(seen, [true; 256]);
}

#[test]
fn a_region_waits_for_its_windows() {
    let (mut table, _region, mr) = with_mr(BINDABLE);
    let one = table.alloc_mw(PD, MwType::One).unwrap();
    let two = table.alloc_mw(PD, MwType::Two).unwrap();
    let one = bind1(&mut table, PD, one, middle(mr)).unwrap();
    let one = bind1(&mut table, PD, one, middle(mr)).unwrap();
    table.bind_mw2(PD, QP, two, next(two), middle(mr)).unwrap();
    assert_eq!(table.dereg(mr).unwrap_err(), DeregError::WindowsBound);
    assert_eq!(table.rereg(mr, Rereg::default()).unwrap_err(), RegError::Busy);
    bind1(&mut table, PD, one, Bind { len: 0, ..middle(mr) }).unwrap();
    assert_eq!(table.dereg(mr).unwrap_err(), DeregError::WindowsBound);
    table.dealloc_mw(next(two)).unwrap();
    let dereg = table.dereg(mr).unwrap();
    assert!(dereg.is_quiet());
}

#[test]
fn dereg_waits_for_grants_made_through_a_window() {
    let (mut table, _region, mr) = with_mr(BINDABLE);
    let mw = table.alloc_mw(PD, MwType::Two).unwrap();
    table.bind_mw2(PD, QP, mw, mw, middle(mr)).unwrap();
    let grant = table.grant_remote::<Read>(PD, QP, mw, IOVA + 16, 4).unwrap();
    table.dealloc_mw(mw).unwrap();
    let dereg = table.dereg(mr).unwrap();
    assert!(!dereg.is_quiet());
    drop(grant);
    assert!(dereg.is_quiet());
}

#[test]
fn a_type_2_window_belongs_to_its_queue_pair() {
    let (mut table, _region, mr) = with_mr(BINDABLE);
    let mw = table.alloc_mw(PD, MwType::Two).unwrap();
    let key = next(mw);
    table.bind_mw2(PD, QP, mw, key, middle(mr)).unwrap();
    assert_eq!(remote::<Read>(&table, mw, IOVA + 16, 1), Err(AccessError::BadKey));
    assert_eq!(remote::<Read>(&table, key, IOVA + 16, 1), Ok(1));
    let other = |pd, qp| table.grant_remote::<Read>(pd, qp, key, IOVA + 16, 1).unwrap_err();
    assert_eq!(other(PD, OTHER_QP), AccessError::WrongQp);
    assert_eq!(other(OTHER_PD, QP), AccessError::WrongPd);
}

#[test]
fn a_zero_based_window_counts_from_zero() {
    let (mut table, region, mr) = with_mr(BINDABLE);
    let mw = table.alloc_mw(PD, MwType::Two).unwrap();
    table.bind_mw2(PD, QP, mw, mw, Bind { zero_based: true, ..middle(mr) }).unwrap();
    assert_eq!(remote::<Read>(&table, mw, 0, 32), Ok(32));
    assert_eq!(remote::<Read>(&table, mw, 1, 32), Err(AccessError::OutOfBounds));
    assert_eq!(remote::<Read>(&table, mw, IOVA + 16, 1), Err(AccessError::OutOfBounds));
    region.write_at(16, &[5]).unwrap();
    let mut out = [0];
    table.grant_remote::<Read>(PD, QP, mw, 0, 1).unwrap().copy_out(0, &mut out).unwrap();
    assert_eq!(out, [5]);

    table.invalidate_local(PD, mw).unwrap();
    let access = Access::REMOTE_READ | Access::ZERO_BASED;
    table.bind_mw2(PD, QP, mw, mw, Bind { access, ..middle(mr) }).unwrap();
    assert_eq!(remote::<Read>(&table, mw, 0, 32), Ok(32));

    let one = table.alloc_mw(PD, MwType::One).unwrap();
    for bind in [Bind { zero_based: true, ..middle(mr) }, Bind { access, ..middle(mr) }] {
        assert_eq!(bind1(&mut table, PD, one, bind), Err(BindError::InvalidAccess));
    }
}

#[test]
fn binding_checks_the_window() {
    let (mut table, _region, mr) = with_mr(BINDABLE);
    let one = table.alloc_mw(PD, MwType::One).unwrap();
    let two = table.alloc_mw(PD, MwType::Two).unwrap();
    let foreign = table.alloc_mw(OTHER_PD, MwType::Two).unwrap();
    let bind = middle(mr);
    assert_eq!(bind1(&mut table, PD, two, bind), Err(BindError::WrongType));
    assert_eq!(bind1(&mut table, OTHER_PD, one, bind), Err(BindError::WrongPd));
    assert_eq!(bind1(&mut table, PD, Rkey(mr.0), bind), Err(BindError::BadKey));
    let mut bind2 = |mw, new, bind| table.bind_mw2(PD, QP, mw, new, bind);
    assert_eq!(bind2(one, one, bind), Err(BindError::WrongType));
    assert_eq!(bind2(next(two), two, bind), Err(BindError::BadKey));
    assert_eq!(bind2(foreign, foreign, bind), Err(BindError::WrongPd));
    assert_eq!(bind2(two, Rkey(two.0 ^ 0x100), bind), Err(BindError::BadNewKey));
    assert_eq!(bind2(two, two, Bind { len: 0, ..bind }), Err(BindError::ZeroLength));
    assert_eq!(bind2(two, two, bind), Ok(()));
    assert_eq!(bind2(two, next(two), bind), Err(BindError::NotFree));
}

#[test]
fn binding_checks_the_region() {
    let (mut table, region, mr) = with_mr(BINDABLE);
    let mut reg = |pd, access| table.reg(pd, region.clone(), 0, 64, Iova::At(IOVA), access);
    let read_only = reg(PD, Access::MW_BIND | Access::REMOTE_READ).unwrap();
    let closed = reg(PD, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    let foreign = reg(OTHER_PD, BINDABLE).unwrap();
    let unmapped = table.alloc_mr(PD, region).unwrap();
    let mw = table.alloc_mw(PD, MwType::Two).unwrap();
    let mut bind = |mr, access| {
        let bind = Bind { mr, access, ..middle(mr) };
        table.bind_mw2(PD, QP, mw, mw, bind)
    };
    let read = Access::REMOTE_READ;
    assert_eq!(bind(Lkey(mr.0 ^ 1), read), Err(BindError::BadMr));
    assert_eq!(bind(Lkey(mw.0), read), Err(BindError::BadMr));
    assert_eq!(bind(unmapped, read), Err(BindError::BadMr));
    assert_eq!(bind(foreign, read), Err(BindError::WrongPd));
    assert_eq!(bind(closed, read), Err(BindError::NotPermitted));
    for change in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        assert_eq!(bind(read_only, change), Err(BindError::NotPermitted));
    }
    for not_for_windows in [Access::LOCAL_WRITE, Access::MW_BIND, Access::HUGETLB] {
        assert_eq!(bind(mr, not_for_windows), Err(BindError::InvalidAccess));
    }
    assert_eq!(bind(read_only, read), Ok(()));
    assert!(table.dereg(mr).unwrap().is_quiet(), "failed binds leave no count");
}

#[test]
fn binding_checks_the_range() {
    let (mut table, _region, mr) = with_mr(BINDABLE);
    let mw = table.alloc_mw(PD, MwType::Two).unwrap();
    let before = table.lookup(mw);
    let bound = |addr, len| Bind { addr, len, ..middle(mr) };
    let max = u64::MAX;
    for (addr, len) in
        [(IOVA - 1, 1), (IOVA, 65), (IOVA + 64, 1), (IOVA + 1, max), (max, 1), (0, max)]
    {
        let result = table.bind_mw2(PD, QP, mw, mw, bound(addr, len));
        assert_eq!(result, Err(BindError::OutOfBounds), "{addr:#x} {len:#x}");
        assert_eq!(table.lookup(mw), before);
    }
    assert_eq!(table.bind_mw2(PD, QP, mw, mw, bound(IOVA, 64)), Ok(()));
}

#[test]
fn windows_go_with_their_queue_pair() {
    let (mut table, _region, mr) = with_mr(BINDABLE);
    let windows: Vec<Rkey> = (0..4).map(|_| table.alloc_mw(PD, MwType::Two).unwrap()).collect();
    for (&mw, qp) in windows.iter().zip([QP, OTHER_QP, QP, OTHER_QP]) {
        table.bind_mw2(PD, qp, mw, mw, middle(mr)).unwrap();
    }
    table.unbind_qp(QP);
    table.unbind_qp(Qpn::new(99));
    let reach = |mw, qp| table.grant_remote::<Read>(PD, qp, mw, IOVA + 16, 1).is_ok();
    assert_eq!([reach(windows[0], QP), reach(windows[2], QP)], [false; 2]);
    assert_eq!([reach(windows[1], OTHER_QP), reach(windows[3], OTHER_QP)], [true; 2]);
    assert_eq!(table.bind_mw2(PD, OTHER_QP, windows[0], windows[0], middle(mr)), Ok(()));
    table.unbind_qp(OTHER_QP);
    assert!(table.bound.is_empty());
    assert!(table.dereg(mr).unwrap().is_quiet());
}

#[test]
fn the_owner_may_invalidate_what_is_meant_for_it() {
    let (mut table, region, mr) = with_mr(BINDABLE);
    let one = table.alloc_mw(PD, MwType::One).unwrap();
    let one = bind1(&mut table, PD, one, middle(mr)).unwrap();
    let two = table.alloc_mw(PD, MwType::Two).unwrap();
    table.bind_mw2(PD, QP, two, two, middle(mr)).unwrap();
    let fast = table.alloc_mr(PD, region).unwrap();
    assert_eq!(table.invalidate_local(PD, one), Err(BindError::WrongType));
    assert_eq!(table.invalidate_local(PD, Rkey(mr.0)), Err(BindError::WrongType));
    assert_eq!(table.invalidate_local(PD, next(two)), Err(BindError::BadKey));
    assert_eq!(table.invalidate_local(OTHER_PD, two), Err(BindError::WrongPd));
    assert_eq!(table.invalidate_local(OTHER_PD, Rkey(fast.0)), Err(BindError::WrongPd));
    assert_eq!(remote::<Read>(&table, two, IOVA + 16, 1), Ok(1));
    assert_eq!(table.invalidate_local(PD, two), Ok(()));
    assert_eq!(remote::<Read>(&table, two, IOVA + 16, 1), Err(AccessError::BadKey));
    assert_eq!(table.invalidate_local(PD, two), Ok(()), "free already");
    assert_eq!(table.bind_mw2(PD, OTHER_QP, two, next(two), middle(mr)), Ok(()));
}

#[test]
fn a_peer_may_invalidate_what_is_open_to_it() {
    let (mut table, region, mr) = with_mr(BINDABLE);
    let one = table.alloc_mw(PD, MwType::One).unwrap();
    let one = bind1(&mut table, PD, one, middle(mr)).unwrap();
    let two = table.alloc_mw(PD, MwType::Two).unwrap();
    table.bind_mw2(PD, QP, two, two, middle(mr)).unwrap();
    let fast = table.alloc_mr(PD, region).unwrap();
    let mut invalidate = |pd, qp, key| table.invalidate_remote(pd, qp, key);
    assert_eq!(invalidate(PD, QP, one), Err(AccessError::NotPermitted));
    assert_eq!(invalidate(PD, QP, Rkey(mr.0)), Err(AccessError::NotPermitted));
    assert_eq!(invalidate(PD, QP, Rkey(0)), Err(AccessError::BadKey));
    assert_eq!(invalidate(PD, QP, Rkey(fast.0)), Err(AccessError::BadKey), "not mapped");
    assert_eq!(invalidate(PD, OTHER_QP, two), Err(AccessError::WrongQp));
    assert_eq!(invalidate(OTHER_PD, QP, two), Err(AccessError::WrongPd));
    assert_eq!(invalidate(PD, QP, two), Ok(()));
    assert_eq!(invalidate(PD, QP, two), Err(AccessError::BadKey));
    table.map(PD, fast, 0, 8, Iova::ZeroBased, Access::empty()).unwrap();
    assert_eq!(table.invalidate_remote(OTHER_PD, QP, Rkey(fast.0)), Err(AccessError::WrongPd));
    assert_eq!(table.invalidate_remote(PD, QP, Rkey(fast.0)), Ok(()));
    assert_eq!(table.lookup(fast).unwrap().len, 0);
}

#[test]
fn fast_registration_maps_and_unmaps() {
    let (mut table, region, mr) = with_mr(BINDABLE);
    let first = table.alloc_mr(PD, region).unwrap();
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::MW_BIND;
    assert_eq!(remote::<Write>(&table, Rkey(first.0), 0, 1), Err(AccessError::BadKey));
    assert!(table.grant_local::<Read>(PD, first, 0, 1).is_err());

    let key = Lkey(next(Rkey(first.0)).0);
    let mut map = |pd, key, len, iova, access| table.map(pd, key, 8, len, iova, access);
    let at = Iova::At(0x4000);
    assert_eq!(map(OTHER_PD, key, 16, at, rights), Err(BindError::WrongPd));
    assert_eq!(map(PD, mr, 16, at, rights), Err(BindError::WrongType));
    assert_eq!(map(PD, Lkey(0), 16, at, rights), Err(BindError::BadKey));
    assert_eq!(map(PD, key, 57, at, rights), Err(BindError::OutOfBounds));
    assert_eq!(map(PD, key, 16, Iova::At(u64::MAX), rights), Err(BindError::IovaOverflow));
    assert_eq!(map(PD, key, 16, at, Access::REMOTE_WRITE), Err(BindError::InvalidAccess));
    assert_eq!(map(PD, key, 16, at, rights), Ok(()));
    assert_eq!(map(PD, key, 16, at, rights), Err(BindError::NotFree));

    assert_eq!(remote::<Write>(&table, Rkey(first.0), 0x4000, 1), Err(AccessError::BadKey));
    assert_eq!(remote::<Write>(&table, Rkey(key.0), 0x4000, 16), Ok(16));
    assert_eq!(remote::<Write>(&table, Rkey(key.0), 0x4000, 17), Err(AccessError::OutOfBounds));

    let mw = table.alloc_mw(PD, MwType::Two).unwrap();
    let bind = Bind { mr: key, addr: 0x4008, len: 8, ..middle(key) };
    table.bind_mw2(PD, QP, mw, mw, bind).unwrap();
    assert_eq!(table.invalidate_local(PD, Rkey(key.0)), Err(BindError::WindowsBound));
    let denied = table.invalidate_remote(PD, QP, Rkey(key.0));
    assert_eq!(denied, Err(AccessError::NotPermitted));
    table.invalidate_local(PD, mw).unwrap();
    let grant = table.grant_remote::<Write>(PD, QP, Rkey(key.0), 0x4000, 16).unwrap();
    table.invalidate_local(PD, Rkey(key.0)).unwrap();
    assert_eq!(remote::<Write>(&table, Rkey(key.0), 0x4000, 1), Err(AccessError::BadKey));
    let dereg = table.dereg(key).unwrap();
    assert!(!dereg.is_quiet(), "a grant of an earlier mapping counts");
    drop(grant);
    assert!(dereg.is_quiet());
}

#[test]
fn dealloc_knows_its_keys() {
    let (mut table, _region, mr) = with_mr(BINDABLE);
    let mw = table.alloc_mw(PD, MwType::One).unwrap();
    assert_eq!(table.dealloc_mw(Rkey(mr.0)), Err(DeregError::Unknown));
    assert_eq!(table.dealloc_mw(next(mw)), Err(DeregError::Unknown));
    assert_eq!(table.current_mw(next(mw)), Some(mw));
    assert_eq!(table.current_mw(Rkey(mr.0)), None);
    assert_eq!(table.dealloc_mw(mw), Ok(()));
    assert_eq!(table.dealloc_mw(mw), Err(DeregError::Unknown));
    assert_eq!(table.len(), 1);
}

/// Binds a window of type 1 under its next key and returns that.
fn bind1(table: &mut MrTable, pd: PdId, mw: Rkey, bind: Bind) -> Result<Rkey, BindError> {
    table.bind_mw1(pd, mw, next(mw), bind).map(|()| next(mw))
}

#[test]
fn a_type_1_window_needs_a_new_tag_and_keeps_its_index() {
    let (mut table, _region, mr) = with_mr(BINDABLE);
    let mw = table.alloc_mw(PD, MwType::One).unwrap();
    for new in [mw, Rkey(mw.0 ^ 0x100)] {
        let result = table.bind_mw(PD, QP, mw, new, middle(mr));
        assert_eq!(result, Err(BindError::BadNewKey));
    }
    assert_eq!(table.bind_mw(PD, QP, mw, next(mw), middle(mr)), Ok(()));
}
