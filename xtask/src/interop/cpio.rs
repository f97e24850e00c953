//! The archive that a kernel unpacks as its first file system: cpio in the "new ASCII" format.

/// Kinds of files and their rights, as in `st_mode`.
const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// An archive that grows.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// A folder; the ones above it must have been added.
    pub(super) fn folder(&mut self, path: &str) {
        self.entry(path, DIRECTORY, &[]);
    }

    /// A file that may be executed.
    pub(super) fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, PROGRAM, content);
    }

    /// The whole archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let links = if mode == DIRECTORY { 2 } else { 1 };
        let (name_len, len) = (path.len() + 1, content.len());
        // Inode, mode, owner, group, links, time, length, four numbers of devices, length of the
        // name with its NUL, and a checksum that this format does not use.
        let head = [self.entries, mode, 0, 0, links, 0].map(|field| format!("{field:08x}"));
        let zeros = "0".repeat(4 * 8);
        let head = format!("070701{}{len:08x}{zeros}{name_len:08x}{:08x}", head.concat(), 0);
        self.bytes.extend(head.bytes());
        self.bytes.extend(path.bytes().chain([0]));
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_their_lengths_right() {
        let mut archive = Archive::default();
        archive.folder("bin");
        archive.file("bin/x", b"12345");
        let bytes = archive.finish();
        let text = String::from_utf8(bytes).expect("ASCII");
        let second = text[1..].find("070701").expect("a second header") + 1;
        assert_eq!(second, 116, "a header of 110, `bin` and its NUL, and padding");
        assert_eq!(&text[second + 54..second + 62], "00000005", "length of the content");
        assert_eq!(&text[second + 94..second + 102], "00000006", "length of the name");
        assert_eq!(&text[second + 110..second + 124], "bin/x\x0012345\0\0\0");
        assert!(text.trim_end_matches('\0').ends_with("TRAILER!!!"));
    }
}
