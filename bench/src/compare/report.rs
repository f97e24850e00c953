//! The results, as tables for people and as JSON for programs.

use core::cmp::Ordering::{Greater, Less};

use serde_json::{Value, json};

use crate::load::Machine;
use crate::rows::{Claim, Row, Table, Wanted};
use crate::run::Measured;

/// All measurements of one row.
pub(crate) struct Series {
    pub(crate) row: &'static Row,
    /// The turns of this round.
    pub(crate) turns: Vec<Measured>,
    /// One of each round before.
    pub(crate) runs: Vec<Measured>,
    /// Why the last attempt failed, or why there was none.
    pub(crate) trouble: Option<String>,
}

impl Series {
    pub(crate) fn new(row: &'static Row) -> Self {
        Self { row, turns: Vec::new(), runs: Vec::new(), trouble: None }
    }

    /// Ends a round: of its turns, the one in the middle counts.
    pub(crate) fn end_round(&mut self) {
        let unit = self.row.unit;
        let order = |a: f64, b: f64| if unit.is_better(a, b) { Less } else { Greater };
        self.turns.sort_by(|a, b| order(a.value, b.value));
        self.runs.extend(self.turns.get(self.turns.len() / 2));
        self.turns.clear();
    }

    /// The best plausible run: some tools occasionally print a latency that no machine has.
    fn best(&self) -> Option<Measured> {
        let better = |a: Measured, b: Measured| {
            if self.row.unit.is_better(b.value, a.value) { b } else { a }
        };
        self.runs.iter().copied().filter(|run| self.is_believable(run.value)).reduce(better)
    }

    /// Whether a run is plausible: at most twice as good as the median run. In rows with busy
    /// processes beside the ends, every run is.
    fn is_believable(&self, value: f64) -> bool {
        let unit = self.row.unit;
        if self.row.neighbours.is_some_and(|n| n > 0) {
            return true;
        }
        let mut values: Vec<f64> = self.runs.iter().map(|run| run.value).collect();
        values.sort_by(|a, b| if unit.is_better(*a, *b) { Less } else { Greater });
        let twice = values.get(values.len() / 2).map(|middle| unit.twice_as_good(*middle));
        twice.is_none_or(|twice| !unit.is_better(value, twice))
    }

    fn worst(&self) -> Option<f64> {
        let worse = |a, b| if self.row.unit.is_better(b, a) { a } else { b };
        self.runs.iter().map(|run| run.value).reduce(worse)
    }
}

/// The measurements of a table.
pub(crate) struct Report {
    pub(crate) table: &'static Table,
    pub(crate) series: Vec<Series>,
}

impl Report {
    pub(crate) fn new(table: &'static Table) -> Self {
        Self { table, series: table.rows.iter().map(Series::new).collect() }
    }

    /// Whether everything was measured and is as it should be.
    pub(crate) fn is_good(&self) -> bool {
        let mut wanted = self.claims().filter(|claim| claim.wanted.is_some());
        self.series.iter().all(|series| series.trouble.is_none())
            && wanted.all(|claim| self.is_met(claim) == Some(true))
    }

    /// The claims whose rows were to be measured.
    fn claims(&self) -> impl Iterator<Item = &'static Claim> {
        let is_there = |name| self.series.iter().any(|series| series.row.name == name);
        let claims = self.table.claims.iter();
        claims.filter(move |claim| is_there(claim.of) && is_there(claim.against))
    }

    fn ratio(&self, claim: &Claim) -> Option<f64> {
        let best = |name| {
            let series = self.series.iter().find(|series| series.row.name == name)?;
            series.best().map(|best| best.value)
        };
        Some(best(claim.of)? / best(claim.against)?)
    }

    fn is_met(&self, claim: &Claim) -> Option<bool> {
        Some(claim.wanted?.is_met(self.ratio(claim)?))
    }

    /// Prints tables.
    pub(crate) fn print(&self) {
        println!("{}\n", self.table.title);
        let names = self.table.rows.iter().map(|row| row.name.len());
        let width = names.max().unwrap_or(0);
        let (cost, ends) = ("CPU s/GB", "out / in");
        println!("{:width$}  {:>13}  {:>13}  runs  {cost} {ends}", "", "best", "worst");
        for series in &self.series {
            println!("{}", line(series, width).trim_end());
        }
        for series in &self.series {
            if let Some(why) = &series.trouble {
                println!("{} failed: {why}", series.row.name);
            }
            for run in series.runs.iter().filter(|run| !series.is_believable(run.value)) {
                let (name, value) = (series.row.name, series.row.unit.show(run.value));
                println!("{name}: {value} is left out, more than twice as good as the middle run");
            }
        }
        if self.claims().next().is_none() {
            return;
        }
        println!();
        let width = 2 * width + 3;
        println!("{:width$}  {:>8}  wanted", "", "ratio");
        for claim in self.claims() {
            let name = format!("{} / {}", claim.of, claim.against);
            let ratio =
                self.ratio(claim).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2} x"));
            let wanted = match claim.wanted {
                Some(Wanted::AtLeast(least)) => format!(">= {least}"),
                Some(Wanted::AtMost(most)) => format!("<= {most}"),
                None => String::new(),
            };
            let verdict = match self.is_met(claim) {
                Some(true) => "met",
                Some(false) => "NOT MET",
                None if claim.wanted.is_some() => "not measured",
                None => "",
            };
            println!("{}", format!("{name:width$}  {ratio:>8}  {wanted:8} {verdict}").trim_end());
        }
    }

    /// Prints one object for each row and one for each ratio.
    pub(crate) fn print_json(&self) {
        for series in &self.series {
            println!("{}", object(series));
        }
        for claim in self.claims() {
            let (least, most) = match claim.wanted {
                Some(Wanted::AtLeast(least)) => (Some(least), None),
                Some(Wanted::AtMost(most)) => (None, Some(most)),
                None => (None, None),
            };
            let object = json!({
                "of": claim.of,
                "against": claim.against,
                "ratio": self.ratio(claim),
                "at_least": least,
                "at_most": most,
                "met": self.is_met(claim),
            });
            println!("{object}");
        }
    }
}

fn line(series: &Series, width: usize) -> String {
    let unit = series.row.unit;
    let show = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| unit.show(value));
    let best = series.best();
    let cost = best.and_then(|best| best.cost);
    let cost = cost.map_or(String::new(), |c| format!("{:.2} / {:.2}", c.client, c.server));
    format!(
        "{:width$}  {:>13}  {:>13}  {:>4}  {cost:>17}",
        series.row.name,
        show(best.map(|best| best.value)),
        show(series.worst()),
        series.runs.len(),
    )
}

fn object(series: &Series) -> Value {
    let best = series.best();
    let cost = best.and_then(|best| best.cost);
    let mut object = json!({
        "name": series.row.name,
        "runs": series.runs.iter().map(|run| run.value).collect::<Vec<_>>(),
        "cpu_s_per_gb": cost.map(|cost| cost.client),
        "peer_cpu_s_per_gb": cost.map(|cost| cost.server),
        "error": series.trouble,
    });
    object[series.row.unit.field()] = json!(best.map(|best| best.value));
    object
}

/// Describes the machine, and warns if other processes disturbed the figures.
pub(crate) fn machine(machine: &Machine, realtime: bool, json: bool) {
    let Machine { processors, model, kernel, .. } = machine;
    let others = machine.others();
    if json {
        let object = json!({
            "processors": processors,
            "model": model,
            "kernel": kernel,
            "others_cpu_share": others,
            "others_cpu_share_max": machine.others_at_worst(),
            "realtime": realtime,
        });
        println!("{object}");
    } else {
        let priority = if realtime { "real-time" } else { "normal" };
        println!("\n{processors} x {model}, Linux {kernel}, {priority} priority");
        println!(
            "between runs others used {:.0} % of the processors, {:.0} % at worst",
            others * 100.0,
            machine.others_at_worst() * 100.0
        );
    }
    if machine.is_disturbed() {
        let remedy = if realtime { "" } else { ", or with --realtime" };
        eprintln!(
            "compare: warning: other programs were in the way; run this on a quiet machine{remedy}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::{TABLES, Unit};

    /// A report in which every row measured `value`, but `name`, which measured `other`.
    fn report(value: f64, name: &str, other: f64) -> Report {
        let mut report = Report::new(&TABLES[0]);
        for series in &mut report.series {
            let value = if series.row.name == name { other } else { value };
            series.runs = [value, value * 2.0].map(|value| Measured { value, cost: None }).into();
        }
        report
    }

    #[test]
    fn the_turn_in_the_middle_counts() {
        let mut series = Series::new(&TABLES[0].rows[0]);
        for turns in [vec![3.0, 9.0, 1.0], vec![7.0], Vec::new()] {
            series.turns = turns.into_iter().map(|value| Measured { value, cost: None }).collect();
            series.end_round();
        }
        assert_eq!(series.runs.iter().map(|run| run.value).collect::<Vec<_>>(), [3.0, 7.0]);
    }

    #[test]
    fn the_best_run_counts() {
        let report = report(10.0, "", 0.0);
        for series in &report.series {
            let (best, worst) = (series.best().unwrap().value, series.worst().unwrap());
            assert!(series.row.unit.is_better(best, worst), "{}", series.row.name);
        }
    }

    #[test]
    fn a_run_that_cannot_be_does_not_count() {
        let mut rows = TABLES.iter().flat_map(|table| table.rows);
        let row = rows.find(|row| row.unit == Unit::Microseconds).expect("a latency");
        let of = |values: &[f64]| {
            let mut series = Series::new(row);
            series.runs = values.iter().map(|&value| Measured { value, cost: None }).collect();
            series.best().map(|best| best.value)
        };
        assert_eq!(of(&[0.42, 0.09, 0.43]), Some(0.42));
        assert_eq!(of(&[0.42, 0.21, 0.43]), Some(0.21));
        assert_eq!(of(&[0.09, 0.42]), Some(0.42));
        assert_eq!(of(&[0.09]), Some(0.09));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn a_claim_is_met_missed_or_unknown() {
        let claim = &TABLES[0].claims[0];
        assert_eq!(claim.wanted, Some(Wanted::AtLeast(1.0)));
        assert_eq!(report(10.0, claim.of, 10.0).is_met(claim), Some(true));
        assert_eq!(report(10.0, claim.of, 9.9).is_met(claim), Some(false));
        let mut unknown = report(10.0, "", 0.0);
        unknown.series.iter_mut().for_each(|series| series.runs.clear());
        assert_eq!(unknown.is_met(claim), None);
        assert!(!unknown.is_good());
    }

    #[test]
    fn trouble_is_not_good() {
        // All alike misses the claim of ten times; without its rows there is nothing to miss.
        let mut report = report(10.0, "", 0.0);
        assert!(!report.is_good());
        report.series.truncate(1);
        assert!(report.is_good());
        report.series[0].trouble = Some("no such program".to_owned());
        assert!(!report.is_good());
    }

    #[test]
    fn objects_use_the_fields_of_feroce_perf() {
        let report = report(10.0, "", 0.0);
        let first = object(&report.series[0]);
        assert_eq!(first["gbit_per_s"], 20.0);
        assert_eq!(first["runs"], json!([10.0, 20.0]));
        assert_eq!(first["error"], Value::Null);
    }
}
