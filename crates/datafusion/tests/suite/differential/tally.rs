// SPDX-License-Identifier: Apache-2.0
//! What the cases came to, in all and by what their queries have.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What the cases came to.
#[derive(Debug, Default)]
pub struct Tally {
    pub all: Counts,
    /// By what the queries have.
    pub features: BTreeMap<&'static str, Counts>,
    pub both_fail: usize,
    /// Shapes that plain DataFusion cannot plan.
    pub invalid: usize,
    /// Shapes that strict planning refuses, and why. Their cases run partly on the host.
    pub refused: BTreeMap<String, usize>,
    pub differing: Vec<String>,
}

#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    pub shapes: usize,
    /// Cases whose answers are the same.
    pub same: usize,
    pub non_empty: usize,
    pub several_batches: usize,
    /// Wholly on the device, with launches.
    pub on_device: usize,
}

impl Counts {
    pub fn add(&mut self, other: Counts) {
        self.shapes += other.shapes;
        self.same += other.same;
        self.non_empty += other.non_empty;
        self.several_batches += other.several_batches;
        self.on_device += other.on_device;
    }

    /// A part of the cases, in percent.
    pub fn share(&self, part: usize) -> f64 {
        100.0 * part as f64 / self.same.max(1) as f64
    }
}

impl Tally {
    /// Counts the cases of a shape.
    pub fn count(&mut self, features: &BTreeSet<&'static str>, counts: Counts) {
        self.all.add(counts);
        for feature in features {
            self.features.entry(feature).or_default().add(counts);
        }
    }

    pub fn add(&mut self, other: Tally) {
        self.all.add(other.all);
        self.both_fail += other.both_fail;
        self.invalid += other.invalid;
        for (feature, counts) in other.features {
            self.features.entry(feature).or_default().add(counts);
        }
        for (reason, shapes) in other.refused {
            *self.refused.entry(reason).or_default() += shapes;
        }
        self.differing.extend(other.differing);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        writeln!(
            f,
            "{:<30} {:>7} {:>8} {:>11} {:>15} {:>11}",
            "", "shapes", "cases", "non-empty %", "multi-batch %", "on device %"
        )?;
        for (name, counts) in [("all", &self.all)].into_iter().chain(self.features.iter().map(|(name, counts)| (*name, counts))) {
            let [non_empty, several, on_device] =
                [counts.non_empty, counts.several_batches, counts.on_device].map(|part| counts.share(part));
            writeln!(
                f,
                "{name:<30} {:>7} {:>8} {non_empty:>11.1} {several:>15.1} {on_device:>11.1}",
                counts.shapes, counts.same
            )?;
        }
        writeln!(f, "cases that fail on both sides: {}; shapes that DataFusion cannot plan: {}", self.both_fail, self.invalid)?;
        for (reason, shapes) in &self.refused {
            writeln!(f, "refused, {shapes} shapes: {reason}")?;
        }
        for case in &self.differing {
            writeln!(f, "\n{case}")?;
        }
        Ok(())
    }
}
