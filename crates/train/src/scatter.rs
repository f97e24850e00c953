//! Where the next bytes of a stream go.

use alloc::vec::Vec;

use feroce_mem::{Grant, Write};

/// Registered memory that the next bytes of a stream are received into.
///
/// ```
/// # use feroce_mem::{Access, Iova, MrLimits, MrTable, PdId, Region, Write};
/// # use feroce_train::Scatter;
/// # let region = Region::alloc(8)?;
/// # let mut table = MrTable::new(1, MrLimits::default());
/// # let access = Access::LOCAL_WRITE;
/// # let key = table.reg(PdId(1), region.clone(), 0, 8, Iova::ZeroBased, access)?;
/// let mut scatter = Scatter::default();
/// scatter.append(table.grant_local::<Write>(PdId(1), key, 0, 3)?);
/// scatter.append(table.grant_local::<Write>(PdId(1), key, 5, 2)?);
/// assert_eq!(scatter.copy_in(b"hello!"), 5);
/// # let mut bytes = [0; 8];
/// # region.read_at(0, &mut bytes)?;
/// # assert_eq!(&bytes, b"hel\0\0lo\0");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Scatter {
    memory: Vec<Grant<Write>>,
    len: usize,
    /// How many bytes to read at most behind those that go to memory.
    pub behind: usize,
}

impl Scatter {
    /// How many bytes go to memory.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no byte goes to memory.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets everything, and gives the rights to memory back.
    pub fn clear(&mut self) {
        self.memory.clear();
        (self.len, self.behind) = (0, 0);
    }

    /// Appends registered memory.
    pub fn append(&mut self, grant: Grant<Write>) {
        if !grant.is_empty() {
            self.len += grant.len();
            self.memory.push(grant);
        }
    }

    /// The memory, in order.
    pub fn memory(&self) -> &[Grant<Write>] {
        &self.memory
    }

    /// Copies bytes to the memory, as many as there is room for, and returns how many.
    pub fn copy_in(&self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        for grant in &self.memory {
            let (now, later) = rest.split_at(rest.len().min(grant.len()));
            let copied = grant.copy_in(0, now);
            debug_assert!(copied.is_ok(), "the grant has as many bytes");
            rest = later;
        }
        bytes.len() - rest.len()
    }
}
