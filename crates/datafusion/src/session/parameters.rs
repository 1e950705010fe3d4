// SPDX-License-Identifier: Apache-2.0
//! Values for the parameters of plans.

use std::collections::{HashMap, HashSet};

use arrow::datatypes::DataType;
use datafusion::common::metadata::ScalarAndMetadata;
use datafusion::common::{ParamValues, Result};
use datafusion::logical_expr::{DmlStatement, Expr, LogicalPlan, WriteOp};

/// Gives a plan values for its parameters. A value is cast to the type of its parameter if the cast
/// is lossless.
///
/// `LogicalPlan::with_param_values` keeps values as they are, and the plan casts them where it
/// expects another type. INSERT and UPDATE cast values to the type of their column, or refuse them:
/// 1.5 becomes the BIGINT 1, and 'x' is an error.
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
    let values = values.into();
    let types = lossless_types(&plan, std::slice::from_ref(&values))?;
    plan.with_param_values(cast(values, &types))
}

/// The plan for each row of values, as [`with_parameters`] makes them.
///
/// A parameter is cast in all rows or in none. So the plans give columns of the same types if each
/// parameter's values have one type.
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
/// // 1.5 is no BIGINT, so that 2.0 does not become one either.
/// let rows = [1.5, 2.0].map(|value| ParamValues::from(vec![ScalarValue::from(value)]));
/// let plans = devicefusion::with_rows_of_parameters(&plan, rows.into())?;
/// assert_eq!(plans[0].schema().field(0).data_type(), plans[1].schema().field(0).data_type());
/// # datafusion::common::Result::<()>::Ok(())
/// # })?;
/// # datafusion::common::Result::<()>::Ok(())
/// ```
pub fn with_rows_of_parameters(plan: &LogicalPlan, rows: Vec<ParamValues>) -> Result<Vec<LogicalPlan>> {
    let types = lossless_types(plan, &rows)?;
    rows.into_iter().map(|values| plan.clone().with_param_values(cast(values, &types))).collect()
}

/// The types of parameters (with their `$`) for which the cast of each row's value is lossless.
fn lossless_types(plan: &LogicalPlan, rows: &[ParamValues]) -> Result<HashMap<String, DataType>> {
    let types = plan.get_parameter_types()?.into_iter();
    let types = types.filter_map(|(name, data_type)| Some((name, data_type?)));
    let assigned = assigned_parameters(plan);
    let holds = |name: &str, data_type: &DataType| {
        // `with_param_values` reports missing values.
        let values = rows.iter().filter_map(|row| row.get_placeholders_with_values(name).ok());
        assigned.contains(name) || values.into_iter().all(|value| is_lossless(&value, data_type))
    };
    Ok(types.filter(|(name, data_type)| holds(name, data_type)).collect())
}

/// The parameters whose values UPDATE writes. It casts all others to the type of their column.
fn assigned_parameters(plan: &LogicalPlan) -> HashSet<String> {
    let LogicalPlan::Dml(DmlStatement { op: WriteOp::Update, input, .. }) = plan else { return HashSet::new() };
    let LogicalPlan::Projection(projection) = input.as_ref() else { return HashSet::new() };
    let parameter = |expr: &Expr| match expr.clone().unalias() {
        Expr::Placeholder(placeholder) => Some(placeholder.id),
        _ => None,
    };
    projection.expr.iter().filter_map(parameter).collect()
}

fn is_lossless(given: &ScalarAndMetadata, data_type: &DataType) -> bool {
    let given = given.value();
    if given.is_null() {
        return true;
    }
    // A cast takes the midnight of the zone, and a comparison with a literal that of UTC.
    if matches!(given.data_type(), DataType::Date32 | DataType::Date64) && matches!(data_type, DataType::Timestamp(_, Some(_))) {
        return false;
    }
    let back = given.cast_to(data_type).and_then(|cast| cast.cast_to(&given.data_type()));
    back.is_ok_and(|back| back == *given)
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
