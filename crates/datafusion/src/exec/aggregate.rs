// SPDX-License-Identifier: Apache-2.0
//! Aggregation on the device: ungrouped and grouped, in one step.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::logical_expr::{Aggregate, Operator};
use datafusion::physical_expr::expressions::{BinaryExpr, Column};
use datafusion::physical_expr::projection::ProjectionMapping;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
};

use crate::exec::{fused_below, inner_methods};
use crate::expr::AggregateCall;
use crate::futhark::fold_function;

/// What an aggregation computes: the part that does not depend on its child.
#[derive(Debug, Clone)]
pub(crate) struct AggregateSpec {
    /// Group keys with their output names, over the input's columns.
    pub keys: Vec<(Arc<dyn PhysicalExpr>, String)>,
    /// The aggregates, over the input's columns.
    pub calls: Vec<AggregateCall>,
    /// Keys, then aggregates: exactly as the host's final aggregate has them.
    pub schema: SchemaRef,
}

/// Groups rows and folds aggregates, all partitions of the input into one.
///
/// It stands for the whole chain of partial aggregate, repartitioning and final aggregate. The order
/// of groups is not defined. Aggregates of Futhark libraries that share the device are called once, for all rows.
#[derive(Debug)]
pub struct DeviceAggregateExec {
    pub(crate) spec: AggregateSpec,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    pub(crate) metrics: ExecutionPlanMetricsSet,
}

impl DeviceAggregateExec {
    pub(crate) fn new(spec: AggregateSpec, input: Arc<dyn ExecutionPlan>) -> Self {
        let properties = PlanProperties::new(
            equivalences(&spec, &input),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::Cooperative);
        DeviceAggregateExec { spec, input, properties: Arc::new(properties), metrics: ExecutionPlanMetricsSet::new() }
    }

    /// What a host aggregate computes, with `final_schema` as the schema of its result.
    pub(crate) fn spec_of(aggregate: &AggregateExec, final_schema: SchemaRef) -> AggregateSpec {
        let functions = aggregate.aggr_expr().iter().zip(aggregate.filter_expr());
        AggregateSpec {
            keys: aggregate.group_expr().expr().to_vec(),
            calls: functions.map(|(function, filter)| AggregateCall::new(function, filter.as_ref())).collect(),
            schema: final_schema,
        }
    }

    /// The same with the keys in columns from `first` on: those of the sets, and the set's number. `real`: the column that
    /// tells which rows are some.
    pub(crate) fn spec_of_sets(
        aggregate: &AggregateExec,
        final_schema: SchemaRef,
        first: usize,
        real: Option<Column>,
    ) -> AggregateSpec {
        let names = aggregate.group_expr().expr().iter().map(|(_, name)| name.as_str()).chain([Aggregate::INTERNAL_GROUPING_ID]);
        let keys = names.enumerate().map(|(index, name)| {
            let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(name, first + index));
            (column, name.to_string())
        });
        let mut spec = AggregateSpec { keys: keys.collect(), ..Self::spec_of(aggregate, final_schema) };
        if let Some(real) = real {
            let real: Arc<dyn PhysicalExpr> = Arc::new(real);
            for call in &mut spec.calls {
                call.filter = Some(match call.filter.take() {
                    Some(filter) => Arc::new(BinaryExpr::new(Arc::clone(&real), Operator::And, filter)),
                    None => Arc::clone(&real),
                });
            }
        }
        spec
    }

    fn describe(&self) -> (Vec<String>, Vec<String>) {
        let keys = self.spec.keys.iter().map(|(expr, name)| {
            let text = expr.to_string();
            if text.rsplit_once('@').is_some_and(|(column, _)| column == name) { text } else { format!("{text} as {name}") }
        });
        let aggregates = self.spec.calls.iter().map(|call| call.function.name().to_string());
        (keys.collect(), aggregates.collect())
    }

    /// Whether libraries that share the device aggregate, not kernels of ours.
    pub(crate) fn is_of_libraries(&self) -> bool {
        self.spec.calls.iter().any(AggregateCall::is_of_library)
    }

    /// The objects of these libraries.
    fn libraries(&self) -> Vec<String> {
        let mut libraries = Vec::new();
        for function in self.spec.calls.iter().filter_map(|call| fold_function(call.function.fun())) {
            let library = function.context().library().path().display().to_string();
            if !libraries.contains(&library) {
                libraries.push(library);
            }
        }
        libraries
    }
}

/// Which keys always equal one another or a constant: an ORDER BY of one key may have been planned by
/// another. Nothing is said of order.
fn equivalences(spec: &AggregateSpec, input: &Arc<dyn ExecutionPlan>) -> EquivalenceProperties {
    let schema = Arc::clone(&spec.schema);
    let Ok(keys) = ProjectionMapping::try_new(spec.keys.iter().cloned(), &input.schema()) else {
        return EquivalenceProperties::new(schema);
    };
    let mut properties = input.equivalence_properties().project(&keys, schema);
    properties.clear_orderings();
    properties.clear_per_partition_constants();
    properties
}

impl DisplayAs for DeviceAggregateExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (keys, aggregates) = self.describe();
        let libraries = self.libraries();
        // A library gets rows that have been written.
        let fused = if libraries.is_empty() { fused_below(&self.input) } else { Vec::new() };
        if format == DisplayFormatType::TreeRender {
            if !keys.is_empty() {
                writeln!(f, "gby={}", keys.join(", "))?;
            }
            writeln!(f, "aggr={}", aggregates.join(", "))?;
            if !libraries.is_empty() {
                writeln!(f, "of={}", libraries.join(", "))?;
            }
            return if fused.is_empty() { Ok(()) } else { write!(f, "fused={}", fused.join(", ")) };
        }
        write!(f, "DeviceAggregateExec: gby=[{}], aggr=[{}]", keys.join(", "), aggregates.join(", "))?;
        if !libraries.is_empty() {
            write!(f, ", of=[{}]", libraries.join(", "))?;
        }
        if !fused.is_empty() {
            write!(f, ", fused=[{}]", fused.join(", "))?;
        }
        Ok(())
    }
}

impl ExecutionPlan for DeviceAggregateExec {
    inner_methods! {
        "DeviceAggregateExec",
        inputs: [input],
        exprs: |node| node.spec.keys.iter().map(|(expr, _)| expr).chain(node.spec.calls.iter().flat_map(AggregateCall::exprs)),
        over: |node| DeviceAggregateExec::new(node.spec.clone(), input),
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }
}
