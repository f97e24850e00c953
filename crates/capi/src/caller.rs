//! Which function of the program called the library, for the warnings of lint.

mod maps;
mod symbols;

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use std::path::Path;

use crate::leave;
use maps::Mapping;

/// Frames of a call that are looked at. The library itself has fewer.
const MOST_FRAMES: usize = 64;

/// Libraries that call the program, and that the program does not mean when it calls verbs.
const SYSTEM: [&str; 3] = ["libc.so", "ld-linux", "libpthread"];

/// The function that called the library, such as `main+0x2c of server`. If its file has no such
/// symbol, the place in the file instead. `None` at exit, when the program calls nothing.
pub(crate) fn name() -> Option<String> {
    if leave::has_begun() {
        return None;
    }
    let mappings = maps::read();
    let find = |addr: usize| mappings.iter().find(|mapping| mapping.holds(addr));
    let own = find(name as fn() -> Option<String> as usize)?.file;
    // A return address is behind the call, and the call is what belongs to the function.
    let callers = frames().into_iter().map(|frame| frame.saturating_sub(1));
    let (addr, mapping) = callers
        .filter_map(|addr| find(addr).map(|mapping| (addr, mapping)))
        .find(|(_, mapping)| mapping.file != own)?;
    describe(addr, mapping)
}

fn describe(addr: usize, mapping: &Mapping) -> Option<String> {
    let file = Path::new(&mapping.path).file_name()?.to_string_lossy();
    if SYSTEM.iter().any(|system| file.starts_with(system)) {
        return None;
    }
    let at = symbols::find(Path::new(&mapping.path), mapping.offset_of(addr));
    Some(match at {
        Some((Some((symbol, offset)), _)) => format!("{symbol}+{offset:#x} of {file}"),
        Some((None, vaddr)) => {
            format!("{file}+{vaddr:#x}, which `addr2line -fe {} {vaddr:#x}` names", mapping.path)
        }
        None => format!("{file}+{:#x}", mapping.offset_of(addr)),
    })
}

/// The return addresses of the calls under way in this thread, the last call first.
fn frames() -> Vec<usize> {
    let mut frames: [*mut c_void; MOST_FRAMES] = [null_mut(); MOST_FRAMES];
    let room = c_int::try_from(frames.len()).unwrap_or(0);
    // SAFETY: the array has room for as many pointers as the call is told.
    let count = unsafe { libc::backtrace(frames.as_mut_ptr(), room) };
    let count = usize::try_from(count).unwrap_or(0);
    frames.iter().take(count).map(|frame| frame.addr()).collect()
}
