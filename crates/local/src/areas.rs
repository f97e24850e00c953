//! The address space of this process, as the kernel describes it in `/proc`.

use std::ops::Range;

/// One mapping in the address space, as the kernel describes it.
#[derive(Debug)]
pub(super) struct Area<'a> {
    pub(super) range: Range<usize>,
    pub(super) rights: &'a str,
    /// The offset in the mapped file, the device of the file and its inode number, which is zero if
    /// the mapping is not of a file.
    pub(super) offset: u64,
    pub(super) device: (u64, u64),
    pub(super) inode: u64,
    pub(super) name: &'a str,
    pub(super) page: Option<usize>,
    pub(super) flags: &'a str,
}

/// Parses `/proc/self/maps` or `/proc/self/smaps`: for each area a line with its addresses, then a
/// line for each property.
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

/// Parses the first line of an area; `None` if it is another line.
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
