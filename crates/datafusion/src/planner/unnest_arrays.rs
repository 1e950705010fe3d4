// SPDX-License-Identifier: Apache-2.0
//! `UNNEST` of lists that are computed from columns, such as `unnest([a, b + 1])`.
//!
//! No kernel makes such a list. The rewrite gives the same rows:
//! 1. The elements become columns.
//! 2. `UNNEST` of the literal list `[0, 1]` repeats each row for each element number.
//! 3. A `CASE` picks the element of the row's number.

use std::sync::Arc;

use arrow::array::Int64Array;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::Result;
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::utils::SingleRowListArrayBuilder;
use datafusion::physical_expr::expressions::{CaseExpr, Column, Literal, lit};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::unnest::UnnestExec;

use crate::exec::DeviceUnnestExec;
use crate::expr::is_builtin;
use crate::planner::support::support_of;

/// Rewrites such lists, if the result is supported on the device.
pub(super) fn rewrite_computed_lists(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| match node.downcast_ref::<UnnestExec>().map(over_elements).transpose()? {
        Some(Some(rewritten)) => Ok(Transformed::yes(rewritten)),
        _ => Ok(Transformed::no(node)),
    })
    .data()
}

fn over_elements(unnest: &UnnestExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(projection) = unnest.input().downcast_ref::<ProjectionExec>() else { return Ok(None) };
    if DeviceUnnestExec::support_of(unnest).is_err() {
        return Ok(None);
    }
    let mut below = projection.expr().to_vec();
    let mut fields: Vec<_> = unnest.schema().fields().iter().cloned().collect();
    let mut above: Vec<ProjectionExpr> = fields.iter().enumerate().map(|(index, field)| output(field.name(), index)).collect();
    for list in unnest.list_column_indices() {
        let index = list.index_in_input_schema;
        let Some(elements) = below.get(index).and_then(|output| elements(&output.expr)) else { continue };
        let name = fields[index].name().clone();
        let numbers = Int64Array::from_iter_values(0..elements.len() as i64);
        let numbers = ScalarValue::List(Arc::new(SingleRowListArrayBuilder::new(Arc::new(numbers)).build_list_array()));
        below[index].expr = Arc::new(Literal::new(numbers));
        fields[index] = Arc::new(Field::new(&name, DataType::Int64, true));
        let mut branches = Vec::with_capacity(elements.len());
        for (number, element) in elements.into_iter().enumerate() {
            let column = output(&format!("element {number} of {name}"), below.len());
            let field = element.return_field(&projection.input().schema())?;
            fields.push(Arc::new(field.as_ref().clone().with_name(&column.alias)));
            below.push(ProjectionExpr { expr: element, alias: column.alias });
            branches.push((lit(number as i64), column.expr));
        }
        // A list that is shorter than another one gives NULL.
        let number = output(&name, index).expr;
        above[index].expr = Arc::new(CaseExpr::try_new(Some(number), branches, None)?);
    }
    if below.len() == projection.expr().len() {
        return Ok(None);
    }
    let below: Arc<dyn ExecutionPlan> = Arc::new(ProjectionExec::try_new(below, Arc::clone(projection.input()))?);
    let schema = Arc::new(Schema::new_with_metadata(fields, unnest.schema().metadata().clone()));
    let lists = unnest.list_column_indices().to_vec();
    let rows: Arc<dyn ExecutionPlan> =
        Arc::new(UnnestExec::new(Arc::clone(&below), lists, vec![], schema, unnest.options().clone())?);
    let rewritten: Arc<dyn ExecutionPlan> = Arc::new(ProjectionExec::try_new(above, Arc::clone(&rows))?);
    let on_device = [&below, &rows, &rewritten].into_iter().all(|node| support_of(node).is_ok());
    Ok(Some(rewritten).filter(|rewritten| on_device && rewritten.schema() == unnest.schema()))
}

fn output(name: &str, index: usize) -> ProjectionExpr {
    ProjectionExpr { expr: Arc::new(Column::new(name, index)), alias: name.to_string() }
}

/// The elements of `make_array`, unless these are lists themselves.
fn elements(expr: &Arc<dyn PhysicalExpr>) -> Option<Vec<Arc<dyn PhysicalExpr>>> {
    let call = expr.downcast_ref::<ScalarFunctionExpr>()?;
    let is_make_array = is_builtin(call.fun()) && call.fun().name() == "make_array" && !call.args().is_empty();
    let DataType::List(element) = call.return_type() else { return None };
    (is_make_array && !element.data_type().is_nested()).then(|| call.args().to_vec())
}
