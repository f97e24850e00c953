//! Registration, windows and grants, against a model that is too simple to be wrong.
//!
//! What the property tests of the crate do not do: grants are held while keys come and go.

use std::sync::Arc;

use feroce_mem::{
    Access, Bind, Dereg, Grant, Iova, MrLimits, MrTable, MwType, PdId, Read, Region, Rereg, Write,
};
use feroce_wire::{Lkey, Qpn, Rkey};

use crate::input::Input;

const MEMORY: usize = 128;
const MAX_ACTIONS: usize = 300;

/// A key as the table should know it.
#[derive(Clone, Copy, Debug)]
struct Known {
    key: u32,
    pd: PdId,
    /// Range in the region and rights; none for what is not mapped or bound.
    view: Option<View>,
    window: bool,
}

#[derive(Clone, Copy, Debug)]
struct View {
    start: usize,
    len: usize,
    iova: u64,
    access: Access,
    /// The one queue pair that may use it, for a window of type 2.
    qpn: Option<Qpn>,
}

/// A grant that is held, and where it must lead.
struct Held {
    grant: Grant<Write>,
    start: usize,
}

struct World {
    table: MrTable,
    region: Arc<Region>,
    memory: [u8; MEMORY],
    known: Vec<Known>,
    held: Vec<Held>,
    /// Registrations that ended.
    ended: Vec<Dereg>,
}

/// Interprets the input as a sequence of actions on a table.
pub fn mem_table(bytes: &[u8]) {
    let region = Region::alloc(MEMORY).expect("memory");
    let table = MrTable::new(7, MrLimits { max_entries: 12 });
    let memory = [0; MEMORY];
    let (known, held, ended) = (Vec::new(), Vec::new(), Vec::new());
    let mut world = World { table, region, memory, known, held, ended };
    let mut input = Input::new(bytes);
    for _ in 0..MAX_ACTIONS {
        if input.is_empty() {
            break;
        }
        world.act(&mut input);
        world.check();
    }
    world.held.clear();
    assert!(world.ended.iter().all(Dereg::is_quiet), "no grant is left");
}

impl World {
    fn act(&mut self, input: &mut Input<'_>) {
        let choice = input.u8();
        let pd = PdId(1 + u32::from(choice >> 7));
        match choice & 0x0f {
            0..=2 => self.reg(pd, input),
            3 => self.rereg(pd, input),
            4 => self.dereg(input),
            5 => self.alloc(pd, input),
            6 => self.map(pd, input),
            7 | 8 => self.bind(pd, input),
            9 => self.invalidate(pd, input),
            10 => self.release(input),
            11 => self.unbind(input),
            _ => self.touch(pd, input),
        }
    }

    /// One of the keys that exist, or a number that may have been one.
    fn key(&self, input: &mut Input<'_>) -> u32 {
        let number = input.u8();
        if number >= 0xf0 || self.known.is_empty() {
            return u32::from(number) << 8 | u32::from(input.u8());
        }
        self.known[usize::from(number) % self.known.len()].key
    }

    fn find(&mut self, key: u32) -> Option<&mut Known> {
        self.known.iter_mut().find(|known| known.key == key)
    }

    fn spot(input: &mut Input<'_>) -> (usize, usize, Iova, Access) {
        let (start, len) = (usize::from(input.u8()), usize::from(input.u8()));
        let iova = match input.below(4) {
            0 => Iova::Natural,
            1 => Iova::ZeroBased,
            2 => Iova::At(u64::from(input.u8())),
            _ => Iova::At(u64::MAX - u64::from(input.u8())),
        };
        let access = Access::from_bits_truncate(u32::from(input.u16()));
        (start, len, iova, access)
    }

    /// What the table says of a key that was just given a range, after a check of the range.
    fn view(&self, key: u32, start: usize, len: usize) -> View {
        assert!(start + len <= MEMORY, "registered beyond the region");
        let info = self.table.lookup(Lkey(key)).expect("it was just made");
        assert_eq!(info.len, len as u64);
        View { start, len, iova: info.iova, access: info.access, qpn: None }
    }

    fn reg(&mut self, pd: PdId, input: &mut Input<'_>) {
        let (start, len, iova, access) = Self::spot(input);
        let region = Arc::clone(&self.region);
        if let Ok(key) = self.table.reg(pd, region, start, len, iova, access) {
            assert!(self.find(key.0).is_none(), "two entries with one key");
            let view = Some(self.view(key.0, start, len));
            self.known.push(Known { key: key.0, pd, view, window: false });
        }
    }

    fn rereg(&mut self, pd: PdId, input: &mut Input<'_>) {
        let key = self.key(input);
        let (start, len, iova, access) = Self::spot(input);
        let range = Some((Arc::clone(&self.region), start, len, iova));
        let change = Rereg { pd: Some(pd), range, access: Some(access) };
        if let Ok(old) = self.table.rereg(Lkey(key), change) {
            self.ended.push(old);
            let view = self.view(key, start, len);
            let known = self.find(key).expect("a key that was made");
            (known.pd, known.view) = (pd, Some(view));
        }
    }

    fn dereg(&mut self, input: &mut Input<'_>) {
        let key = self.key(input);
        let window = self.find(key).is_some_and(|known| known.window);
        let done = if window {
            self.table.dealloc_mw(Rkey(key)).is_ok()
        } else {
            self.table.dereg(Lkey(key)).map(|dereg| self.ended.push(dereg)).is_ok()
        };
        if done {
            assert!(self.find(key).is_some(), "a key that was never made");
            self.known.retain(|known| known.key != key);
        }
    }

    /// A window, or a key for fast registration.
    fn alloc(&mut self, pd: PdId, input: &mut Input<'_>) {
        let made = match input.below(3) {
            0 => self.table.alloc_mr(pd, Arc::clone(&self.region)).map(|key| (key.0, false)),
            1 => self.table.alloc_mw(pd, MwType::One).map(|key| (key.0, true)),
            _ => self.table.alloc_mw(pd, MwType::Two).map(|key| (key.0, true)),
        };
        if let Ok((key, window)) = made {
            assert!(self.find(key).is_none(), "two entries with one key");
            self.known.push(Known { key, pd, view: None, window });
        }
    }

    fn map(&mut self, pd: PdId, input: &mut Input<'_>) {
        let old = self.key(input);
        let key = old & !0xff | u32::from(input.u8());
        let (start, len, iova, access) = Self::spot(input);
        if self.table.map(pd, Lkey(key), start, len, iova, access).is_ok() {
            let view = Some(self.view(key, start, len));
            let known = self.known.iter_mut().find(|known| known.key >> 8 == key >> 8);
            let known = known.expect("a key that was made");
            (known.key, known.view) = (key, view);
        }
    }

    fn bind(&mut self, pd: PdId, input: &mut Input<'_>) {
        let (mw, mr) = (self.key(input), self.key(input));
        let new = Rkey(mw & !0xff | u32::from(input.u8()));
        let qpn = Qpn::new(5 + u32::from(input.flag()));
        let whole = self.find(mr).and_then(|known| known.view);
        let iova = whole.map_or(0, |view| view.iova);
        let (from, len) = (u64::from(input.u8()), u64::from(input.u8()));
        let addr = iova.wrapping_add(from);
        let access = Access::from_bits_truncate(u32::from(input.u16()));
        let zero_based = input.flag();
        let bind = Bind { mr: Lkey(mr), addr, len, access, zero_based };
        let kind = match self.table.lookup(Rkey(mw)).map(|info| info.kind) {
            Some(feroce_mem::MrKind::Window(kind)) => kind,
            _ => MwType::Two,
        };
        if self.table.bind_mw(pd, qpn, Rkey(mw), new, bind).is_err() {
            return;
        }
        let view = (len > 0).then(|| {
            let whole = whole.expect("bound to something that is mapped");
            assert!(from + len <= whole.len as u64, "bound beyond the region");
            assert!(whole.access.contains(Access::MW_BIND), "bound without the right to");
            View {
                start: whole.start + from as usize,
                len: len as usize,
                iova: self.table.lookup(new).expect("just bound").iova,
                access: self.table.lookup(new).expect("just bound").access,
                qpn: (kind == MwType::Two).then_some(qpn),
            }
        });
        let known = self.find(mw).expect("a key that was made");
        (known.key, known.view) = (new.0, view);
    }

    fn invalidate(&mut self, pd: PdId, input: &mut Input<'_>) {
        let key = self.key(input);
        let done = if input.flag() {
            self.table.invalidate_local(pd, Rkey(key)).is_ok()
        } else {
            self.table.invalidate_remote(pd, Qpn::new(5), Rkey(key)).is_ok()
        };
        if done {
            self.find(key).expect("a key that was made").view = None;
        }
    }

    fn unbind(&mut self, input: &mut Input<'_>) {
        let qpn = Qpn::new(5 + u32::from(input.flag()));
        self.table.unbind_qp(qpn);
        for known in &mut self.known {
            known.view = known.view.filter(|view| view.qpn != Some(qpn));
        }
    }

    fn release(&mut self, input: &mut Input<'_>) {
        if !self.held.is_empty() {
            let index = input.below(self.held.len());
            self.held.swap_remove(index);
        }
    }

    /// A peer or the adapter reads or writes.
    fn touch(&mut self, pd: PdId, input: &mut Input<'_>) {
        let key = self.key(input);
        let known = self.find(key).map(|known| *known);
        let view = known.and_then(|known| known.view);
        let va = view.map_or(0, |view| view.iova).wrapping_add(u64::from(input.u8()));
        let (len, how) = (u32::from(input.u8() % 64), input.u8());
        let (remote, write, qpn) = (how & 1 == 0, how & 2 == 0, Qpn::new(5 + u32::from(how >> 7)));
        let needed = match (remote, write) {
            (true, true) => Access::REMOTE_WRITE,
            (true, false) => Access::REMOTE_READ,
            (false, true) => Access::LOCAL_WRITE,
            (false, false) => Access::empty(),
        };
        let start = view.and_then(|view| {
            let from = va.checked_sub(view.iova)?;
            let fits = u128::from(from) + u128::from(len) <= view.len as u128;
            let may = known?.pd == pd
                && view.access.contains(needed)
                && (remote || !known?.window)
                && (!remote || view.qpn.is_none_or(|only| only == qpn));
            (fits && may).then_some(view.start + from as usize)
        });
        let allowed = len == 0 || start.is_some();
        if write {
            let grant: Result<Grant<Write>, _> = match remote {
                true => self.table.grant_remote(pd, qpn, Rkey(key), va, len.into()),
                false => self.table.grant_local(pd, Lkey(key), va, len),
            };
            assert_eq!(grant.is_ok(), allowed, "{known:?} {va:#x} {len} {how}");
            if let (Ok(grant), Some(start)) = (grant, start) {
                self.held.push(Held { grant, start });
            }
        } else {
            let grant: Result<Grant<Read>, _> = match remote {
                true => self.table.grant_remote(pd, qpn, Rkey(key), va, len.into()),
                false => self.table.grant_local(pd, Lkey(key), va, len),
            };
            assert_eq!(grant.is_ok(), allowed, "{known:?} {va:#x} {len} {how}");
            if let (Ok(grant), Some(start)) = (grant, start) {
                let mut out = vec![0; grant.len()];
                grant.copy_out(0, &mut out).expect("in bounds");
                assert_eq!(out, self.memory[start..start + out.len()]);
            }
        }
        // The holder of a grant may write through it, also after its key was revoked.
        for (i, held) in self.held.iter().enumerate() {
            let bytes = vec![how.wrapping_add(i as u8); held.grant.len()];
            held.grant.copy_in(0, &bytes).expect("in bounds");
            self.memory[held.start..held.start + bytes.len()].copy_from_slice(&bytes);
        }
        self.held.truncate(8);
    }

    /// What must hold after every action.
    fn check(&mut self) {
        let mut memory = [0; MEMORY];
        self.region.read_at(0, &mut memory).expect("in bounds");
        assert_eq!(memory, self.memory, "memory changed where no grant was written");
        assert_eq!(self.table.len(), self.known.len());
        for known in &self.known {
            assert!(self.table.lookup(Lkey(known.key)).is_some(), "{known:?} is gone");
        }
        if self.held.is_empty() {
            assert!(self.ended.iter().all(Dereg::is_quiet), "no grant is left");
        }
    }
}
