// SPDX-License-Identifier: Apache-2.0
//! From DataFusion's aggregate expressions to those of the kernels, or a reason why not.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Literal;
use kernels::expr::{Aggregate, AggregateFunction};

use crate::expr::{Reason, lower};
use crate::functions::is_own_aggregate;

/// Lowers one aggregate of `arguments`, over the schema they refer to, and checks that it has a device form.
pub(crate) fn lower_aggregate(
    aggregate: &AggregateFunctionExpr,
    arguments: &[Arc<dyn PhysicalExpr>],
    filter: Option<&Arc<dyn PhysicalExpr>>,
    schema: &Schema,
) -> Result<Aggregate, Reason> {
    let name = aggregate.fun().name();
    if !is_own_aggregate(aggregate.fun()) {
        return Err(format!("the aggregate {name} has no device form"));
    }
    let function = match name {
        "count" => AggregateFunction::Count,
        "sum" => AggregateFunction::Sum,
        "min" => AggregateFunction::Min,
        "max" => AggregateFunction::Max,
        "avg" => AggregateFunction::Avg,
        "bool_and" => AggregateFunction::BoolAnd,
        "bool_or" => AggregateFunction::BoolOr,
        "bit_and" => AggregateFunction::BitAnd,
        "bit_or" => AggregateFunction::BitOr,
        "bit_xor" => AggregateFunction::BitXor,
        "var" => AggregateFunction::VarSamp,
        "var_pop" => AggregateFunction::VarPop,
        "stddev" => AggregateFunction::StddevSamp,
        "stddev_pop" => AggregateFunction::StddevPop,
        other => return Err(format!("the aggregate {other} has no device form")),
    };
    let argument = match arguments {
        [] => None,
        [argument] => match argument.downcast_ref::<Literal>() {
            // COUNT(*) arrives as COUNT(1).
            Some(literal) if function == AggregateFunction::Count && !literal.value().is_null() && !aggregate.is_distinct() => {
                None
            }
            _ => Some(lower(argument, schema)?),
        },
        _ => return Err(format!("the aggregate {name} of several columns has no device form")),
    };
    let filter = filter.map(|filter| lower(filter, schema)).transpose()?;
    let lowered = Aggregate {
        function,
        argument,
        filter,
        distinct: aggregate.is_distinct(),
        data_type: aggregate.field().data_type().clone(),
    };
    kernels::support::supports_aggregate(&lowered, schema)?;
    Ok(lowered)
}
