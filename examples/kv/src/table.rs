//! The table that clients read: fixed places in registered memory.
//!
//! It has buckets of [`BUCKET`] bytes, and the checksum of a key selects one. A bucket has room for
//! four entries; a READ takes the whole bucket. An entry is
//!
//! ```text
//! checksum u32 | length of key u16 | length of value u16 | version u64 | key | value
//! ```
//!
//! in little-endian order. The checksum is of all that follows it: a READ has no order within, so
//! it may find the beginning of one version and the end of another. The first byte of a bucket says
//! that there are keys which found no place; values that are too long for an entry have only their
//! version there. Both are asked for by a call.

use feroce::{Access, Error, Mr, Pd, Remote};

/// Length of a bucket.
pub const BUCKET: usize = 2048;
const ENTRIES: usize = 4;
const FIRST: usize = 16;
const ENTRY: usize = (BUCKET - FIRST) / ENTRIES;
const HEAD: usize = 16;
/// Length of a value that is elsewhere.
const ELSEWHERE: u16 = u16::MAX;

/// What a bucket says of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// Its version and value.
    Value(u64, Vec<u8>),
    /// There is no value.
    Absent,
    /// The table does not have it; the program at the other end knows.
    Elsewhere,
    /// The entry is being written: read again.
    Torn,
}

/// The bucket of a key, of as many.
pub fn bucket_of(key: &str, buckets: u32) -> u32 {
    crc32fast::hash(key.as_bytes()) % buckets.max(1)
}

/// Looks for a key in the bytes of its bucket.
pub fn find(bucket: &[u8], key: &str) -> Found {
    let Some((head, entries)) = bucket.split_at_checked(FIRST) else { return Found::Torn };
    let mut is_torn = false;
    for entry in entries.chunks_exact(ENTRY) {
        match parse(entry) {
            Some(Some((found, version, value))) if found == key.as_bytes() => {
                return value.map_or(Found::Elsewhere, |value| Found::Value(version, value));
            }
            Some(_) => {}
            // It may be the one that is wanted.
            None => is_torn = true,
        }
    }
    match (is_torn, head[0]) {
        (true, _) => Found::Torn,
        (false, 0) => Found::Absent,
        (false, _) => Found::Elsewhere,
    }
}

type Entry<'a> = (&'a [u8], u64, Option<Vec<u8>>);

/// An entry that is whole, or that there is none; `None` if it is neither.
fn parse(entry: &[u8]) -> Option<Option<Entry<'_>>> {
    if entry.iter().all(|&byte| byte == 0) {
        return Some(None);
    }
    let (checksum, rest) = entry.split_first_chunk()?;
    let (key_len, after) = rest.split_first_chunk()?;
    let (value_len, after) = after.split_first_chunk()?;
    let (version, after) = after.split_first_chunk()?;
    let (key_len, value_len) = (u16::from_le_bytes(*key_len), u16::from_le_bytes(*value_len));
    let len = if value_len == ELSEWHERE { 0 } else { usize::from(value_len) };
    let (key, after) = after.split_at_checked(key_len.into())?;
    let value = after.get(..len)?;
    let covered = rest.get(..HEAD - 4 + key.len() + len)?;
    if crc32fast::hash(covered) != u32::from_le_bytes(*checksum) {
        return None;
    }
    let value = (value_len != ELSEWHERE).then(|| value.to_vec());
    Some(Some((key, u64::from_le_bytes(*version), value)))
}

fn emit(key: &str, version: u64, value: &[u8]) -> Vec<u8> {
    let is_here = HEAD + key.len() + value.len() <= ENTRY;
    let value_len = u16::try_from(value.len()).ok().filter(|_| is_here).unwrap_or(ELSEWHERE);
    let mut rest = u16::try_from(key.len()).unwrap_or(u16::MAX).to_le_bytes().to_vec();
    rest.extend(value_len.to_le_bytes());
    rest.extend(version.to_le_bytes());
    rest.extend(key.as_bytes());
    rest.extend(if is_here { value } else { &[] });
    [&crc32fast::hash(&rest).to_le_bytes()[..], &rest].concat()
}

/// The table of a node, which writes it.
#[derive(Debug)]
pub struct Table {
    mr: Mr,
    /// Keys of the entries, in their places.
    keys: Vec<Option<String>>,
}

impl Table {
    /// An empty one with so many buckets, in memory that peers of the domain may read.
    pub fn new(pd: &Pd, buckets: u32) -> Result<Self, Error> {
        let buckets = buckets.max(1) as usize;
        let mr = pd.alloc_mr(buckets * BUCKET, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
        Ok(Self { mr, keys: vec![None; buckets * ENTRIES] })
    }

    /// Where it begins.
    pub fn remote(&self) -> Remote {
        self.mr.remote(0)
    }

    /// How many buckets it has.
    pub fn buckets(&self) -> u32 {
        u32::try_from(self.keys.len() / ENTRIES).unwrap_or(u32::MAX)
    }

    /// Writes the value of a key.
    pub fn put(&mut self, key: &str, version: u64, value: &[u8]) -> Result<(), Error> {
        let bucket = bucket_of(key, self.buckets()) as usize;
        let places = bucket * ENTRIES..(bucket + 1) * ENTRIES;
        let is_of = |at: &usize, key| self.keys[*at].as_deref() == key;
        let own = places.clone().find(|at| is_of(at, Some(key)));
        let Some(at) = own.or_else(|| places.clone().find(|at| is_of(at, None))) else {
            return self.mr.write_at(bucket * BUCKET, &[1]);
        };
        self.keys[at].get_or_insert_with(|| key.to_owned());
        let offset = bucket * BUCKET + FIRST + at % ENTRIES * ENTRY;
        self.mr.write_at(offset, &emit(key, version, value))
    }

    /// Forgets everything.
    pub fn clear(&mut self) -> Result<(), Error> {
        self.keys.fill(None);
        self.mr.write_at(0, &vec![0; self.mr.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(buckets: u32) -> Table {
        let device = feroce::Device::at(["127.0.0.71".parse().unwrap()]);
        Table::new(&device.open().unwrap().alloc_pd().unwrap(), buckets).unwrap()
    }

    fn look(table: &Table, key: &str) -> Found {
        let mut bucket = [0; BUCKET];
        let at = bucket_of(key, table.buckets()) as usize * BUCKET;
        table.mr.read_at(at, &mut bucket).unwrap();
        find(&bucket, key)
    }

    #[test]
    fn what_is_put_is_found_and_what_has_no_place_is_elsewhere() {
        let mut table = table(2);
        assert_eq!(look(&table, "a"), Found::Absent);
        table.put("a", 1, b"one").unwrap();
        assert_eq!(look(&table, "a"), Found::Value(1, b"one".to_vec()));
        table.put("a", 2, b"").unwrap();
        assert_eq!(look(&table, "a"), Found::Value(2, vec![]));
        table.put("a", 3, &[7; ENTRY - HEAD - 1]).unwrap();
        assert_eq!(look(&table, "a"), Found::Value(3, vec![7; ENTRY - HEAD - 1]));
        table.put("a", 4, &[7; ENTRY - HEAD]).unwrap();
        assert_eq!(look(&table, "a"), Found::Elsewhere);
        table.put("a", 5, b"short").unwrap();
        assert_eq!(look(&table, "a"), Found::Value(5, b"short".to_vec()));
        let keys: Vec<_> = (0..20).map(|i| format!("key {i}")).collect();
        for (version, key) in (6..).zip(&keys) {
            table.put(key, version, key.as_bytes()).unwrap();
        }
        let here = keys.iter().filter(|key| matches!(look(&table, key), Found::Value(..)));
        assert_eq!(here.count(), 2 * ENTRIES - 1);
        assert!(keys.iter().all(|key| look(&table, key) != Found::Absent));
        assert_eq!(look(&table, "a"), Found::Value(5, b"short".to_vec()));
        table.clear().unwrap();
        assert_eq!(look(&table, "a"), Found::Absent);
    }

    #[test]
    fn every_mixture_of_two_versions_is_torn_or_one_of_them() {
        let versions = [emit("key", 1, &[1; 100]), emit("key", 2, &[2; 90])];
        let bucket = |entry: &[u8]| {
            let mut bucket = vec![0; BUCKET];
            bucket[FIRST..FIRST + entry.len()].copy_from_slice(entry);
            bucket
        };
        let [old, new] = versions.map(|entry| bucket(&entry));
        let (mut torn, known) = (0, [find(&old, "key"), find(&new, "key")]);
        for at in 0..BUCKET {
            for (first, second) in [(&old, &new), (&new, &old)] {
                match find(&[&first[..at], &second[at..]].concat(), "key") {
                    Found::Torn => torn += 1,
                    found => assert!(known.contains(&found), "{found:?} at {at}"),
                }
            }
        }
        assert!(torn > 100, "{torn}");
    }
}
