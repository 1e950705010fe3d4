// SPDX-License-Identifier: Apache-2.0
//! Aggregation with and without keys, in one step.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::logical_expr::{Aggregate, Operator};
use datafusion::physical_expr::expressions::{BinaryExpr, Column};
use datafusion::physical_expr::projection::ProjectionMapping;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};

use crate::exec::{OperatorMetrics, fused_below, inner_methods, refuse_stream, refused_execution, single_partition};
use crate::expr::AggregateCall;
use crate::futhark::fold_function;

/// An aggregation without its input.
#[derive(Debug, Clone)]
pub(crate) struct AggregateSpec {
    /// Group keys over the input's columns, with their output names.
    pub keys: Vec<(Arc<dyn PhysicalExpr>, String)>,
    /// The aggregates, over the input's columns.
    pub calls: Vec<AggregateCall>,
    /// Keys, then aggregates: the schema of the host's final aggregate.
    pub schema: SchemaRef,
}

/// Aggregates all partitions of the input to one.
///
/// Replaces partial aggregate, repartitioning and final aggregate. The order of groups is not
/// defined. Aggregates of Futhark libraries that share the device are called once, for all rows.
#[derive(Debug)]
pub struct DeviceAggregateExec {
    pub(crate) spec: AggregateSpec,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    pub(crate) metrics: OperatorMetrics,
}

impl DeviceAggregateExec {
    pub(crate) fn new(spec: AggregateSpec, input: Arc<dyn ExecutionPlan>) -> Self {
        let properties = single_partition(equivalences(&spec, &input), EmissionType::Final);
        DeviceAggregateExec { spec, input, properties, metrics: OperatorMetrics::new() }
    }

    /// The spec of a host aggregate over raw rows. `final_schema`: the schema of its final
    /// aggregate.
    pub(crate) fn spec_of(aggregate: &AggregateExec, final_schema: SchemaRef) -> AggregateSpec {
        let functions = aggregate.aggr_expr().iter().zip(aggregate.filter_expr());
        AggregateSpec {
            keys: aggregate.group_expr().expr().to_vec(),
            calls: functions.map(|(function, filter)| AggregateCall::new(function, filter.as_ref())).collect(),
            schema: final_schema,
        }
    }

    /// As [`spec_of`](Self::spec_of) over the output of a `DeviceExpandExec`.
    ///
    /// - `first_key`: column of the first key. The other keys and `__grouping_id` follow.
    /// - `real`: the column that is false in the blank row of a set without keys.
    pub(crate) fn spec_of_sets(
        aggregate: &AggregateExec,
        final_schema: SchemaRef,
        first_key: usize,
        real: Option<Column>,
    ) -> AggregateSpec {
        let names = aggregate.group_expr().expr().iter().map(|(_, name)| name.as_str()).chain([Aggregate::INTERNAL_GROUPING_ID]);
        let keys = names.enumerate().map(|(index, name)| {
            let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(name, first_key + index));
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
            let key = expr.to_string();
            if key.rsplit_once('@').is_some_and(|(column, _)| column == name) { key } else { format!("{key} as {name}") }
        });
        let aggregates = self.spec.calls.iter().map(|call| call.function.name().to_string());
        (keys.collect(), aggregates.collect())
    }

    /// Whether all aggregates are functions of device-sharing libraries.
    pub(crate) fn is_of_libraries(&self) -> bool {
        self.spec.calls.iter().any(AggregateCall::is_of_library)
    }

    /// Paths of these libraries.
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

/// Equalities among keys and constants. An ORDER BY of one key may have been planned by another.
/// Orders are dropped.
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
        // The input of a library is materialised.
        let fused = if libraries.is_empty() { fused_below(&self.input) } else { Vec::new() };
        if format == DisplayFormatType::TreeRender {
            if !keys.is_empty() {
                writeln!(f, "gby={}", keys.join(", "))?;
            }
            writeln!(f, "aggr={}", aggregates.join(", "))?;
            if !libraries.is_empty() {
                writeln!(f, "libraries={}", libraries.join(", "))?;
            }
            return if fused.is_empty() { Ok(()) } else { write!(f, "fused={}", fused.join(", ")) };
        }
        write!(f, "DeviceAggregateExec: gby=[{}], aggr=[{}]", keys.join(", "), aggregates.join(", "))?;
        if !libraries.is_empty() {
            write!(f, ", libraries=[{}]", libraries.join(", "))?;
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

    refused_execution!(refuse_stream("DeviceAggregateExec"));

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }
}
