//! Whether numbers look as if they were drawn at random.

/// Checks numbers of `bits` bits in the order in which they were given: no regular steps, and both
/// the numbers and the steps between them are uniform, in their upper and in their lower bits.
pub(crate) fn assert_unpredictable(what: &str, numbers: &[u32], bits: u32) {
    assert!(numbers.len() >= 10_000, "{what}: too few to tell");
    let mask = u32::MAX >> (u32::BITS - bits);
    let steps: Vec<u32> =
        numbers.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]) & mask).collect();
    for step in 1..=256 {
        let same = steps.iter().filter(|&&s| s == step || s == step.wrapping_neg() & mask).count();
        assert!(same <= 8, "{what}: {same} of {} steps are {step}", steps.len());
    }
    for (kind, values) in [("values", numbers), ("steps", &steps)] {
        for shift in [0, bits / 2 - 3, bits - 6] {
            let chi = chi_square(values.iter().map(|value| (value & mask) >> shift & 63));
            // 63 degrees of freedom: five standard deviations around the mean.
            let usual = 63.0 - 5.0 * 11.2..63.0 + 5.0 * 11.2;
            assert!(usual.contains(&chi), "{what}: {kind} >> {shift} have chi square {chi}");
        }
    }
}

/// Chi square of numbers below 64, against the uniform distribution.
fn chi_square(values: impl Iterator<Item = u32>) -> f64 {
    let mut counts = [0.0; 64];
    values.for_each(|value| counts[value as usize] += 1.0);
    let expected = counts.iter().sum::<f64>() / 64.0;
    counts.iter().map(|count| (count - expected) * (count - expected) / expected).sum()
}
