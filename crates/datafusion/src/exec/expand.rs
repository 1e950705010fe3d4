// SPDX-License-Identifier: Apache-2.0
//! `GROUPING SETS`, `ROLLUP` and `CUBE`: the rows of an aggregation once for each set.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::Aggregate;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::exec::{OperatorMetrics, inner_methods, leaf_properties, refuse_stream, refused_execution};

/// Gives each batch of all partitions once for each grouping set, as Spark's `Expand` does.
///
/// - The keys are the input's last columns. Keys outside of the set are NULL.
/// - `__grouping_id` follows them.
/// - Nothing is copied: a key that is NULL shares the values and has a validity bitmap of its own.
/// - A set without keys has a group even without rows. It gets one blank row, in which the column
///   [`REAL`](Self::REAL) is false. Aggregates skip that row.
#[derive(Debug)]
pub struct DeviceExpandExec {
    input: Arc<dyn ExecutionPlan>,
    sets: Vec<GroupingSet>,
    properties: Arc<PlanProperties>,
    pub(crate) metrics: OperatorMetrics,
}

/// A grouping set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupingSet {
    /// For each key, whether it is left out.
    pub masked: Vec<bool>,
    /// `__grouping_id`: a bit for each key that is left out, the last key's the lowest. The bits
    /// above count the equal sets before.
    pub id: u8,
}

impl GroupingSet {
    /// Whether the set has no keys.
    pub fn is_total(&self) -> bool {
        self.masked.iter().all(|masked| *masked)
    }

    /// The sets of an aggregation with the host's `__grouping_id`s. `None` if these do not fit a
    /// byte.
    pub fn numbered(groups: &[Vec<bool>]) -> Option<Vec<GroupingSet>> {
        let before = |index: usize| groups[..index].iter().filter(|other| **other == groups[index]).count();
        let most = (0..groups.len()).map(before).max().unwrap_or(0);
        let bits_of_most = usize::BITS - most.leading_zeros();
        if groups.iter().any(|masked| masked.len() as u32 + bits_of_most > u8::BITS) {
            return None;
        }
        let sets = groups.iter().enumerate().map(|(index, masked)| {
            let bits = masked.iter().try_fold(0u64, |bits, masked| Some(bits.checked_mul(2)? | u64::from(*masked)))?;
            let id = bits | (before(index) as u64).checked_shl(masked.len() as u32)?;
            Some(GroupingSet { masked: masked.clone(), id: u8::try_from(id).ok()? })
        });
        sets.collect()
    }
}

impl DeviceExpandExec {
    /// Name of the last column, present if a set has no keys: false in the blank row.
    pub const REAL: &str = "__real";

    /// Expands the rows of `input`, whose last columns are the keys of `sets`.
    pub(crate) fn try_new(input: Arc<dyn ExecutionPlan>, sets: Vec<GroupingSet>) -> Result<Self> {
        let from = input.schema();
        let Some(first) = sets.first().and_then(|set| from.fields().len().checked_sub(set.masked.len())) else {
            return internal_err!("DeviceExpandExec without sets, or with more keys than columns");
        };
        let fields = from.fields().iter().enumerate().map(|(index, field)| match index < first {
            true => Arc::clone(field),
            false => Arc::new(field.as_ref().clone().with_nullable(true)),
        });
        let id = Arc::new(Field::new(Aggregate::INTERNAL_GROUPING_ID, DataType::UInt8, false));
        let real = sets.iter().any(GroupingSet::is_total).then(|| Arc::new(Field::new(Self::REAL, DataType::Boolean, false)));
        let schema = Arc::new(Schema::new(fields.chain([id]).chain(real).collect::<Vec<_>>()));
        Ok(DeviceExpandExec { input, sets, properties: leaf_properties(schema), metrics: OperatorMetrics::new() })
    }

    /// The rows that are repeated.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    pub(crate) fn sets(&self) -> &[GroupingSet] {
        &self.sets
    }

    fn describe(&self) -> String {
        let schema = self.input.schema();
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        let set = |set: &GroupingSet| {
            let first = names.len() - set.masked.len();
            let kept = set.masked.iter().zip(&names[first..]).filter(|(masked, _)| !**masked);
            format!("({})", kept.map(|(_, name)| *name).collect::<Vec<_>>().join(", "))
        };
        self.sets.iter().map(set).collect::<Vec<_>>().join(", ")
    }
}

impl DisplayAs for DeviceExpandExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match format {
            DisplayFormatType::TreeRender => write!(f, "sets={}", self.describe()),
            _ => write!(f, "DeviceExpandExec: sets=[{}]", self.describe()),
        }
    }
}

impl ExecutionPlan for DeviceExpandExec {
    inner_methods! {
        "DeviceExpandExec",
        inputs: [input],
        exprs: |_node| std::iter::empty::<&Arc<dyn PhysicalExpr>>(),
        over: |node| DeviceExpandExec::try_new(input, node.sets.clone())?,
    }

    refused_execution!(refuse_stream("DeviceExpandExec"));

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_numbered_as_the_host_does() {
        let sets =
            |groups: &[Vec<bool>]| GroupingSet::numbered(groups).map(|sets| sets.iter().map(|set| set.id).collect::<Vec<_>>());
        let (all, one, none) = (vec![false, false], vec![false, true], vec![true, true]);
        assert_eq!(sets(&[all.clone(), one, none.clone()]), Some(vec![0, 1, 3]));
        assert_eq!(sets(&[all.clone(), none, all]), Some(vec![0, 3, 4]), "an equal set before sets a bit above the keys");
        assert_eq!(sets(&[vec![false; 9]]), None, "nine keys need 16 bits");
    }
}
