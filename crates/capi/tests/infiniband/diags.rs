//! Commands of infiniband-diags whose output has values that a vendor chooses, or that count: what
//! is left is compared.

use super::{printed, replay};

/// Commands with the lines that are compared; of long outputs, how many those are, and their sum.
const APART: &str = include_str!("diags_apart.txt");

/// How lines begin that say what a vendor has chosen: names, capabilities, sizes of tables.
const VENDOR: &[&str] = &[
    "CA type:",
    "Firmware version:",
    "Hardware version:",
    "Capability mask:",
    "CapMask:",
    "CapabilityMask2:",
    "Is",
    "LinkWidthEnabled:",
    "LinkWidthSupported:",
    "LinkSpeedEnabled:",
    "LinkSpeedExt",
    // By which port the switch heard the question; the other implementation said 0.
    "LocalPort:",
    "LocalPhysErr:",
    "OverrunErr:",
    "MaxCreditHint:",
    "RoundTrip:",
    "InboundPartEnf:",
    "OutboundPartEnf:",
];

/// Lanes of the first eight service levels: `ports: in  0, out  1: | 0| 1| 2| 3| 4| 5| 6| 7|`.
const EIGHT_LEVELS: usize = 25;

/// A line without what is not compared; none if nothing is left.
fn apart(line: &str) -> Option<String> {
    let text = line.trim();
    if VENDOR.iter().any(|beginning| text.starts_with(beginning)) {
        return None;
    }
    if text.starts_with("ports: in") {
        let levels = line.find('|')?;
        return line.get(..levels + EIGHT_LEVELS).map(str::to_owned);
    }
    if let Some((before, after)) = line.split_once("activity count ") {
        let after = after.trim_start_matches(|c: char| c.is_ascii_digit());
        return Some(format!("{before}activity count{after}"));
    }
    let counts = ["ActCount.", "Data:", "Pkts:"].iter().any(|word| line.contains(word));
    let end = |c: char| counts && c.is_ascii_digit();
    Some(line.trim_end_matches(end).replace("fer0", "feroce0"))
}

/// FNV-1a.
fn sum(text: &str) -> u64 {
    let add = |sum: u64, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, add)
}

#[test]
fn diagnostics_differ_in_values_of_the_vendor_alone() {
    let count = replay("ib-diags-apart", APART, |command, said, expected| {
        let lines: Vec<String> = printed(said).iter().filter_map(|line| apart(line)).collect();
        let whole = lines.join("\n");
        let said = match expected.contains(" lines, ") {
            true => format!("({} lines, {:#018x})", lines.len(), sum(&whole)),
            false => whole.clone(),
        };
        assert_eq!(said, expected.trim_end(), "{command}: {whole}");
    });
    assert!(count.is_none_or(|count| count == 26), "{count:?}");
}
