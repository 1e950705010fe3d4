// SPDX-License-Identifier: Apache-2.0
//! Counts of a run: records, placements of queries, and reasons for operators on the host.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use devicefusion::{Placement, PlacementKind};
use parking_lot::Mutex;

/// The tally of a run, which all its files share.
pub type SharedTally = Arc<Mutex<Tally>>;

/// The counts of a run.
#[derive(Debug, Default)]
pub struct Tally {
    /// Files that ran.
    pub files: usize,
    /// Files that need a feature outside this build.
    pub skipped_files: usize,
    /// Statements and queries that ran.
    pub records: usize,
    /// Records that failed.
    pub failed: usize,
    /// Number of kernels that devices launched.
    pub launches: u64,
    whole: usize,
    partly: usize,
    host: usize,
    scan_only: usize,
    /// Number of host operators by name and reason.
    reasons: BTreeMap<String, usize>,
}

impl Tally {
    /// Counts a planned query.
    pub fn count_query(&mut self, placement: &Placement) {
        let count = match placement.kind() {
            PlacementKind::Whole => &mut self.whole,
            PlacementKind::Partly => &mut self.partly,
            PlacementKind::Host => &mut self.host,
            PlacementKind::ScanOnly => &mut self.scan_only,
        };
        *count += 1;
        for operator in &placement.host_operators {
            *self.reasons.entry(format!("{}: {}", operator.operator, operator.reason)).or_default() += 1;
        }
    }

    /// Whether queries were planned for a device without launches. Such a run tests nothing.
    pub fn is_idle_device(&self) -> bool {
        self.whole + self.partly > 0 && self.launches == 0
    }
}

impl Display for Tally {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let queries = self.whole + self.partly + self.host + self.scan_only;
        let lines = [
            ("files", self.files),
            ("  skipped", self.skipped_files),
            ("records", self.records),
            ("queries", queries),
            ("  wholly on the device", self.whole),
            ("  partly on the device", self.partly),
            ("  on the host", self.host),
            ("  scan-only", self.scan_only),
            ("failed", self.failed),
            ("kernel launches", usize::try_from(self.launches).unwrap_or(usize::MAX)),
        ];
        for (name, count) in lines {
            write!(f, "{name:<24}{count:>8}")?;
            let computing = self.whole + self.partly + self.host;
            match name {
                "  wholly on the device" if computing > 0 => {
                    writeln!(f, "   {:.1} % of those that compute", 100.0 * count as f64 / computing as f64)?;
                }
                _ => writeln!(f)?,
            }
        }
        if self.reasons.is_empty() {
            return Ok(());
        }
        writeln!(f, "operators on the host, by reason")?;
        let mut reasons: Vec<(&String, &usize)> = self.reasons.iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (reason, count) in reasons {
            writeln!(f, "{count:>8}  {reason}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use devicefusion::HostOperator;

    use super::*;

    fn placement(device_operators: usize, reasons: &[&str]) -> Placement {
        let operator = |reason: &&str| HostOperator { operator: "SortExec".to_string(), reason: reason.to_string() };
        Placement { device_operators, host_operators: reasons.iter().map(operator).collect(), scans: 1 }
    }

    #[test]
    fn queries_are_counted_by_placement_and_reasons_sorted_by_frequency() {
        let mut tally = Tally::default();
        tally.count_query(&placement(2, &[]));
        tally.count_query(&placement(1, &["rare"]));
        tally.count_query(&placement(0, &["often"]));
        tally.count_query(&placement(0, &["often"]));
        tally.count_query(&placement(0, &[]));
        let printed = tally.to_string();
        assert_eq!((tally.whole, tally.partly, tally.host, tally.scan_only), (1, 1, 2, 1));
        assert!(printed.find("SortExec: often") < printed.find("SortExec: rare"), "{printed}");
    }
}
