//! The name that was probably meant.

/// The candidate that differs least from `name`, if it differs by two characters at most and by
/// fewer than half of them.
pub(super) fn similar<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let most = 2.min(name.chars().count() / 2);
    let near = |candidate| (distance(name, candidate), candidate);
    let nearest = candidates.into_iter().map(near).min_by_key(|&(distance, _)| distance);
    nearest.filter(|&(distance, _)| distance <= most).map(|(_, candidate)| candidate)
}

/// How many characters must be inserted, removed, replaced or exchanged with the next one to get
/// from one name to the other (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let differs = usize::from(a[i - 1] != b[j - 1]);
            let mut least = (last[j] + 1).min(row[j - 1] + 1).min(last[j - 1] + differs);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(before[j - 2] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_leads_to_the_name_and_another_word_to_none() {
        let names = ["fault", "seed", "ecn", "gso", "gro", "pcap"];
        let meant = |name| similar(name, names);
        assert_eq!(meant("falt"), Some("fault"));
        assert_eq!(meant("faults"), Some("fault"));
        assert_eq!(meant("pacp"), Some("pcap"));
        assert_eq!(meant("gos"), Some("gso"));
        assert_eq!(meant("loss"), None);
        assert_eq!(meant("verbose"), None);
        assert_eq!(meant("x"), None);
        assert_eq!(meant(""), None);
    }

    #[test]
    fn long_names_cost_little() {
        assert_eq!(distance(&"a".repeat(1000), "b"), 1000);
    }
}
