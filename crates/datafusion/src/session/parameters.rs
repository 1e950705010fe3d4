// SPDX-License-Identifier: Apache-2.0
//! Values for the parameters of plans.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{ParamValues, Result};
use datafusion::logical_expr::expr::{Alias, Placeholder};
use datafusion::logical_expr::{DmlStatement, Expr, LogicalPlan, Projection, Values, WriteOp};

/// Gives a plan values for its parameters. A value has its own type, as a literal of that type has.
///
/// INSERT and UPDATE cast values to the type of their column, or refuse them: 1.5 becomes the
/// BIGINT 1, and 'x' is an error.
///
/// # Errors
/// If a parameter has no value.
///
/// # Examples
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use datafusion::common::ScalarValue;
///
/// let ctx = devicefusion::session()?;
/// ctx.sql("CREATE TABLE names (name VARCHAR)").await?.collect().await?;
/// let plan = ctx.state().create_logical_plan("INSERT INTO names VALUES ($1)").await?;
/// let plan = devicefusion::with_parameters(plan, vec![ScalarValue::from("Ada")])?;
/// ctx.execute_logical_plan(plan).await?.collect().await?;
/// assert_eq!(ctx.sql("SELECT name FROM names").await?.count().await?, 1);
/// # datafusion::common::Result::<()>::Ok(())
/// # })?;
/// # datafusion::common::Result::<()>::Ok(())
/// ```
pub fn with_parameters(plan: LogicalPlan, values: impl Into<ParamValues>) -> Result<LogicalPlan> {
    with_casts(plan)?.with_param_values(values.into())
}

/// The plan for each row of values, as [`with_parameters`] makes them.
///
/// # Errors
/// If a parameter has no value.
///
/// # Examples
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use datafusion::common::{ParamValues, ScalarValue};
///
/// let ctx = devicefusion::session()?;
/// let plan = ctx.state().create_logical_plan("SELECT $1 + 1::BIGINT").await?;
/// let rows = [1.5, 2.0].map(|value| ParamValues::from(vec![ScalarValue::from(value)]));
/// let plans = devicefusion::with_rows_of_parameters(&plan, rows.into())?;
/// assert_eq!(plans[0].schema().field(0).data_type(), plans[1].schema().field(0).data_type());
/// # datafusion::common::Result::<()>::Ok(())
/// # })?;
/// # datafusion::common::Result::<()>::Ok(())
/// ```
pub fn with_rows_of_parameters(plan: &LogicalPlan, rows: Vec<ParamValues>) -> Result<Vec<LogicalPlan>> {
    let plan = with_casts(plan.clone())?;
    rows.into_iter().map(|values| plan.clone().with_param_values(values)).collect()
}

/// The plan with casts around parameters that INSERT and UPDATE write to a column. It casts all
/// other expressions itself.
fn with_casts(plan: LogicalPlan) -> Result<LogicalPlan> {
    let LogicalPlan::Dml(dml) = plan else { return Ok(plan) };
    let input = match (&dml.op, dml.input.as_ref()) {
        (WriteOp::Update, LogicalPlan::Projection(assigned)) => {
            let expr = assigned.expr.iter().cloned().map(cast_parameter).collect();
            let (input, schema) = (Arc::clone(&assigned.input), Arc::clone(&assigned.schema));
            LogicalPlan::Projection(Projection::try_new_with_schema(expr, input, schema)?)
        }
        (WriteOp::Insert(_), input) => input.clone().transform_down(cast_values)?.data,
        _ => return Ok(LogicalPlan::Dml(dml)),
    };
    Ok(LogicalPlan::Dml(DmlStatement { input: Arc::new(input), ..dml }))
}

fn cast_values(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Values(Values { schema, values }) = plan else { return Ok(Transformed::no(plan)) };
    let values = values.into_iter().map(|row| row.into_iter().map(cast_parameter).collect()).collect();
    Ok(Transformed::yes(LogicalPlan::Values(Values { schema, values })))
}

/// A parameter with a cast to its type, if the expression is one of known type.
fn cast_parameter(expr: Expr) -> Expr {
    match expr {
        Expr::Alias(alias) => Expr::Alias(Alias { expr: Box::new(cast_parameter(*alias.expr)), ..alias }),
        Expr::Placeholder(Placeholder { id, field: Some(field) }) => {
            let data_type = field.data_type().clone();
            datafusion::logical_expr::cast(Expr::Placeholder(Placeholder { id, field: Some(field) }), data_type)
        }
        other => other,
    }
}
