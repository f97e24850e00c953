//! Switches that map DSCPs to priorities.

use std::fs;
use std::path::Path;

use feroce_sim::scenario::{self, Outcome, Reading, Run};

fn read(test: &str, dscp: &str) -> Result<scenario::Scenario, String> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dscp");
    fs::create_dir_all(&dir).expect("a directory for tests");
    let file = dir.join(format!("{test}.toml"));
    let text = format!(
        "[topology]\nkind = \"star\"\nhosts = 3\nrate = \"100G\"\ndelay = \"1us\"\n\
         [switch]\nbuffer = \"1M\"\ndscp = {dscp}\n[[pattern]]\nkind = \"incast\"\n\
         bytes = \"2M\"\nto = 0\npriority = 3\n"
    );
    fs::write(&file, text).expect("a file to write");
    scenario::read(&file, Reading { seed: 1, ..Reading::default() }).map_err(|e| e.to_string())
}

fn run(test: &str, dscp: &str) -> Outcome {
    let scenario = read(test, dscp).expect("a sound scenario");
    Run::new(scenario, 1).expect("a sound scenario").run()
}

#[test]
fn a_dscp_may_have_another_priority_than_its_class() {
    for (test, dscp, priority) in
        [("class", "[]", 3), ("other", "[[24, 5]]", 5), ("unused", "[[26, 5]]", 3)]
    {
        let outcome = run(test, dscp);
        assert!(outcome.flows.iter().all(|flow| flow.is_complete()));
        assert!(!outcome.pauses.is_empty(), "{test}: the buffer is small");
        assert!(outcome.pauses.iter().all(|pause| pause.priority == priority), "{test}");
    }
    for dscp in ["[[64, 1]]", "[[1, 8]]"] {
        let error = read("refused", dscp).expect_err("a wrong map");
        assert!(error.contains("refused.toml:8: switch.dscp: pairs of a DSCP"), "{error}");
    }
}
