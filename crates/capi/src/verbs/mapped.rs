//! What the program may do with its own memory.
//!
//! The kernel's drivers pin the pages of a region when it is registered, and refuse those that the
//! program could not access itself. Nothing is pinned here, but an adapter that copied to such a
//! page would end the program.

use core::ops::Range;
use std::fs;

/// Whether all of a range is mapped and can be read, and written if need be. Costs the same for a
/// page and for a terabyte. Where the kernel does not tell, every range passes.
pub(super) fn is_accessible(range: Range<usize>, write: bool) -> bool {
    range.is_empty()
        || fs::read_to_string("/proc/self/maps").map_or(true, |maps| covers(&maps, range, write))
}

/// Whether the areas of `maps`, which are in order, cover a range with these rights.
fn covers(maps: &str, range: Range<usize>, write: bool) -> bool {
    let mut next = range.start;
    for (area, rights) in maps.lines().filter_map(area) {
        if area.end <= next {
            continue;
        }
        let is_allowed = rights.starts_with(if write { "rw" } else { "r" });
        if area.start > next || !is_allowed {
            return false;
        }
        next = area.end;
        if next >= range.end {
            return true;
        }
    }
    false
}

/// Addresses and rights of a line.
fn area(line: &str) -> Option<(Range<usize>, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some((address(start)?..address(end)?, rest))
}
