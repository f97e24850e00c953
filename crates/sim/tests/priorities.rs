//! Switches that map DSCPs or PCPs to priorities.

use std::fs;
use std::path::Path;

use feroce_sim::scenario::{self, Outcome, Reading, Run};

fn read(test: &str, map: &str) -> Result<scenario::Scenario, String> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("priorities");
    fs::create_dir_all(&dir).expect("a directory for tests");
    let file = dir.join(format!("{test}.toml"));
    let text = format!(
        "[topology]\nkind = \"star\"\nhosts = 3\nrate = \"100G\"\ndelay = \"1us\"\n\
         [switch]\nbuffer = \"1M\"\n{map}\n[[pattern]]\nkind = \"incast\"\n\
         bytes = \"2M\"\nto = 0\npriority = 3\n"
    );
    fs::write(&file, text).expect("a file to write");
    scenario::read(&file, Reading { seed: 1, ..Reading::default() }).map_err(|e| e.to_string())
}

fn run(test: &str, map: &str) -> Outcome {
    let scenario = read(test, map).expect("a sound scenario");
    Run::new(scenario, 1).expect("a sound scenario").run()
}

#[test]
fn a_dscp_or_pcp_may_have_another_priority_than_its_class() {
    for (test, map, priority) in [
        ("class", "dscp = []", 3),
        ("other", "dscp = [[24, 5]]", 5),
        ("unused", "dscp = [[26, 5]]", 3),
        ("level", "pcp = []", 3),
        ("tagged", "pcp = [[3, 5]]", 5),
    ] {
        let outcome = run(test, map);
        assert!(outcome.flows.iter().all(|flow| flow.is_complete()));
        assert!(!outcome.pauses.is_empty(), "{test}: the buffer is small");
        assert!(outcome.pauses.iter().all(|pause| pause.priority == priority), "{test}");
    }
    for (map, why) in [
        ("dscp = [[64, 1]]", "8: switch.dscp: pairs of a DSCP"),
        ("dscp = [[1, 8]]", "8: switch.dscp: pairs of a DSCP"),
        ("pcp = [[8, 1]]", "8: switch.pcp: pairs of a PCP"),
        ("dscp = []\npcp = []", "9: switch.pcp: switches take the priority from"),
    ] {
        let error = read("refused", map).expect_err("a wrong map");
        assert!(error.contains(&format!("refused.toml:{why}")), "{error}");
    }
}

#[test]
fn a_tagged_packet_takes_the_time_of_its_tag() {
    let [plain, tagged] = [("plain", "dscp = []"), ("vlan", "pcp = []")].map(|(test, map)| {
        let outcome = run(test, map);
        outcome.flows.iter().map(|flow| flow.ended.expect("complete")).max().expect("flows")
    });
    // Two flows of 2 MB share the link, a tag of 4 bytes costs 320 ps at 100 Gb/s.
    assert!(tagged > plain, "{tagged:?} {plain:?}");
}
