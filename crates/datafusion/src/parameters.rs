// SPDX-License-Identifier: Apache-2.0
//! Values for the parameters of plans.

use datafusion::common::metadata::ScalarAndMetadata;
use datafusion::common::{ParamValues, Result};
use datafusion::logical_expr::LogicalPlan;

/// A plan with values for its parameters, each cast to the type that the plan has found for it where that loses nothing.
///
/// `LogicalPlan::with_param_values` leaves values as they are, and the plan gets casts where it counts on another type. What
/// is inserted is cast to the type of its column in any case, or refused: 1.5 becomes the BIGINT 1, and 'x' is an error.
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
    let types = plan.get_parameter_types()?;
    let cast = |name: &str, given: ScalarAndMetadata| {
        let Some(Some(data_type)) = types.get(&format!("${name}")) else { return given };
        match given.cast_storage_to(data_type) {
            Ok(cast) if cast.value().cast_to(&given.value().data_type()).is_ok_and(|back| back == *given.value()) => cast,
            _ => given,
        }
    };
    let values = match values.into() {
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
    };
    plan.with_param_values(values)
}
