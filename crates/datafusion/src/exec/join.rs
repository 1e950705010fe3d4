// SPDX-License-Identifier: Apache-2.0
//! Joins: hash joins, and nested loops without equal keys.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{JoinType, Result, ScalarValue, exec_err};
use datafusion::logical_expr::physical_planning_context::{ScalarSubqueryResults, SubqueryIndex};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{EquivalenceProperties, LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
    ReplaceChildrenOptions,
};

use crate::exec::{
    JoinColumns, JoinTypeFacts, OperatorMetrics, inner_methods, refuse_stream, refused_execution, single_partition,
};

/// A join without its children. The left side is built, the right side probes.
#[derive(Debug, Clone)]
pub(crate) struct JoinSpec {
    pub join_type: JoinType,
    /// Equal keys, each over its side's columns.
    pub on: Vec<(Arc<dyn PhysicalExpr>, Arc<dyn PhysicalExpr>)>,
    pub null_equals_null: bool,
    /// Whether the join has the NULL semantics of `NOT IN`.
    pub null_aware: bool,
    /// The condition beside the equal keys.
    pub filter: Option<JoinFilter>,
    /// The scalar subquery of the left side, which has one row at most.
    pub scalar: Option<ScalarSubquery>,
    /// Passed-on columns of the join; all if `None`.
    pub projection: Option<Vec<usize>>,
    /// The schema after the projection.
    pub schema: SchemaRef,
    /// Equalities and orders of the result.
    pub equivalences: EquivalenceProperties,
}

/// A scalar subquery of an offloaded subplan. It runs once, before the subplan's rows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScalarSubquery {
    /// The slots from which DataFusion's expressions read values.
    pub results: ScalarSubqueryResults,
    pub index: SubqueryIndex,
    /// Whether host scans read the value.
    pub publishes: bool,
}

impl ScalarSubquery {
    /// Whether both are the same subquery.
    pub fn is(&self, other: &ScalarSubquery) -> bool {
        (&self.results, self.index) == (&other.results, other.index)
    }

    /// Stores the value for host scans.
    ///
    /// # Errors
    /// If an earlier run of the plan has stored another value. Its scans may still prune rows by
    /// that value. DataFusion itself would keep the first value. It requires a reset of plans
    /// between their runs.
    pub fn publish(&self, value: ScalarValue) -> Result<()> {
        match self.results.get(self.index) {
            None => self.results.set(self.index, value),
            Some(stored) if stored == value => Ok(()),
            Some(stored) => {
                exec_err!(
                    "a scalar subquery gave {stored} when the plan ran before, and now {value}: reset the plan's state between its runs"
                )
            }
        }
    }
}

impl JoinSpec {
    /// The order of the result: the probe side's, if it has one partition and no rows of the build
    /// side come at the end. Matches of one probe row are in no order.
    pub fn order_of_probe(&self, left: &Arc<dyn ExecutionPlan>, right: &Arc<dyn ExecutionPlan>) -> Result<Option<LexOrdering>> {
        let facts = JoinTypeFacts::of(self.join_type);
        if !facts.keeps_probe_order() || right.output_partitioning().partition_count() != 1 {
            return Ok(None);
        }
        let first = facts.first_probe_column(left.schema().fields().len());
        let output_of = |column: &Column| {
            let joined = first + column.index();
            match &self.projection {
                None => Some(joined),
                Some(projection) => projection.iter().position(|index| *index == joined),
            }
        };
        let mut order = Vec::new();
        for key in right.output_ordering().into_iter().flatten() {
            let mut kept = true;
            let expr = Arc::clone(&key.expr).transform_up(|node| {
                let Some(column) = node.downcast_ref::<Column>() else { return Ok(Transformed::no(node)) };
                let moved = output_of(column).map(|index| Column::new(column.name(), index));
                kept &= moved.is_some();
                Ok(Transformed::yes(moved.map_or(Arc::clone(&node), |column| Arc::new(column))))
            })?;
            if !kept {
                break;
            }
            order.push(PhysicalSortExpr::new(expr.data, key.options));
        }
        Ok(LexOrdering::new(order))
    }
}

/// Joins two sides: the left side is built to a table, which rows of the right side probe.
///
/// - A probe runs inside the kernels of the operator above, if each row has one match at most.
/// - It replaces any join of the host. Its inputs need be neither partitioned nor sorted.
/// - Rows of the right side keep their order, unless rows of the left side come at the end.
#[derive(Debug)]
pub struct DeviceJoinExec {
    pub(crate) spec: JoinSpec,
    left: Arc<dyn ExecutionPlan>,
    right: Arc<dyn ExecutionPlan>,
    dynamic_filters: DynamicFilters,
    properties: Arc<PlanProperties>,
    pub(crate) metrics: OperatorMetrics,
}

/// Dynamic filters that a join's build side feeds.
#[derive(Debug, Clone, Default)]
pub(crate) struct DynamicFilters {
    /// Number by which `DeviceDynamicFilterExec`s below the probe side name the join.
    pub number: Option<usize>,
    /// A `DynamicFilterPhysicalExpr` within a host scan below the probe side, over the scan's
    /// columns.
    pub scan: Option<Arc<dyn PhysicalExpr>>,
}

impl DynamicFilters {
    pub fn is_empty(&self) -> bool {
        self.number.is_none() && self.scan.is_none()
    }
}

impl DeviceJoinExec {
    pub(crate) fn new(spec: JoinSpec, left: Arc<dyn ExecutionPlan>, right: Arc<dyn ExecutionPlan>) -> Self {
        let properties = single_partition(spec.equivalences.clone(), EmissionType::Incremental);
        let (dynamic_filters, metrics) = Default::default();
        DeviceJoinExec { spec, left, right, dynamic_filters, properties, metrics }
    }

    /// The join over a probe side with the dynamic filters that the join feeds.
    pub(crate) fn with_dynamic_filters(&self, right: Arc<dyn ExecutionPlan>, dynamic_filters: DynamicFilters) -> Self {
        let join = DeviceJoinExec::new(self.spec.clone(), Arc::clone(&self.left), right);
        DeviceJoinExec { dynamic_filters, ..join }
    }

    pub(crate) fn dynamic_filters(&self) -> &DynamicFilters {
        &self.dynamic_filters
    }

    /// The number of the join's dynamic filter; `None` without one.
    pub fn number(&self) -> Option<usize> {
        self.dynamic_filters.number
    }

    /// The side that is built.
    pub fn left(&self) -> &Arc<dyn ExecutionPlan> {
        &self.left
    }

    /// The side that probes.
    pub fn right(&self) -> &Arc<dyn ExecutionPlan> {
        &self.right
    }

    /// The columns before the projection, without the mark.
    fn joined(&self) -> Schema {
        let (left, right) = (self.left.schema(), self.right.schema());
        let fields = match JoinTypeFacts::of(self.spec.join_type).columns {
            JoinColumns::Build | JoinColumns::BuildAndMark => left.fields().to_vec(),
            JoinColumns::Probe | JoinColumns::ProbeAndMark => right.fields().to_vec(),
            JoinColumns::Both => left.fields().iter().chain(right.fields()).cloned().collect(),
        };
        Schema::new(fields)
    }
}

impl DisplayAs for DeviceJoinExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on: Vec<String> = self.spec.on.iter().map(|(left, right)| format!("({left}, {right})")).collect();
        if self.spec.scalar.is_some() {
            let label = if format == DisplayFormatType::TreeRender { "" } else { "DeviceJoinExec: " };
            let column = self.spec.projection.iter().flatten().position(|index| *index == 0).unwrap_or_default();
            let name = self.left.schema().fields().first().map(|field| field.name().clone()).unwrap_or_default();
            return write!(f, "{label}scalar_subquery={name}@{column}");
        }
        if format == DisplayFormatType::TreeRender {
            if !JoinTypeFacts::of(self.spec.join_type).is_inner() {
                writeln!(f, "join_type={}", self.spec.join_type)?;
            }
            writeln!(f, "on={}", on.join(", "))?;
            return match &self.spec.filter {
                Some(filter) => write!(f, "filter={filter}"),
                None => Ok(()),
            };
        }
        write!(f, "DeviceJoinExec: join_type={}, on=[{}]", self.spec.join_type, on.join(", "))?;
        if let Some(filter) = &self.spec.filter {
            write!(f, ", filter={}", filter.expression())?;
        }
        if let Some(projection) = &self.spec.projection {
            let joined = self.joined();
            let names = projection.iter().map(|index| match joined.fields().get(*index) {
                Some(field) => format!("{}@{index}", field.name()),
                None => format!("mark@{index}"),
            });
            write!(f, ", projection=[{}]", names.collect::<Vec<_>>().join(", "))?;
        }
        if self.spec.null_equals_null {
            write!(f, ", NullsEqual: true")?;
        }
        if self.spec.null_aware {
            write!(f, ", null_aware")?;
        }
        if let Some(number) = self.number() {
            write!(f, ", dynamic_filter=#{number}")?;
        }
        Ok(())
    }
}

impl ExecutionPlan for DeviceJoinExec {
    inner_methods! {
        "DeviceJoinExec",
        inputs: [left, right],
        exprs: |node| {
            let keys = node.spec.on.iter().flat_map(|(left, right)| [left, right]);
            keys.chain(node.spec.filter.as_ref().map(JoinFilter::expression))
        },
        over: |node| {
            let join = DeviceJoinExec::new(node.spec.clone(), left, right);
            DeviceJoinExec { dynamic_filters: node.dynamic_filters.clone(), ..join }
        },
    }

    refused_execution!(refuse_stream("DeviceJoinExec"));

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    /// Clears the subquery's value for host scans: the next run publishes it again.
    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        if let Some(subquery) = self.spec.scalar.as_ref().filter(|subquery| subquery.publishes) {
            subquery.results.clear();
        }
        let children = self.children().into_iter().cloned().collect();
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn dynamic_expressions_produced(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.dynamic_filters.scan.iter().cloned().collect()
    }
}
