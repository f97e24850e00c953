//! What happens when memory runs out.
//!
//! The manual pages promise NULL and `ENOMEM`; Rust ends the process when an allocation fails whose
//! caller cannot report that. Large allocations, whose size the program chooses, report it (rings,
//! tables, regions). For the small ones there are two precautions:
//!
//! - A call that creates something begins with [`admit`], which fails unless there is [`ROOM`] for
//!   everything small that the call allocates.
//! - Threads of the library and calls that post or poll have no such beginning. When the system has
//!   no memory for them, [`Reserving`] allocates from a pool that is part of the library.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::hint::black_box;
use core::ptr;
use std::alloc::System;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::errno::Errno;

mod blocks;

use blocks::{Blocks, SIZES, UNITS};

/// More than any call allocates in small pieces; opening a device is the greediest.
const ROOM: usize = 64 * 1024;

/// Fails with `ENOMEM` unless there is memory for a call that creates something.
pub(crate) fn admit() -> Result<(), Errno> {
    let mut room = Vec::<u8>::new();
    let has_room = room.try_reserve_exact(ROOM).is_ok();
    // Otherwise the compiler may leave out an allocation that is not used.
    black_box(room.as_ptr());
    if has_room { Ok(()) } else { Err(Errno::NO_MEMORY) }
}

/// The bytes of the pool.
const POOL: usize = UNITS * UNIT;
/// The bytes of a unit of the pool.
const UNIT: usize = 64;

/// The allocator of this library: that of the system, and a pool when the system has no memory.
struct Reserving;

#[global_allocator]
static ALLOCATOR: Reserving = Reserving;

/// The memory of the pool, aligned to the largest block: `UNIT << (SIZES - 1)`.
#[repr(align(8192))]
struct Pool(UnsafeCell<[u8; POOL]>);

// SAFETY: this module only takes the address; the bytes of a block belong to the code that has
// allocated the block.
unsafe impl Sync for Pool {}

static MEMORY: Pool = Pool(UnsafeCell::new([0; POOL]));
static BLOCKS: Mutex<Blocks> = Mutex::new(Blocks::NEW);

fn blocks() -> MutexGuard<'static, Blocks> {
    BLOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of the block size for a layout; `None` if it is too large for the pool.
fn size_of(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(UNIT).checked_next_power_of_two()?;
    let size = (bytes / UNIT).trailing_zeros() as usize;
    (size < SIZES).then_some(size)
}

/// The unit that an address is in, if it is in the pool.
fn unit_of(address: *mut u8) -> Option<usize> {
    let offset = address.addr().checked_sub(MEMORY.0.get().addr())?;
    (offset < POOL).then_some(offset / UNIT)
}

/// Allocates from the pool; NULL if that has no room either.
#[cold]
fn from_pool(layout: Layout) -> *mut u8 {
    let unit = size_of(layout).and_then(|size| blocks().take(size));
    let memory = MEMORY.0.get().cast::<u8>();
    // `unit` is below `UNITS`, so the block is within the pool.
    unit.map_or(ptr::null_mut(), |unit| memory.wrapping_add(unit * UNIT))
}

// SAFETY: the methods return what the system's allocator returns for the same layout, or a block of
// the pool: it is as large as the layout, aligned to its own size and therefore to the layout, and
// in use until `dealloc`, which tells the two apart by address. No method panics: indices are
// checked, and the lock ignores that a thread panicked with it.
unsafe impl GlobalAlloc for Reserving {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps to the contract of this method, which is the same.
        let made = unsafe { System.alloc(layout) };
        if made.is_null() { from_pool(layout) } else { made }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps to the contract of this method, which is the same.
        let made = unsafe { System.alloc_zeroed(layout) };
        if !made.is_null() {
            return made;
        }
        let made = from_pool(layout);
        if !made.is_null() {
            // SAFETY: the block is new, and at least as large as the layout.
            unsafe { made.write_bytes(0, layout.size()) };
        }
        made
    }

    #[inline]
    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        match unit_of(address).zip(size_of(layout)) {
            Some((unit, size)) => blocks().give(size, unit),
            // SAFETY: the memory is not from the pool, so it is from the system's allocator, with
            // this layout.
            None => unsafe { System.dealloc(address, layout) },
        }
    }

    #[inline]
    unsafe fn realloc(&self, address: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if unit_of(address).is_none() {
            // SAFETY: the memory is not from the pool, so it is from the system's allocator, with
            // this layout; the rest is the contract of this method.
            let made = unsafe { System.realloc(address, layout, new_size) };
            if !made.is_null() {
                return made;
            }
        }
        // SAFETY: by the contract of this method the new size, rounded up to the alignment, does
        // not overflow.
        let wanted = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        // SAFETY: the new size is not zero, by the contract of this method.
        let made = unsafe { self.alloc(wanted) };
        if !made.is_null() {
            // SAFETY: both have as many bytes, and the new one is not in use yet.
            unsafe { made.copy_from_nonoverlapping(address, layout.size().min(new_size)) };
            // SAFETY: the memory has this layout, and the caller does not use it any more.
            unsafe { self.dealloc(address, layout) };
        }
        made
    }
}
