//! Memory of a program, made shareable in its place.
//!
//! What a program has allocated by itself is private to its process, so others read it through the
//! kernel. Where the program agrees, the whole pages of such memory are exchanged for those of a
//! file (see `shared`), at the same addresses and with the same bytes. Partial pages at the edges
//! stay as they are, because they hold what is not ours to share; payload that reaches into them
//! goes the ordinary way.
//!
//! Nobody may write to the memory meanwhile: what is written to a page between its copy and its
//! exchange is lost. A child of a fork has the pages in common with its parent from then on. They
//! stay exchanged when the registration ends, unless somebody who was stopped may still write
//! there.

use std::io;
use std::ops::Range;

use super::areas::{Area, areas};
use super::map::{exchange, make_private};
use super::shared::{Entry, Files, new_file};

/// From this length on, memory is worth a descriptor.
const LEAST: usize = 64 << 10;

/// How much is exchanged at once: a multiple of every size of pages.
const CHUNK: usize = 64 << 10;

/// What the kernel says of memory that must not be exchanged, and what that means.
const OBSTACLES: &[(&str, &str)] = &[
    ("ht", "it is of huge pages"),
    ("lo", "it is locked"),
    ("gd", "it is a stack"),
    ("dc", "it is kept from children of a fork"),
    ("wf", "it is kept from children of a fork"),
    ("io", "it is a device"),
    ("pf", "it is a device"),
    ("um", "somebody handles its page faults"),
    ("uw", "somebody handles its page faults"),
];

impl Files {
    /// Makes the whole pages in `len` bytes from `base` on shareable, as long as the entry lives;
    /// or says why not. Then some of them may have been exchanged all the same.
    ///
    /// # Safety
    /// The memory is the caller's, nobody writes to it until this returns, and it stays mapped as
    /// long as the entry lives.
    pub(super) unsafe fn remap_shared(&self, base: *mut u8, len: usize) -> io::Result<Converted> {
        let smaps = std::fs::read_to_string("/proc/self/smaps")?;
        let pages = whole_pages(&smaps, base.addr(), len)
            .map_err(|why| io::Error::new(io::ErrorKind::Unsupported, why))?;
        let file = new_file(pages.len())?;
        let start = base.wrapping_add(pages.start - base.addr());
        for done in (0..pages.len()).step_by(CHUNK) {
            let chunk = CHUNK.min(pages.len() - done);
            // SAFETY: whole pages of private memory that the caller gives us, as the kernel says.
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
        // What is written late goes to the file, and the program has the memory to itself again.
        let (at, len) = self.0.memory();
        let at = std::ptr::with_exposed_provenance_mut(at as usize);
        // SAFETY: whole pages of the program, as `convert` found, which are still mapped.
        if let Err(e) = unsafe { make_private(at, len) } {
            tracing::warn!("{len} bytes at {at:p} stay shared with a process that is stopped: {e}");
        }
    }
}

/// The whole pages in a range of addresses, if all of them are private, anonymous and nothing but
/// memory; otherwise what stands in the way.
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

/// What stands in the way of exchanging the pages of an area.
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
    // It is given back and used for other things, which a child of a fork must have to itself.
    if area.name == "[heap]" {
        return Err("it is part of the heap");
    }
    let mut flags = area.flags.split_whitespace();
    let obstacle = flags.find_map(|flag| OBSTACLES.iter().find(|(known, _)| *known == flag));
    obstacle.map_or(Ok(()), |(_, why)| Err(*why))
}

#[cfg(test)]
mod tests;
