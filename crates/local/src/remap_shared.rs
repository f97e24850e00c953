//! Memory of a program, made shareable in place.
//!
//! Memory that a program has allocated by itself is private to its process, so peers read it
//! through the kernel. Where the program agrees, the whole pages of such memory are replaced by
//! those of a file (see `shared`), at the same addresses and with the same bytes. Partial pages at
//! the edges stay as they are, because they hold other data that must not be shared; payload that
//! reaches into them is sent like that of any private memory.
//!
//! No thread may write to the memory meanwhile: what it writes to a page between the copy and the
//! replacement is lost. From then on a child of a fork shares the pages with its parent. The pages
//! stay replaced when the registration ends, unless a stopped peer process may still write there.

use std::io;
use std::ops::Range;

use super::areas::{Area, areas};
use super::map::{exchange, make_private};
use super::shared::{Entry, Files, new_file};

/// Shorter memory is not worth a descriptor.
const LEAST: usize = 64 << 10;

/// How much is replaced at once: a multiple of every page size.
const CHUNK: usize = 64 << 10;

/// Flags of the kernel for memory that must not be replaced, and what they mean.
const OBSTACLES: &[(&str, &str)] = &[
    ("ht", "it is of huge pages"),
    ("lo", "it is locked"),
    ("gd", "it is a stack"),
    ("dc", "it is kept from children of a fork"),
    ("wf", "it is kept from children of a fork"),
    ("io", "it is a device"),
    ("pf", "it is a device"),
    ("um", "userfaultfd handles its page faults"),
    ("uw", "userfaultfd handles its page faults"),
];

impl Files {
    /// Makes the whole pages in `len` bytes from `base` on shareable, as long as the entry lives;
    /// otherwise the error says why not. After an error some of the pages may have been replaced.
    ///
    /// # Safety
    /// The caller owns the memory, no thread writes to it until this returns, and it stays mapped
    /// as long as the entry lives.
    pub(super) unsafe fn remap_shared(&self, base: *mut u8, len: usize) -> io::Result<Converted> {
        let smaps = std::fs::read_to_string("/proc/self/smaps")?;
        let pages = whole_pages(&smaps, base.addr(), len)
            .map_err(|why| io::Error::new(io::ErrorKind::Unsupported, why))?;
        let file = new_file("feroce", pages.len())?;
        let start = base.wrapping_add(pages.start - base.addr());
        for done in (0..pages.len()).step_by(CHUNK) {
            let chunk = CHUNK.min(pages.len() - done);
            // SAFETY: whole pages of private memory, as the kernel says, which the caller owns.
            unsafe { exchange(start.wrapping_add(done), chunk, &file, done) }?;
        }
        Ok(Converted(self.list(file, 0, pages.start as u64, pages.len())?))
    }
}

/// Memory that was made shareable. It stays mapped as long as this lives.
#[derive(Debug)]
pub(super) struct Converted(Entry);

impl Drop for Converted {
    fn drop(&mut self) {
        if !self.0.files().has_late_writer() {
            return;
        }
        // A late write then goes to the file, and the program has the memory to itself again.
        let (at, len) = self.0.memory();
        let at = std::ptr::with_exposed_provenance_mut(at as usize);
        // SAFETY: whole pages of the program, as `remap_shared` found, which are still mapped.
        if let Err(e) = unsafe { make_private(at, len) } {
            tracing::warn!("{len} bytes at {at:p} stay shared with a process that is stopped: {e}");
        }
    }
}

/// The whole pages in a range of addresses, if all of them are private, anonymous, plain memory;
/// otherwise what prevents their replacement.
fn whole_pages(smaps: &str, at: usize, len: usize) -> Result<Range<usize>, &'static str> {
    let end = at.checked_add(len).ok_or("it is not all there")?;
    let mut pages = None;
    let mut checked = at;
    for area in areas(smaps).skip_while(|area| area.range.end <= at) {
        if checked >= end {
            break;
        }
        if area.range.start > checked {
            return Err("it is not all there");
        }
        let page =
            area.page.filter(|page| page.is_power_of_two()).ok_or("its pages are unknown")?;
        pages.get_or_insert_with(|| at.next_multiple_of(page)..end / page * page);
        check(&area)?;
        checked = area.range.end;
    }
    let pages = pages.filter(|_| checked >= end).ok_or("it is not all there")?;
    if pages.len() < LEAST { Err("it is too short to be worth it") } else { Ok(pages) }
}

/// Returns an error with the reason if the pages of an area must not be replaced.
fn check(area: &Area<'_>) -> Result<(), &'static str> {
    if area.rights.ends_with('s') {
        return Err("it is shared already");
    }
    if area.inode != 0 {
        return Err("it is mapped from a file");
    }
    if !area.rights.starts_with("rw") {
        return Err("it may not be read and written");
    }
    // The allocator reuses heap memory for other data, which a child of a fork must not share.
    if area.name == "[heap]" {
        return Err("it is part of the heap");
    }
    let mut flags = area.flags.split_whitespace();
    let obstacle = flags.find_map(|flag| OBSTACLES.iter().find(|(known, _)| *known == flag));
    obstacle.map_or(Ok(()), |(_, why)| Err(*why))
}

#[cfg(test)]
mod tests;
