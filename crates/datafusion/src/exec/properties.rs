// SPDX-License-Identifier: Apache-2.0
//! Plan properties that several operators share.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties};

/// Properties of an operator with one output partition.
pub(crate) fn single_partition(equivalences: EquivalenceProperties, emission: EmissionType) -> Arc<PlanProperties> {
    let properties = PlanProperties::new(equivalences, Partitioning::UnknownPartitioning(1), emission, Boundedness::Bounded);
    Arc::new(properties.with_scheduling_type(SchedulingType::Cooperative))
}

/// Properties of a leaf: one partition of rows in no order.
pub(crate) fn leaf_properties(schema: SchemaRef) -> Arc<PlanProperties> {
    single_partition(EquivalenceProperties::new(schema), EmissionType::Incremental)
}

/// Equivalences that hold for the rows of all partitions of `input` together, in any order.
///
/// Orders and constants of a single partition do not: a literal in one input of a `UNION` is one.
pub(crate) fn coalesced_equivalences(input: &Arc<dyn ExecutionPlan>) -> EquivalenceProperties {
    let mut equivalences = input.equivalence_properties().clone();
    if input.output_partitioning().partition_count() > 1 {
        equivalences.clear_orderings();
        equivalences.clear_per_partition_constants();
    }
    equivalences
}

/// Names of a scan's columns, for EXPLAIN.
pub(crate) fn column_names(schema: &Schema) -> String {
    schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ")
}
