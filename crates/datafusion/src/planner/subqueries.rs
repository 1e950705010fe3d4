// SPDX-License-Identifier: Apache-2.0
//! Scalar subqueries whose value stays on the device: a column of the rows that ask for it, which a join with the subquery's one
//! row brings. Kernels read that row where it lies. Each runs once, before the rows of its island, whoever asks; scans of the host
//! that leave out parts of files by its value are told it.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinType, Result};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::filter::FilterExecBuilder;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::scalar_subquery::{ScalarSubqueryExec, ScalarSubqueryLink};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::exec::{
    DeviceAggregateExec, DeviceFilterExec, DeviceJoinExec, DeviceLimitExec, DeviceProjectionExec, JoinSpec, ScalarSubquery,
    is_device,
};
use crate::planner::dynamic_filters::of_children;
use crate::planner::support::device_form;
use crate::texts::{aggregate_has_device_form, has_device_form};

type Plan = Arc<dyn ExecutionPlan>;

/// A main query on the device with the values of those subqueries that are there too, and the subqueries that are left: those of
/// the host, and those whose value somebody asks for whom no join can bring it.
pub(crate) fn with_values(
    subqueries: &ScalarSubqueryExec,
    mut main: Plan,
    placed: Vec<Plan>,
) -> Result<(Plan, Vec<(ScalarSubqueryLink, Plan)>)> {
    let mut left = Vec::new();
    for (link, plan) in subqueries.subqueries().iter().zip(placed) {
        let value = Value::of(subqueries, link, &plan);
        match value.map(|value| value.within(&main)).transpose()?.flatten() {
            Some(with_value) => main = with_value,
            None => left.push((link.clone(), plan)),
        }
    }
    Ok((main, left))
}

/// What a subquery on the device gives.
struct Value {
    /// As expressions ask for it.
    expr: ScalarSubqueryExpr,
    subquery: ScalarSubquery,
    rows: Plan,
    /// Whether there is a row, whatever the subquery finds.
    always: bool,
}

impl Value {
    fn of(subqueries: &ScalarSubqueryExec, link: &ScalarSubqueryLink, plan: &Plan) -> Option<Value> {
        let schema = plan.schema();
        let ([field], true) = (schema.fields().as_ref(), is_device(plan)) else { return None };
        let (results, index) = (subqueries.results().clone(), link.index);
        let expr = ScalarSubqueryExpr::new(field.data_type().clone(), field.is_nullable(), index, results.clone());
        let subquery = ScalarSubquery { results, index, is_told: false };
        Some(Value { expr, subquery, rows: Arc::clone(plan), always: gives_one_row(plan) })
    }

    /// A plan in which joins bring the value to all operators of the device that ask for it; `None` where they cannot, where
    /// another plan would come out of it than one for the same rows, and where there would be no such join.
    fn within(mut self, main: &Plan) -> Result<Option<Plan>> {
        self.subquery.is_told = main.exists(|node| Ok(!is_device(node) && self.is_asked_for_by(node)?))?;
        let mut with_value = self.brought(main)?;
        // Each partition would run the subquery.
        if with_value.output_partitioning().partition_count() > 1 && main.output_ordering().is_none() {
            with_value = Arc::new(DeviceLimitExec::try_new(Arc::new(GlobalLimitExec::new(with_value, 0, None)))?);
        }
        let in_order = match main.output_ordering() {
            Some(ordering) => with_value.equivalence_properties().ordering_satisfy(ordering.clone())?,
            None => true,
        };
        let fits = in_order
            && with_value.output_partitioning().partition_count() == 1
            && with_value.schema() == main.schema()
            && with_value.exists(|node| Ok(self.is_brought_by(node)))?
            && !with_value.exists(|node| Ok(is_device(node) && self.is_asked_for_by(node)?))?;
        Ok(fits.then_some(with_value))
    }

    fn brought(&self, plan: &Plan) -> Result<Plan> {
        let plan = of_children(plan, |child| self.brought(child))?;
        let children = plan.children();
        let ([input], true) = (children.as_slice(), self.is_asked_for_by(&plan)?) else { return Ok(plan) };
        let width = input.schema().fields().len();
        if let Some(filter) = plan.downcast_ref::<DeviceFilterExec>() {
            let columns = filter.projection().map_or_else(|| (0..width).collect(), <[usize]>::to_vec);
            let host = FilterExecBuilder::new(self.as_column(filter.predicate(), width)?, self.joined(input)?)
                .apply_projection(Some(columns))?
                .build()?;
            let host: Plan = Arc::new(host);
            return if device_form(&host).is_ok() { Ok(Arc::new(DeviceFilterExec::try_new(host)?)) } else { Ok(plan) };
        }
        if let Some(projection) = plan.downcast_ref::<DeviceProjectionExec>() {
            let outputs = projection.expressions().iter();
            let outputs = outputs.map(|output| Ok((self.as_column(&output.expr, width)?, output.alias.clone())));
            let outputs = outputs.collect::<Result<Vec<_>>>()?;
            let host: Plan =
                Arc::new(ProjectionExec::try_new_with_schema_metadata(outputs, self.joined(input)?, &plan.schema())?);
            return if device_form(&host).is_ok() { Ok(Arc::new(DeviceProjectionExec::try_new(host)?)) } else { Ok(plan) };
        }
        if let Some(aggregate) = plan.downcast_ref::<DeviceAggregateExec>()
            && !aggregate.is_of_libraries()
        {
            let (mut spec, input) = (aggregate.spec.clone(), self.joined(input)?);
            for (key, _) in &mut spec.keys {
                *key = self.as_column(key, width)?;
            }
            for call in &mut spec.calls {
                let exprs = call.exprs().map(|expr| self.as_column(expr, width)).collect::<Result<Vec<_>>>()?;
                *call = call.with_exprs(&exprs);
            }
            let schema = input.schema();
            let fits = spec.keys.iter().all(|(key, _)| has_device_form(key, &schema).is_ok())
                && spec.calls.iter().all(|call| aggregate_has_device_form(call, &schema).is_ok());
            return if fits { Ok(Arc::new(DeviceAggregateExec::new(spec, input))) } else { Ok(plan) };
        }
        Ok(plan)
    }

    /// Rows with the value in a column behind theirs.
    fn joined(&self, input: &Plan) -> Result<Plan> {
        let (own, value) = (input.schema(), self.rows.schema());
        let value = value
            .fields()
            .iter()
            .map(|field| Arc::new(field.as_ref().clone().with_nullable(!self.always || field.is_nullable())));
        let fields = own.fields().iter().cloned().chain(value).collect::<Vec<_>>();
        let schema = Arc::new(Schema::new_with_metadata(fields, own.metadata().clone()));
        let mut spec = JoinSpec {
            join_type: if self.always { JoinType::Inner } else { JoinType::Right },
            on: vec![],
            null_equals_null: false,
            null_aware: false,
            filter: None,
            projection: Some((1..=own.fields().len()).chain([0]).collect()),
            scalar: Some(self.subquery.clone()),
            equivalences: EquivalenceProperties::new(Arc::clone(&schema)),
            schema,
        };
        if let Some(ordering) = spec.order_of_probe(&self.rows, input)? {
            spec.equivalences.add_ordering(ordering);
        }
        Ok(Arc::new(DeviceJoinExec::new(spec, Arc::clone(&self.rows), Arc::clone(input))))
    }

    /// An expression that finds the value in a column.
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

    fn is_asked_for_by(&self, plan: &Plan) -> Result<bool> {
        let mut asked = false;
        plan.apply_expressions(&mut |expr| {
            asked |= expr.exists(|node| Ok(self.is(node)))?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(asked)
    }

    fn is_brought_by(&self, plan: &Plan) -> bool {
        let scalar = plan.downcast_ref::<DeviceJoinExec>().and_then(|join| join.spec.scalar.as_ref());
        scalar.is_some_and(|scalar| scalar.is(&self.subquery))
    }
}

/// Whether rows are one, whatever is below: an aggregate of all.
fn gives_one_row(plan: &Plan) -> bool {
    match plan.downcast_ref::<DeviceAggregateExec>() {
        Some(aggregate) => aggregate.spec.keys.is_empty(),
        None => plan.is::<DeviceProjectionExec>() && plan.children().into_iter().all(gives_one_row),
    }
}
