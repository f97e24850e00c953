//! The blocks of the pool that the library allocates from when the system has no memory.

#[path = "../src/memory/blocks.rs"]
mod blocks;

use blocks::{Blocks, SIZES, UNITS};

#[test]
fn blocks_of_all_sizes_are_apart_and_aligned() {
    let mut blocks = Blocks::NEW;
    let mut units = vec![false; UNITS];
    for size in (0..SIZES).cycle() {
        let Some(unit) = blocks.take(size) else { break };
        assert_eq!(unit % (1 << size), 0);
        for taken in &mut units[unit..unit + (1 << size)] {
            assert!(!*taken, "two blocks overlap");
            *taken = true;
        }
    }
    assert!(units.iter().filter(|&&taken| taken).count() > UNITS / 2);
}

#[test]
fn a_freed_block_is_allocated_again() {
    let mut blocks = Blocks::NEW;
    let all: Vec<_> = std::iter::from_fn(|| blocks.take(3)).collect();
    assert_eq!(all.len(), UNITS / 8);
    all.iter().for_each(|&unit| blocks.give(3, unit));
    let mut again: Vec<_> = std::iter::from_fn(|| blocks.take(3)).collect();
    again.sort_unstable();
    assert_eq!(again, all);
    assert_eq!(blocks.take(0), None, "no unit is free");
}

#[test]
fn larger_blocks_than_there_are_do_not_exist() {
    let mut blocks = Blocks::NEW;
    assert_eq!(blocks.take(SIZES), None);
}
