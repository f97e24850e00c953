//! What is under way, by number.

/// Bits of a number that tell the place.
const PLACE: u32 = 16;

/// Values by number. A number tells where its value is, in a place that is used again, and differs
/// from all numbers before it: a peer that names one of those finds nothing. There is room for as
/// many values as a window has places.
#[derive(Debug)]
pub(crate) struct ByNumber<T> {
    places: Vec<Option<(u64, T)>>,
    free: Vec<usize>,
    next: u64,
}

impl<T> Default for ByNumber<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new(), next: 0 }
    }
}

fn place(number: u64) -> usize {
    number as usize & ((1 << PLACE) - 1)
}

impl<T> ByNumber<T> {
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Adds a value; returns its number.
    pub(crate) fn insert(&mut self, value: T) -> u64 {
        let index = self.free.pop().unwrap_or(self.places.len());
        assert!(index < 1 << PLACE, "no window has room for more");
        let number = self.next << PLACE | index as u64;
        self.next += 1;
        match self.places.get_mut(index) {
            Some(place) => *place = Some((number, value)),
            None => self.places.push(Some((number, value))),
        }
        number
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let (own, value) = self.places.get_mut(place(number))?.as_mut()?;
        (*own == number).then_some(value)
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let index = place(number);
        let (_, value) = self.places.get_mut(index)?.take_if(|(own, _)| *own == number)?;
        self.free.push(index);
        Some(value)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().flatten().map(|(_, value)| value)
    }

    /// Removes the values that are over.
    pub(crate) fn extract(&mut self, is_over: impl Fn(&T) -> bool) -> Vec<T> {
        let over = self.places.iter().flatten().filter(|(_, value)| is_over(value));
        let over: Vec<u64> = over.map(|&(number, _)| number).collect();
        over.into_iter().filter_map(|number| self.remove(number)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_over_finds_nothing() {
        let mut values = ByNumber::default();
        let (first, second) = (values.insert('a'), values.insert('b'));
        assert_eq!((values.remove(first), values.len()), (Some('a'), 1));
        let third = values.insert('c');
        assert_eq!(values.get_mut(first), None);
        assert_eq!(values.remove(first), None);
        assert_eq!(values.get_mut(second), Some(&mut 'b'));
        assert_eq!(values.get_mut(third), Some(&mut 'c'));
        assert_eq!(values.get_mut(u64::MAX), None);
        assert_eq!(values.extract(|&value| value == 'b'), ['b']);
        assert_eq!(values.values_mut().map(|value| *value).collect::<String>(), "c");
    }
}
