//! Random sequences of control calls and accesses, against a model that is too simple to be wrong:
//! a list of entries, searched from the front, with all arithmetic in 128 bits. A call succeeds if
//! and only if the model says so, and memory changes only where the model says.

extern crate alloc;

mod ops;

use alloc::sync::Arc;

use feroce_mem::{
    Access, Atomic, Bind, Grant, Iova, MrLimits, MrTable, MwType, PdId, Read, Region, Rereg, Right,
    Write,
};
use feroce_wire::{Lkey, Qpn, Rkey};
use proptest::prelude::*;

use ops::{BindOp, Kind, Op, Spot, Step, Touch, step};

/// Length of the region that everything is registered in.
const SIZE: usize = 96;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Sort {
    Mr,
    Fast,
    Window(MwType),
}

/// What a key leads to.
#[derive(Clone, Copy, Debug)]
struct View {
    start: usize,
    len: usize,
    iova: u64,
    access: Access,
    qpn: Option<Qpn>,
    /// Index part of the key of the region that a window is bound to.
    mr: Option<u32>,
}

#[derive(Clone, Debug)]
struct Entry {
    key: u32,
    pd: PdId,
    sort: Sort,
    view: Option<View>,
}

struct Model {
    entries: Vec<Entry>,
    memory: [u8; SIZE],
    region_addr: u64,
}

impl Model {
    fn find(&self, key: u32) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    fn find_mut(&mut self, key: u32) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.key == key)
    }

    fn has_windows(&self, key: u32) -> bool {
        let of = |entry: &Entry| entry.view.is_some_and(|view| view.mr == Some(key >> 8));
        self.entries.iter().any(of)
    }

    /// What registering `spot` would give.
    fn view(&self, spot: Spot) -> Option<View> {
        let Spot { offset: start, len, iova, access } = spot;
        let changes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if start + len > SIZE || (changes && !access.contains(Access::LOCAL_WRITE)) {
            return None;
        }
        let zero_based = access.contains(Access::ZERO_BASED);
        let iova = match iova {
            Iova::Natural if !zero_based => self.region_addr + start as u64,
            Iova::At(iova) => iova,
            _ => 0,
        };
        let end = u128::from(iova) + len as u128;
        let fits = len == 0 || end <= 1 << 64;
        fits.then_some(View { start, len, iova, access, qpn: None, mr: None })
    }

    /// What binding a window would give.
    fn bound(&self, step: &Step, key: u32, mr: u32, addr: u64, bind: BindOp) -> Option<View> {
        let window = self.find(key)?;
        let two = bind.kind == MwType::Two;
        let entry = self.find(mr)?;
        let whole = entry.view?;
        let allowed = Access::REMOTE_READ
            | Access::REMOTE_WRITE
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL
            | Access::FLUSH_PERSISTENT;
        let changes = bind.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let start = u128::from(addr).checked_sub(whole.iova.into())?;
        let good = window.sort == Sort::Window(bind.kind)
            && window.pd == step.pd
            && matches!(entry.sort, Sort::Mr | Sort::Fast)
            && entry.pd == step.pd
            && !(two && window.view.is_some())
            && !(two && bind.len == 0)
            && (two || !bind.zero_based)
            && allowed.contains(bind.access)
            && whole.access.contains(Access::MW_BIND)
            && (!changes || whole.access.contains(Access::LOCAL_WRITE))
            && start + u128::from(bind.len) <= whole.len as u128;
        good.then(|| View {
            start: whole.start + usize::try_from(start).expect("in the region"),
            len: usize::try_from(bind.len).expect("in the region"),
            iova: if bind.zero_based { 0 } else { addr },
            access: bind.access,
            qpn: two.then_some(step.qpn),
            mr: Some(mr >> 8),
        })
    }

    /// Where in memory an access goes, if it may be made.
    fn target(&self, step: &Step, key: u32, va: u64, touch: Touch, remote: bool) -> Option<usize> {
        let word = matches!(touch.kind, Kind::Atomic);
        if touch.len == 0 {
            return (!word).then_some(0);
        }
        let entry = self.find(key)?;
        let view = entry.view?;
        let need = match (touch.kind, remote) {
            (Kind::Read, false) => Access::empty(),
            (Kind::Write | Kind::Atomic, false) => Access::LOCAL_WRITE,
            (Kind::Read, true) => Access::REMOTE_READ,
            (Kind::Write, true) => Access::REMOTE_WRITE,
            (Kind::Atomic, true) => Access::REMOTE_ATOMIC,
        };
        let offset = u128::from(va).checked_sub(view.iova.into())?;
        let good = entry.pd == step.pd
            && (remote || matches!(entry.sort, Sort::Mr | Sort::Fast))
            && view.qpn.is_none_or(|qpn| qpn == step.qpn)
            && view.access.contains(need)
            && offset + u128::from(touch.len) <= view.len as u128;
        let start = good.then(|| view.start + usize::try_from(offset).expect("in the region"))?;
        (!word || (touch.len == 8 && start.is_multiple_of(8))).then_some(start)
    }
}

struct World {
    table: MrTable,
    region: Arc<Region>,
    model: Model,
    /// Every key there ever was, and one that never was.
    keys: Vec<u32>,
}

impl World {
    fn new(seed: u64) -> Self {
        let region = Region::alloc(SIZE).expect("memory");
        let memory = core::array::from_fn(|n| u8::try_from(n).expect("small"));
        region.write_at(0, &memory).expect("in bounds");
        let model = Model { entries: Vec::new(), memory, region_addr: region.addr() };
        // Few slots, so that they are used again.
        let table = MrTable::new(seed, MrLimits { max_entries: 6 });
        Self { table, region, model, keys: vec![0x777] }
    }

    fn created(&mut self, key: Option<u32>, step: &Step, sort: Sort, view: Option<View>) {
        let room = self.model.entries.len() < 6;
        let allowed = room && (sort != Sort::Mr || view.is_some());
        assert_eq!(key.is_some(), allowed, "{step:?}");
        if let Some(key) = key {
            assert!(self.model.find(key).is_none(), "two entries with one key");
            self.keys.push(key);
            self.model.entries.push(Entry { key, pd: step.pd, sort, view });
        }
    }

    fn step(&mut self, step: &Step) {
        let (pd, qpn) = (step.pd, step.qpn);
        let key = self.keys[step.key.index(self.keys.len())];
        match step.op {
            Op::Reg(spot) => {
                let Spot { offset, len, iova, access } = spot;
                let region = Arc::clone(&self.region);
                let made = self.table.reg(pd, region, offset, len, iova, access);
                let view = self.model.view(spot);
                self.created(made.ok().map(|key| key.0), step, Sort::Mr, view);
            }
            Op::AllocMr => {
                let made = self.table.alloc_mr(pd, Arc::clone(&self.region));
                self.created(made.ok().map(|key| key.0), step, Sort::Fast, None);
            }
            Op::AllocMw(kind) => {
                let made = self.table.alloc_mw(pd, kind);
                self.created(made.ok().map(|key| key.0), step, Sort::Window(kind), None);
            }
            Op::Rereg(spot, access) => self.rereg(step, key, spot, access),
            Op::Dereg | Op::DeallocMw => self.destroy(step, key),
            Op::Map(tag, spot) => self.map(step, key & !0xff | u32::from(tag), spot),
            Op::Bind(bind) => self.bind(step, key, bind),
            Op::InvalidateLocal => {
                let busy = self.model.has_windows(key);
                let good = self.model.find_mut(key).filter(|entry| match entry.sort {
                    Sort::Mr | Sort::Window(MwType::One) => false,
                    Sort::Fast => entry.pd == pd && !busy,
                    Sort::Window(MwType::Two) => entry.pd == pd,
                });
                let result = self.table.invalidate_local(pd, Rkey(key));
                assert_eq!(result.is_ok(), good.is_some(), "{step:?} {result:?}");
                good.into_iter().for_each(|entry| entry.view = None);
            }
            Op::InvalidateRemote => {
                let busy = self.model.has_windows(key);
                let good =
                    self.model.find_mut(key).filter(|entry| match (entry.sort, entry.view) {
                        (Sort::Fast, Some(_)) => entry.pd == pd && !busy,
                        (Sort::Window(MwType::Two), Some(view)) => {
                            entry.pd == pd && view.qpn == Some(qpn)
                        }
                        _ => false,
                    });
                let result = self.table.invalidate_remote(pd, qpn, Rkey(key));
                assert_eq!(result.is_ok(), good.is_some(), "{step:?} {result:?}");
                good.into_iter().for_each(|entry| entry.view = None);
            }
            Op::UnbindQp => {
                self.table.unbind_qp(qpn);
                for entry in &mut self.model.entries {
                    entry.view = entry.view.filter(|view| view.qpn != Some(qpn));
                }
            }
            Op::Local(touch) => self.touch(step, key, touch, false),
            Op::Remote(touch) => self.touch(step, key, touch, true),
        }
    }

    fn rereg(&mut self, step: &Step, key: u32, spot: Option<Spot>, access: Option<Access>) {
        let range = spot.map(|s| (Arc::clone(&self.region), s.offset, s.len, s.iova));
        let result = self.table.rereg(Lkey(key), Rereg { pd: Some(step.pd), range, access });
        let busy = self.model.has_windows(key);
        let view = self.model.find(key).and_then(|entry| {
            let old = entry.view.filter(|_| entry.sort == Sort::Mr && !busy)?;
            let access = access.unwrap_or(old.access);
            match spot {
                Some(spot) => self.model.view(Spot { access, ..spot }),
                None => {
                    let spot = Spot { offset: old.start, len: old.len, iova: Iova::At(0), access };
                    let view = self.model.view(spot)?;
                    Some(View { iova: old.iova, ..view })
                }
            }
        });
        assert_eq!(result.is_ok(), view.is_some(), "{step:?} {result:?}");
        if let (Ok(old), Some(entry)) = (result, self.model.find_mut(key)) {
            assert!(old.is_quiet());
            (entry.pd, entry.view) = (step.pd, view);
        }
    }

    fn destroy(&mut self, step: &Step, key: u32) {
        let window = matches!(step.op, Op::DeallocMw);
        let is_window = |entry: &Entry| matches!(entry.sort, Sort::Window(_));
        let exists = self.model.find(key).is_some_and(|entry| is_window(entry) == window);
        let good = exists && !self.model.has_windows(key);
        let done = match window {
            true => self.table.dealloc_mw(Rkey(key)).is_ok(),
            false => self.table.dereg(Lkey(key)).is_ok_and(|dereg| dereg.is_quiet()),
        };
        assert_eq!(done, good, "{step:?}");
        if done {
            self.model.entries.retain(|entry| entry.key != key);
        }
    }

    fn map(&mut self, step: &Step, key: u32, spot: Spot) {
        let Spot { offset, len, iova, access } = spot;
        let result = self.table.map(step.pd, Lkey(key), offset, len, iova, access);
        let view = self.model.view(spot);
        let free = |entry: &&mut Entry| {
            entry.key >> 8 == key >> 8
                && entry.sort == Sort::Fast
                && entry.pd == step.pd
                && entry.view.is_none()
        };
        let entry = self.model.entries.iter_mut().find(free).filter(|_| view.is_some());
        assert_eq!(result.is_ok(), entry.is_some(), "{step:?} {result:?}");
        if let Some(entry) = entry {
            (entry.key, entry.view) = (key, view);
            self.keys.push(key);
        }
    }

    fn bind(&mut self, step: &Step, key: u32, op: BindOp) {
        let mr = self.keys[op.mr.index(self.keys.len())];
        let iova = self.model.find(mr).and_then(|entry| entry.view).map_or(0, |view| view.iova);
        let addr = iova.wrapping_add_signed(op.from);
        let BindOp { len, access, zero_based, .. } = op;
        let bind = Bind { mr: Lkey(mr), addr, len, access, zero_based };
        let view = self.model.bound(step, key, mr, addr, op);
        let result = match op.kind {
            MwType::One => {
                let new = Rkey(key & !0xff | (key.wrapping_add(1) & 0xff));
                self.table.bind_mw1(step.pd, Rkey(key), new, bind).map(|()| new)
            }
            MwType::Two => {
                let new = Rkey(key & !0xff | u32::from(op.tag));
                self.table.bind_mw2(step.pd, step.qpn, Rkey(key), new, bind).map(|()| new)
            }
        };
        // A window of type 1 is unbound by binding it to nothing, wherever that is.
        let unbind = op.kind == MwType::One && op.len == 0;
        let good = match self.model.find(key) {
            Some(entry) if unbind => entry.sort == Sort::Window(MwType::One) && entry.pd == step.pd,
            _ => view.is_some(),
        };
        assert_eq!(result.is_ok(), good, "{step:?} {result:?}");
        if let (Ok(new), Some(entry)) = (result, self.model.find_mut(key)) {
            (entry.key, entry.view) = (new.0, view.filter(|_| !unbind));
            self.keys.push(new.0);
        }
    }

    fn touch(&mut self, step: &Step, key: u32, touch: Touch, remote: bool) {
        let iova = self.model.find(key).and_then(|entry| entry.view).map_or(0, |view| view.iova);
        let va = iova.wrapping_add_signed(touch.from);
        let target = self.model.target(step, key, va, touch, remote);
        let given = match touch.kind {
            Kind::Read => self.read(self.grant(step, key, va, touch, remote), target),
            Kind::Write => {
                let grant = self.grant(step, key, va, touch, remote);
                self.write(grant, target, touch.byte)
            }
            Kind::Atomic => {
                let grant = self.grant(step, key, va, touch, remote);
                self.add(grant, target, touch.byte)
            }
        };
        assert_eq!(given, target.is_some(), "{step:?} with {key:#x} at {va:#x}");
    }

    fn grant<R: Right>(
        &self,
        step: &Step,
        key: u32,
        va: u64,
        touch: Touch,
        remote: bool,
    ) -> Option<Grant<R>> {
        let grant = match remote {
            true => {
                self.table.grant_remote(step.pd, step.qpn, Rkey(key), va, touch.len.into()).ok()?
            }
            false => self.table.grant_local(step.pd, Lkey(key), va, touch.len).ok()?,
        };
        assert_eq!(grant.len(), touch.len as usize);
        Some(grant)
    }

    fn read(&self, grant: Option<Grant<Read>>, target: Option<usize>) -> bool {
        let (Some(grant), Some(start)) = (&grant, target) else {
            return grant.is_some();
        };
        let mut out = vec![0; grant.len()];
        grant.copy_out(0, &mut out).expect("in bounds");
        assert_eq!(out, self.model.memory[start..start + grant.len()]);
        true
    }

    fn write(&mut self, grant: Option<Grant<Write>>, target: Option<usize>, byte: u8) -> bool {
        let (Some(grant), Some(start)) = (&grant, target) else {
            return grant.is_some();
        };
        grant.copy_in(0, &vec![byte; grant.len()]).expect("in bounds");
        assert!(grant.copy_in(0, &vec![byte; grant.len() + 1]).is_err());
        self.model.memory[start..start + grant.len()].fill(byte);
        true
    }

    fn add(&mut self, grant: Option<Grant<Atomic>>, target: Option<usize>, byte: u8) -> bool {
        let (Some(grant), Some(start)) = (&grant, target) else {
            return grant.is_some();
        };
        let word = &mut self.model.memory[start..start + 8];
        let before = u64::from_ne_bytes((&*word).try_into().expect("eight bytes"));
        assert_eq!(grant.fetch_add(byte.into()), before);
        word.copy_from_slice(&before.wrapping_add(byte.into()).to_ne_bytes());
        true
    }

    /// What must hold after every step.
    fn check(&self) {
        let mut memory = [0; SIZE];
        self.region.read_at(0, &mut memory).expect("in bounds");
        assert_eq!(memory, self.model.memory, "bytes outside grants never change");
        assert_eq!(self.table.len(), self.model.entries.len());
        for pd in [PdId(1), PdId(2)] {
            let used = self.model.entries.iter().any(|entry| entry.pd == pd);
            assert_eq!(self.table.pd_in_use(pd), used);
        }
        for &key in &self.keys {
            let info = self.table.lookup(Rkey(key));
            let entry = self.model.find(key);
            assert_eq!(info.is_some(), entry.is_some());
            if let (Some(info), Some(entry)) = (info, entry) {
                assert_eq!(info.pd, entry.pd);
                assert_eq!(info.len, entry.view.map_or(0, |view| view.len as u64));
                assert_eq!(info.iova, entry.view.map_or(0, |view| view.iova));
            }
        }
    }
}

proptest! {
    #[test]
    fn the_table_does_what_the_model_does(
        seed: u64,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(seed);
        for step in &steps {
            world.step(step);
            world.check();
        }
    }
}
