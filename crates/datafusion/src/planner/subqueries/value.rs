// SPDX-License-Identifier: Apache-2.0
//! The value of a scalar subquery, and its readers over rows that have it as a column.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinType, Result};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::filter::FilterExecBuilder;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::scalar_subquery::{ScalarSubqueryExec, ScalarSubqueryLink};

use crate::exec::{
    DeviceAggregateExec, DeviceFilterExec, DeviceJoinExec, DeviceOperator, DeviceProjectionExec, JoinSpec, ScalarSubquery,
    device_inputs, is_device,
};
use crate::expr::{support_of_aggregate, support_of_expr};
use crate::planner::rewrite::{Plan, map_device_inputs};
use crate::planner::support::support_of;

/// The value of a subquery on the device.
pub(super) struct SubqueryValue {
    /// The expression by which operators read it.
    expr: ScalarSubqueryExpr,
    pub(super) subquery: ScalarSubquery,
    rows: Plan,
    /// Whether the subquery always gives a row.
    has_row: bool,
}

impl SubqueryValue {
    /// `None` if the subquery runs on the host.
    pub fn of(subqueries: &ScalarSubqueryExec, link: &ScalarSubqueryLink, plan: &Plan) -> Option<SubqueryValue> {
        let schema = plan.schema();
        let ([field], true) = (schema.fields().as_ref(), is_device(plan)) else { return None };
        let (results, index) = (subqueries.results().clone(), link.index);
        let expr = ScalarSubqueryExpr::new(field.data_type().clone(), field.is_nullable(), index, results.clone());
        let subquery = ScalarSubquery { results, index, publishes: false };
        Some(SubqueryValue { expr, subquery, rows: Arc::clone(plan), has_row: gives_one_row(plan) })
    }

    pub fn is_read_by(&self, plan: &Plan) -> Result<bool> {
        let mut is_read = false;
        plan.apply_expressions(&mut |expr| {
            is_read |= expr.exists(|node| Ok(self.is(node)))?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(is_read)
    }

    /// An offloaded subplan with a join below each filter, projection and aggregation that reads
    /// the value. Other readers stay.
    pub fn joined_for_readers(&self, plan: &Plan) -> Result<Plan> {
        let plan = map_device_inputs(plan, |input| self.joined_for_readers(input))?;
        let inputs = device_inputs(&plan);
        let ([input], true) = (inputs.as_slice(), self.is_read_by(&plan)?) else { return Ok(plan) };
        let Some(operator) = DeviceOperator::of(&plan) else { return Ok(plan) };
        let over_value = match operator {
            DeviceOperator::Filter(filter) => self.filtered(filter, input)?,
            DeviceOperator::Projection(projection) => self.projected(projection, input)?,
            DeviceOperator::Aggregate(aggregate) => self.aggregated(aggregate, input)?,
            DeviceOperator::DynamicFilter(_)
            | DeviceOperator::Expand(_)
            | DeviceOperator::Futhark(_)
            | DeviceOperator::Join(_)
            | DeviceOperator::Limit(_)
            | DeviceOperator::Reuse(_)
            | DeviceOperator::Scan(_)
            | DeviceOperator::Shared(_)
            | DeviceOperator::Sort(_)
            | DeviceOperator::Stream(_)
            | DeviceOperator::Union(_)
            | DeviceOperator::Unnest(_)
            | DeviceOperator::Upload(_)
            | DeviceOperator::Window(_) => None,
        };
        Ok(over_value.unwrap_or(plan))
    }

    fn filtered(&self, filter: &DeviceFilterExec, input: &Plan) -> Result<Option<Plan>> {
        let width = input.schema().fields().len();
        let columns = filter.projection().map_or_else(|| (0..width).collect(), <[usize]>::to_vec);
        let host = FilterExecBuilder::new(self.as_column(filter.predicate(), width)?, self.joined(input)?)
            .apply_projection(Some(columns))?
            .build()?;
        let host: Plan = Arc::new(host);
        Ok(if support_of(&host).is_ok() { Some(Arc::new(DeviceFilterExec::try_new(host)?)) } else { None })
    }

    fn projected(&self, projection: &DeviceProjectionExec, input: &Plan) -> Result<Option<Plan>> {
        let width = input.schema().fields().len();
        let outputs = projection.expressions().iter();
        let outputs = outputs.map(|output| Ok((self.as_column(&output.expr, width)?, output.alias.clone())));
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        let schema = projection.host.schema();
        let host: Plan = Arc::new(ProjectionExec::try_new_with_schema_metadata(outputs, self.joined(input)?, &schema)?);
        Ok(if support_of(&host).is_ok() { Some(Arc::new(DeviceProjectionExec::try_new(host)?)) } else { None })
    }

    fn aggregated(&self, aggregate: &DeviceAggregateExec, input: &Plan) -> Result<Option<Plan>> {
        if aggregate.is_of_libraries() {
            return Ok(None);
        }
        let (width, mut spec) = (input.schema().fields().len(), aggregate.spec.clone());
        for (key, _) in &mut spec.keys {
            *key = self.as_column(key, width)?;
        }
        for call in &mut spec.calls {
            let exprs = call.exprs().map(|expr| self.as_column(expr, width)).collect::<Result<Vec<_>>>()?;
            *call = call.with_exprs(&exprs);
        }
        let input = self.joined(input)?;
        let schema = input.schema();
        let fits = spec.keys.iter().all(|(key, _)| support_of_expr(key, &schema).is_ok())
            && spec.calls.iter().all(|call| support_of_aggregate(call, &schema).is_ok());
        Ok(if fits { Some(Arc::new(DeviceAggregateExec::new(spec, input))) } else { None })
    }

    /// The join that appends the value to the columns of `input`.
    fn joined(&self, input: &Plan) -> Result<Plan> {
        let (below, value) = (input.schema(), self.rows.schema());
        let value = value
            .fields()
            .iter()
            .map(|field| Arc::new(field.as_ref().clone().with_nullable(!self.has_row || field.is_nullable())));
        let fields = below.fields().iter().cloned().chain(value).collect::<Vec<_>>();
        let schema = Arc::new(Schema::new_with_metadata(fields, below.metadata().clone()));
        let mut spec = JoinSpec {
            join_type: if self.has_row { JoinType::Inner } else { JoinType::Right },
            on: vec![],
            null_equals_null: false,
            null_aware: false,
            filter: None,
            projection: Some((1..=below.fields().len()).chain([0]).collect()),
            scalar: Some(self.subquery.clone()),
            equivalences: EquivalenceProperties::new(Arc::clone(&schema)),
            schema,
        };
        if let Some(ordering) = spec.order_of_probe(&self.rows, input)? {
            spec.equivalences.add_ordering(ordering);
        }
        Ok(Arc::new(DeviceJoinExec::new(spec, Arc::clone(&self.rows), Arc::clone(input))))
    }

    /// An expression that reads the value from a column.
    fn as_column(&self, expr: &Arc<dyn PhysicalExpr>, index: usize) -> Result<Arc<dyn PhysicalExpr>> {
        let name = self.rows.schema().field(0).name().clone();
        let replaced = Arc::clone(expr).transform_up(|node| match self.is(&node) {
            true => Ok(Transformed::yes(Arc::new(Column::new(&name, index)) as _)),
            false => Ok(Transformed::no(node)),
        });
        Ok(replaced?.data)
    }

    fn is(&self, expr: &Arc<dyn PhysicalExpr>) -> bool {
        expr.downcast_ref::<ScalarSubqueryExpr>() == Some(&self.expr)
    }
}

/// Whether a plan gives one row whatever its input: an aggregation without keys.
fn gives_one_row(plan: &Plan) -> bool {
    use DeviceOperator::*;
    match DeviceOperator::of(plan) {
        Some(Aggregate(aggregate)) => aggregate.spec.keys.is_empty(),
        Some(Projection(_)) => plan.children().into_iter().all(gives_one_row),
        Some(
            DynamicFilter(_) | Expand(_) | Filter(_) | Futhark(_) | Join(_) | Limit(_) | Reuse(_) | Scan(_) | Shared(_) | Sort(_)
            | Stream(_) | Union(_) | Unnest(_) | Upload(_) | Window(_),
        )
        | None => false,
    }
}
