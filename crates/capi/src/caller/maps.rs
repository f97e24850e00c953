//! The files that this process has mapped.

/// A part of a file in memory.
#[derive(Debug)]
pub(super) struct Mapping {
    start: usize,
    end: usize,
    offset: u64,
    /// Its device and inode, which tell files apart that have several names.
    pub(super) file: (u64, u64),
    pub(super) path: String,
}

impl Mapping {
    pub(super) fn holds(&self, addr: usize) -> bool {
        (self.start..self.end).contains(&addr)
    }

    /// Where in the file the byte at this address is.
    pub(super) fn offset_of(&self, addr: usize) -> u64 {
        self.offset.saturating_add(addr.saturating_sub(self.start) as u64)
    }

    /// A line of `/proc/self/maps`; `None` for memory without a file.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let (_rights, offset) = (words.next()?, words.next()?);
        let (major, minor) = words.next()?.split_once(':')?;
        let inode = words.next()?.parse().ok()?;
        let path = words.next()?.trim_start();
        let hex = |text| u64::from_str_radix(text, 16).ok();
        Some(Self {
            start: usize::from_str_radix(start, 16).ok()?,
            end: usize::from_str_radix(end, 16).ok()?,
            offset: hex(offset)?,
            file: ((hex(major)? << 32) | hex(minor)?, inode),
            path: path.starts_with('/').then(|| path.to_owned())?,
        })
    }
}

/// All mappings of files; none if the kernel does not tell.
pub(super) fn read() -> Vec<Mapping> {
    let text = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    text.lines().filter_map(Mapping::parse).collect()
}
