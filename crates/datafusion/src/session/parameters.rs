// SPDX-License-Identifier: Apache-2.0
//! Values for the parameters of plans.

use std::collections::HashMap;

use arrow::datatypes::DataType;
use datafusion::common::metadata::ScalarAndMetadata;
use datafusion::common::{ParamValues, Result};
use datafusion::logical_expr::{DmlStatement, Expr, LogicalPlan, WriteOp};

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
    let types = assigned_types(&plan)?;
    plan.with_param_values(cast(values.into(), &types))
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
    let types = assigned_types(plan)?;
    rows.into_iter().map(|values| plan.clone().with_param_values(cast(values, &types))).collect()
}

/// The types of parameters (with their `$`) whose values UPDATE writes. It casts all other
/// expressions to the type of their column.
fn assigned_types(plan: &LogicalPlan) -> Result<HashMap<String, DataType>> {
    let LogicalPlan::Dml(DmlStatement { op: WriteOp::Update, input, .. }) = plan else { return Ok(HashMap::new()) };
    let LogicalPlan::Projection(projection) = input.as_ref() else { return Ok(HashMap::new()) };
    let parameter = |expr: &Expr| match expr.clone().unalias() {
        Expr::Placeholder(placeholder) => Some(placeholder.id),
        _ => None,
    };
    let assigned: Vec<String> = projection.expr.iter().filter_map(parameter).collect();
    let types = plan.get_parameter_types()?.into_iter();
    let types = types.filter_map(|(name, data_type)| Some((name, data_type?)));
    Ok(types.filter(|(name, _)| assigned.contains(name)).collect())
}

fn cast(values: ParamValues, types: &HashMap<String, DataType>) -> ParamValues {
    let cast = |name: &str, given: ScalarAndMetadata| match types.get(&format!("${name}")) {
        Some(data_type) => given.clone().cast_storage_to(data_type).unwrap_or(given),
        None => given,
    };
    match values {
        ParamValues::List(values) => {
            let values = values.into_iter().enumerate();
            ParamValues::List(values.map(|(index, value)| cast(&(index + 1).to_string(), value)).collect())
        }
        ParamValues::Map(values) => {
            let cast = |(name, value): (String, _)| {
                let value = cast(&name, value);
                (name, value)
            };
            ParamValues::Map(values.into_iter().map(cast).collect())
        }
    }
}
