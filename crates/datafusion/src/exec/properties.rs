// SPDX-License-Identifier: Apache-2.0
//! Plan properties that several operators share.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties};

/// The properties of a leaf: one partition of rows in no order.
pub(crate) fn leaf_properties(schema: SchemaRef) -> Arc<PlanProperties> {
    let properties = PlanProperties::new(
        EquivalenceProperties::new(schema),
        Partitioning::UnknownPartitioning(1),
        EmissionType::Incremental,
        Boundedness::Bounded,
    );
    Arc::new(properties.with_scheduling_type(SchedulingType::Cooperative))
}

/// What holds for the rows of all partitions of `input` together, in any order.
///
/// An order or a constant of one partition, such as a literal of one input of a `UNION`, does not.
pub(crate) fn coalesced_equivalences(input: &Arc<dyn ExecutionPlan>) -> EquivalenceProperties {
    let mut equivalences = input.equivalence_properties().clone();
    if input.output_partitioning().partition_count() > 1 {
        equivalences.clear_orderings();
        equivalences.clear_per_partition_constants();
    }
    equivalences
}

/// The names of a scan's columns, as EXPLAIN lists them.
pub(crate) fn column_names(schema: &Schema) -> String {
    schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ")
}
