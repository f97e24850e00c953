//! The function at a place in an ELF file of 64 bits and this machine's byte order.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Most bytes of a table that are read: a file with a longer one has no symbols here.
const MOST_BYTES: u64 = 64 << 20;

/// Kinds of sections: symbols for debuggers, and for the dynamic linker.
const SYMTAB: u64 = 2;
const DYNSYM: u64 = 11;

/// The kind of program headers that say where a part of the file is loaded.
const LOAD: u64 = 1;

/// Bytes of a symbol, and the type of symbols that are functions.
const SYMBOL: usize = 24;
const FUNCTION: u8 = 2;

/// A function, and how far behind its start the place is.
type Found = (String, u64);

/// The function at an offset of a file if its symbols name one, and the address at which the file
/// says that the offset is loaded. `None` if the file is not ELF or cannot be read.
pub(super) fn find(path: &Path, offset: u64) -> Option<(Option<Found>, u64)> {
    let file = File::open(path).ok()?;
    let header = read(&file, 0, 64).ok()?;
    if !header.starts_with(b"\x7fELF\x02") {
        return None;
    }
    let vaddr = load_address(&file, &header, offset)?;
    let sections = table(&file, &header, 40, 58)?;
    let named = |kind| symbols(&file, &sections, kind).and_then(|all| all.at(vaddr));
    Some((named(SYMTAB).or_else(|| named(DYNSYM)), vaddr))
}

/// The address that the program headers give to an offset.
fn load_address(file: &File, header: &[u8], offset: u64) -> Option<u64> {
    table(file, header, 32, 54)?.iter().find_map(|part| {
        let [start, vaddr, len] = [8, 16, 32].map(|at| number(part, at, 8));
        let (start, vaddr, len) = (start?, vaddr?, len?);
        let inside = offset.checked_sub(start).filter(|inside| *inside < len)?;
        (number(part, 0, 4)? == LOAD).then(|| vaddr.checked_add(inside))?
    })
}

/// The entries of a table. Its place stands in the header at `at`, the size and number of its
/// entries at `shape`.
fn table(file: &File, header: &[u8], at: usize, shape: usize) -> Option<Vec<Vec<u8>>> {
    let (size, count) = (number(header, shape, 2)?, number(header, shape + 2, 2)?);
    let bytes = read(file, number(header, at, 8)?, size.checked_mul(count)?).ok()?;
    let size = usize::try_from(size).ok().filter(|size| *size >= 56)?;
    Some(bytes.chunks_exact(size).map(<[u8]>::to_vec).collect())
}

/// A table of symbols, and the texts that it refers to.
struct Symbols {
    entries: Vec<u8>,
    texts: Vec<u8>,
}

fn symbols(file: &File, sections: &[Vec<u8>], kind: u64) -> Option<Symbols> {
    let contents =
        |section: &[u8]| read(file, number(section, 24, 8)?, number(section, 32, 8)?).ok();
    let section = sections.iter().find(|section| number(section, 4, 4) == Some(kind))?;
    let texts = sections.get(usize::try_from(number(section, 40, 4)?).ok()?)?;
    Some(Symbols { entries: contents(section)?, texts: contents(texts)? })
}

impl Symbols {
    /// The function that this address is in.
    fn at(&self, vaddr: u64) -> Option<Found> {
        self.entries.chunks_exact(SYMBOL).find_map(|symbol| {
            let is_function = symbol[4] & 0xf == FUNCTION;
            let (start, len) = (number(symbol, 8, 8)?, number(symbol, 16, 8)?);
            let inside = vaddr.checked_sub(start).filter(|inside| *inside < len)?;
            let text = self.texts.get(usize::try_from(number(symbol, 0, 4)?).ok()?..)?;
            let text = text.split(|byte| *byte == 0).next().filter(|text| !text.is_empty())?;
            is_function.then(|| (String::from_utf8_lossy(text).into_owned(), inside))
        })
    }
}

fn read(file: &File, at: u64, len: u64) -> io::Result<Vec<u8>> {
    let len = usize::try_from(len.min(MOST_BYTES + 1)).unwrap_or(usize::MAX);
    if len as u64 > MOST_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

/// The number of `len` bytes at `at`.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let mut word = [0; 8];
    let bytes = bytes.get(at..at.checked_add(len)?)?;
    if cfg!(target_endian = "little") {
        word.get_mut(..len)?.copy_from_slice(bytes);
        return Some(u64::from_le_bytes(word));
    }
    word.get_mut(8 - len..)?.copy_from_slice(bytes);
    Some(u64::from_be_bytes(word))
}
