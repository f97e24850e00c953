//! The address space of this process, as the kernel describes it.

use std::ops::Range;

/// An area of the address space, as the kernel describes it.
#[derive(Debug)]
pub(super) struct Area<'a> {
    pub(super) range: Range<usize>,
    pub(super) rights: &'a str,
    /// Where in its file it begins, and which file that is: its device, and its number, which is
    /// zero if there is none.
    pub(super) offset: u64,
    pub(super) device: (u64, u64),
    pub(super) inode: u64,
    pub(super) name: &'a str,
    pub(super) page: Option<usize>,
    pub(super) flags: &'a str,
}

/// The areas in `/proc/self/maps`, or in `/proc/self/smaps`: a line with addresses, then a line for
/// each thing to say.
pub(super) fn areas(smaps: &str) -> impl Iterator<Item = Area<'_>> {
    let mut lines = smaps.lines().peekable();
    std::iter::from_fn(move || {
        let mut area = loop {
            if let Some(area) = head(lines.next()?) {
                break area;
            }
        };
        while let Some(line) = lines.next_if(|line| head(line).is_none()) {
            if let Some(size) = line.strip_prefix("KernelPageSize:") {
                let kib = size.trim().strip_suffix(" kB").and_then(|kib| kib.parse().ok());
                area.page = kib.map(|kib: usize| kib << 10);
            } else if let Some(flags) = line.strip_prefix("VmFlags:") {
                area.flags = flags;
            }
        }
        Some(area)
    })
}

/// The first line of an area.
fn head(line: &str) -> Option<Area<'_>> {
    let mut words = line.split_whitespace();
    let number = |text| u64::from_str_radix(text, 16).ok();
    let address = |text| usize::from_str_radix(text, 16).ok();
    let (start, end) = words.next()?.split_once('-')?;
    let (range, rights) = (address(start)?..address(end)?, words.next()?);
    let offset = number(words.next()?)?;
    let (major, minor) = words.next()?.split_once(':')?;
    let (device, inode) = ((number(major)?, number(minor)?), words.next()?.parse().ok()?);
    let name = words.next().unwrap_or("");
    Some(Area { range, rights, offset, device, inode, name, page: None, flags: "" })
}
