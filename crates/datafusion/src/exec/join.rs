// SPDX-License-Identifier: Apache-2.0
//! Joins on the device: hash joins, and nested loops where there are no equal keys.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{JoinType, Result, ScalarValue, exec_err};
use datafusion::logical_expr::physical_planning_context::{ScalarSubqueryResults, SubqueryIndex};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{EquivalenceProperties, LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
    ReplaceChildrenOptions,
};

use crate::exec::inner_methods;

/// What a join computes: the part that does not depend on its children.
#[derive(Debug, Clone)]
pub(crate) struct JoinSpec {
    pub join_type: JoinType,
    /// Equal keys, each over its side's columns.
    pub on: Vec<(Arc<dyn PhysicalExpr>, Arc<dyn PhysicalExpr>)>,
    pub null_equals_null: bool,
    /// Whether it is `NOT IN`, with its meaning of NULLs.
    pub null_aware: bool,
    /// What else must be true of a pair.
    pub filter: Option<JoinFilter>,
    /// The scalar subquery that the left side is: one row at most.
    pub scalar: Option<ScalarSubquery>,
    /// Columns of the join that are handed on, all where `None`.
    pub projection: Option<Vec<usize>>,
    /// The result's, after the projection.
    pub schema: SchemaRef,
    /// What is known of the result: what equals what, and its order.
    pub equivalences: EquivalenceProperties,
}

/// A scalar subquery of an offloaded subplan, which runs once, before the offloaded subplan's rows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScalarSubquery {
    /// Where DataFusion's expressions look for its value.
    pub results: ScalarSubqueryResults,
    pub index: SubqueryIndex,
    /// Whether scans of the host do.
    pub is_told: bool,
}

impl ScalarSubquery {
    /// Whether both are one subquery.
    pub fn is(&self, other: &ScalarSubquery) -> bool {
        (&self.results, self.index) == (&other.results, other.index)
    }

    /// Puts the value where scans of the host look for it.
    ///
    /// # Errors
    /// If another run of the plan has put another value there, by which its scans may still leave out rows. DataFusion itself
    /// would go on with the first run's value: it wants the state of a plan reset between its runs.
    pub fn tell(&self, value: ScalarValue) -> Result<()> {
        match self.results.get(self.index) {
            None => self.results.set(self.index, value),
            Some(told) if told == value => Ok(()),
            Some(told) => {
                exec_err!(
                    "a scalar subquery gave {told} when the plan ran before, and now {value}: reset the plan's state between its runs"
                )
            }
        }
    }
}

impl JoinSpec {
    /// The order of the result's rows: that of the probe side's, where it has one partition and none of the other side's rows
    /// are left over. Rows of one probe row are in no order.
    pub fn order_of_probe(&self, left: &Arc<dyn ExecutionPlan>, right: &Arc<dyn ExecutionPlan>) -> Result<Option<LexOrdering>> {
        use JoinType::*;
        let first = match self.join_type {
            Inner | Right => left.schema().fields().len(),
            RightSemi | RightAnti | RightMark => 0,
            Left | Full | LeftSemi | LeftAnti | LeftMark => return Ok(None),
        };
        if right.output_partitioning().partition_count() != 1 {
            return Ok(None);
        }
        let place = |column: &Column| {
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
                let moved = place(column).map(|index| Column::new(column.name(), index));
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

/// Joins two sides: the left one is built to a table, the rows of the right one look their matches up.
///
/// A probe is a row-wise step: it runs inside the kernels of the operator above it, as far as each row has one match at
/// most. It stands for any join of the host, which may want its inputs partitioned or sorted; here they need not be. Rows of
/// the right side keep their order, except where those of the left side must all be given.
#[derive(Debug)]
pub struct DeviceJoinExec {
    pub(crate) spec: JoinSpec,
    left: Arc<dyn ExecutionPlan>,
    right: Arc<dyn ExecutionPlan>,
    number: Option<usize>,
    scan_filter: Option<Arc<dyn PhysicalExpr>>,
    properties: Arc<PlanProperties>,
    pub(crate) metrics: ExecutionPlanMetricsSet,
}

impl DeviceJoinExec {
    pub(crate) fn new(spec: JoinSpec, left: Arc<dyn ExecutionPlan>, right: Arc<dyn ExecutionPlan>) -> Self {
        let properties = PlanProperties::new(
            spec.equivalences.clone(),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::Cooperative);
        let metrics = ExecutionPlanMetricsSet::new();
        DeviceJoinExec { spec, left, right, number: None, scan_filter: None, properties: Arc::new(properties), metrics }
    }

    /// The same join over a probe side with dynamic filters: the number by which they name it, and what tells a host scan
    /// the ranges of the build side's keys.
    pub(crate) fn with_dynamic_filters(
        &self,
        right: Arc<dyn ExecutionPlan>,
        number: Option<usize>,
        scan_filter: Option<Arc<dyn PhysicalExpr>>,
    ) -> Self {
        let join = DeviceJoinExec::new(self.spec.clone(), Arc::clone(&self.left), right);
        DeviceJoinExec { number, scan_filter, ..join }
    }

    /// The number by which dynamic filters name the join; `None` where there are none.
    pub fn number(&self) -> Option<usize> {
        self.number
    }

    /// A `DynamicFilterPhysicalExpr` within a host scan below the probe side, over the scan's columns.
    pub(crate) fn scan_filter(&self) -> Option<&Arc<dyn PhysicalExpr>> {
        self.scan_filter.as_ref()
    }

    /// The side that is built.
    pub fn left(&self) -> &Arc<dyn ExecutionPlan> {
        &self.left
    }

    /// The side that probes.
    pub fn right(&self) -> &Arc<dyn ExecutionPlan> {
        &self.right
    }

    /// The columns of the join before its projection.
    fn joined(&self) -> Schema {
        use JoinType::*;
        let (left, right) = (self.left.schema(), self.right.schema());
        let fields = match self.spec.join_type {
            LeftSemi | LeftAnti | LeftMark => left.fields().to_vec(),
            RightSemi | RightAnti | RightMark => right.fields().to_vec(),
            _ => left.fields().iter().chain(right.fields()).cloned().collect(),
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
            if self.spec.join_type != JoinType::Inner {
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
        if let Some(number) = self.number {
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
            DeviceJoinExec { number: node.number, scan_filter: node.scan_filter.clone(), ..join }
        },
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    /// Scans are told values anew when the plan runs again.
    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        if let Some(subquery) = self.spec.scalar.as_ref().filter(|subquery| subquery.is_told) {
            subquery.results.clear();
        }
        let children = self.children().into_iter().cloned().collect();
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn dynamic_expressions_produced(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.scan_filter.iter().cloned().collect()
    }
}
