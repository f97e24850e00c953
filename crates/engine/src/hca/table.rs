//! Objects by handle.

use alloc::vec::Vec;

use crate::hca::error::CreateError;

/// Objects by handle, which is a small number. The table gives an object a handle, or it gets the
/// one that it has in another shard of the adapter.
#[derive(Debug)]
pub(crate) struct Table<T> {
    slots: Vec<Option<T>>,
    /// No handle below is free.
    first_free: u32,
    len: usize,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), first_free: 0, len: 0 }
    }

    /// How many objects there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds an object, under the handle `name` if there is one.
    pub(crate) fn insert(&mut self, name: Option<u32>, object: T) -> Result<u32, CreateError> {
        let free = || (self.first_free..).find(|name| !self.contains(*name));
        let name = name.or_else(free).ok_or(CreateError::TooMany)?;
        if self.contains(name) {
            return Err(CreateError::Invalid("the handle is in use"));
        }
        let missing = (name as usize + 1).saturating_sub(self.slots.len());
        self.slots.try_reserve(missing).map_err(|_| CreateError::OutOfMemory)?;
        self.slots.extend((0..missing).map(|_| None));
        if let Some(slot) = self.slots.get_mut(name as usize) {
            *slot = Some(object);
            self.len += 1;
        }
        if name == self.first_free {
            self.first_free += 1;
        }
        Ok(name)
    }

    pub(crate) fn contains(&self, name: u32) -> bool {
        self.get(name).is_some()
    }

    #[inline]
    pub(crate) fn get(&self, name: u32) -> Option<&T> {
        self.slots.get(name as usize)?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, name: u32) -> Option<&mut T> {
        self.slots.get_mut(name as usize)?.as_mut()
    }

    pub(crate) fn remove(&mut self, name: u32) -> Option<T> {
        let object = self.slots.get_mut(name as usize)?.take()?;
        self.len -= 1;
        self.first_free = self.first_free.min(name);
        Some(object)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.slots).filter_map(|(name, slot)| Some((name, slot.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_gives_handles_and_takes_those_of_others() {
        let mut table = Table::new();
        assert_eq!(table.insert(None, 'a'), Ok(0));
        assert_eq!(table.insert(Some(2), 'b'), Ok(2));
        assert_eq!(table.insert(Some(2), 'c'), Err(CreateError::Invalid("the handle is in use")));
        assert_eq!((table.insert(None, 'd'), table.insert(None, 'e')), (Ok(1), Ok(3)));
        assert_eq!((table.len(), table.get(3), table.get(4)), (4, Some(&'e'), None));
        assert_eq!((table.remove(1), table.remove(1)), (Some('d'), None));
        assert_eq!((table.insert(None, 'f'), table.len()), (Ok(1), 4));
        let all: Vec<(u32, &char)> = table.iter().collect();
        assert_eq!(all, [(0, &'a'), (1, &'f'), (2, &'b'), (3, &'e')]);
    }
}
