// SPDX-License-Identifier: Apache-2.0
//! Counts of outcomes, in total and by the features of queries.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Counts of the outcomes of all cases.
#[derive(Debug, Default)]
pub struct Tally {
    pub all: Counts,
    /// Counts by the features of queries.
    pub features: BTreeMap<&'static str, Counts>,
    /// Cases that fail on both sides, by a fault of plain DataFusion, or after its limit of a
    /// minute.
    pub no_answer: usize,
    /// Cases that plain DataFusion answers in two ways, one of them the device's.
    pub two_answers: usize,
    /// Cases with too little memory, by the operator that says so.
    pub out_of_memory: BTreeMap<String, usize>,
    /// Shapes that plain DataFusion cannot plan.
    pub invalid: usize,
    /// Shapes that strict planning refuses, by reason. Their cases run partly on the host.
    pub refused: BTreeMap<String, usize>,
    pub differing: Vec<String>,
    /// First runs that were the host's, without a launch.
    pub host_runs: usize,
}

#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    pub shapes: usize,
    /// Cases whose answers are the same.
    pub same: usize,
    pub non_empty: usize,
    pub several_batches: usize,
    /// Cases that compute. DataFusion may find that a query has nothing to compute.
    pub computing: usize,
    /// Computing cases that run on the device alone.
    pub on_device: usize,
    /// Cases that launch kernels; those over empty tables need none.
    pub launching: usize,
    /// Cases that write rows to disk.
    pub spilling: usize,
}

impl Counts {
    pub fn add(&mut self, other: Counts) {
        self.shapes += other.shapes;
        self.same += other.same;
        self.non_empty += other.non_empty;
        self.several_batches += other.several_batches;
        self.computing += other.computing;
        self.on_device += other.on_device;
        self.launching += other.launching;
        self.spilling += other.spilling;
    }

    /// Shares in percent, with their names.
    pub fn shares(&self) -> [(&'static str, f64); 5] {
        let percent = |part: usize, all: usize| 100.0 * part as f64 / all.max(1) as f64;
        [
            ("non-empty", percent(self.non_empty, self.same)),
            ("multi-batch", percent(self.several_batches, self.same)),
            ("on device", percent(self.on_device, self.computing)),
            ("launching", percent(self.launching, self.same)),
            ("spilling", percent(self.spilling, self.same)),
        ]
    }
}

impl Tally {
    /// Adds the cases of a shape.
    pub fn count(&mut self, features: &BTreeSet<&'static str>, counts: Counts) {
        self.all.add(counts);
        for feature in features {
            self.features.entry(feature).or_default().add(counts);
        }
    }

    /// Reports a case that differs.
    pub fn differs(&mut self, case: String) {
        println!("{case}");
        self.differing.push(case);
    }

    pub fn add(&mut self, other: Tally) {
        self.all.add(other.all);
        self.no_answer += other.no_answer;
        self.two_answers += other.two_answers;
        self.invalid += other.invalid;
        for (feature, counts) in other.features {
            self.features.entry(feature).or_default().add(counts);
        }
        for (operator, cases) in other.out_of_memory {
            *self.out_of_memory.entry(operator).or_default() += cases;
        }
        for (reason, shapes) in other.refused {
            *self.refused.entry(reason).or_default() += shapes;
        }
        self.differing.extend(other.differing);
        self.host_runs += other.host_runs;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:<30} {:>7} {:>8}", "", "shapes", "cases")?;
        for (name, _) in self.all.shares() {
            write!(f, " {:>13}", format!("{name} %"))?;
        }
        writeln!(f)?;
        for (name, counts) in [("all", &self.all)].into_iter().chain(self.features.iter().map(|(name, counts)| (*name, counts))) {
            write!(f, "{name:<30} {:>7} {:>8}", counts.shapes, counts.same)?;
            for (_, share) in counts.shares() {
                write!(f, " {share:>13.1}")?;
            }
            writeln!(f)?;
        }
        writeln!(
            f,
            "cases without an answer to compare: {}, with two answers of DataFusion: {}; shapes that DataFusion cannot plan: {}",
            self.no_answer, self.two_answers, self.invalid
        )?;
        for (operator, cases) in &self.out_of_memory {
            writeln!(f, "out of memory, {cases} cases: {operator}")?;
        }
        for (reason, shapes) in &self.refused {
            writeln!(f, "refused, {shapes} shapes: {reason}")?;
        }
        writeln!(f, "first runs of the host: {}", self.host_runs)?;
        for case in &self.differing {
            writeln!(f, "\n{case}")?;
        }
        Ok(())
    }
}
