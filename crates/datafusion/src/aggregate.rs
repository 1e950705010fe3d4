// SPDX-License-Identifier: Apache-2.0
//! From DataFusion's aggregate expressions to those of the kernels, or a reason why not.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use datafusion::common::DataFusionError;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_plan::aggregates::AggregateExec;
use kernels::expr::{Aggregate, AggregateFunction, DistinctRule, Expr};
use kernels::function::Function;

use crate::expr::{Reason, lower, lower_output};
use crate::futhark::fold_function;
use crate::list_key::as_key;
use crate::own::is_own_aggregate;
use crate::texts::Rows;

/// An aggregate function over the columns of an input.
#[derive(Debug, Clone)]
pub(crate) struct AggregateCall {
    /// What the query asks for.
    pub function: Arc<AggregateFunctionExpr>,
    /// Its arguments, and what else it needs to know of the rows that it is given.
    pub arguments: Vec<Arc<dyn PhysicalExpr>>,
    /// `FILTER (WHERE …)`.
    pub filter: Option<Arc<dyn PhysicalExpr>>,
    /// Whether the filter leaves the rows alone whose places in an order the function asks for.
    pub chosen: bool,
}

impl AggregateCall {
    /// As the query has it.
    pub fn new(function: &Arc<AggregateFunctionExpr>, filter: Option<&Arc<dyn PhysicalExpr>>) -> AggregateCall {
        let (arguments, filter) = (function.expressions(), filter.cloned());
        AggregateCall { function: Arc::clone(function), arguments, filter, chosen: false }
    }

    /// The calls of an aggregation, if each is of a library that shares the device, and all are of one group.
    pub fn of_libraries(raw: &AggregateExec) -> Option<Vec<AggregateCall>> {
        let functions = raw.aggr_expr().iter().zip(raw.filter_expr());
        let calls: Vec<_> = functions.map(|(function, filter)| AggregateCall::new(function, filter.as_ref())).collect();
        let all = raw.group_expr().is_true_no_grouping() && !calls.is_empty() && calls.iter().all(AggregateCall::is_of_library);
        all.then_some(calls)
    }

    /// Whether it is of a library that shares the device.
    pub fn is_of_library(&self) -> bool {
        fold_function(self.function.fun()).is_some()
    }

    /// Arguments and filter.
    pub fn exprs(&self) -> impl Iterator<Item = &Arc<dyn PhysicalExpr>> {
        self.arguments.iter().chain(&self.filter)
    }

    /// The same, each with the rows that it is computed of.
    pub fn exprs_with_rows(&self) -> impl Iterator<Item = (&Arc<dyn PhysicalExpr>, Rows)> {
        let rows = if self.filter.is_some() { Rows::Some } else { Rows::All };
        self.arguments.iter().map(move |argument| (argument, rows)).chain(self.filter.iter().map(|filter| (filter, Rows::All)))
    }

    /// Whether its result may have more digits than its type.
    pub fn may_overflow(&self) -> bool {
        own_function(&self.function) == Some(AggregateFunction::Avg) && self.function.field().data_type().is_decimal()
    }

    /// The call with other arguments and filter, in the order of [`exprs`](Self::exprs).
    pub fn with_exprs(&self, exprs: &[Arc<dyn PhysicalExpr>]) -> AggregateCall {
        let (arguments, filter) = exprs.split_at(self.arguments.len().min(exprs.len()));
        AggregateCall { arguments: arguments.to_vec(), filter: filter.first().cloned(), ..self.clone() }
    }

    /// The call with keys for the lists that it tells apart.
    pub fn over_keys(&self, schema: &Schema) -> Result<AggregateCall, DataFusionError> {
        if own_function(&self.function) != Some(AggregateFunction::Count) || !self.function.is_distinct() {
            return Ok(self.clone());
        }
        let arguments = self.arguments.iter().map(|argument| as_key(argument, schema)).collect::<Result<_, _>>()?;
        Ok(AggregateCall { arguments, ..self.clone() })
    }

    /// The source's column of lists of which a lowered call gives one by its word.
    pub fn list(lowered: &Aggregate) -> Option<usize> {
        match (lowered.function, lowered.arguments.as_slice()) {
            (AggregateFunction::AnyValue, [Expr::Call { function: Function::ListView, arguments, .. }]) => {
                match arguments.as_slice() {
                    [Expr::Column(column)] => Some(*column),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Lowers the call over the schema that its expressions refer to, and checks that it is supported on the device.
    pub fn lower(&self, schema: &Schema) -> Result<Aggregate, Reason> {
        let name = self.function.fun().name();
        let Some(function) = own_function(&self.function) else {
            let reason = crate::futhark::aggregate_reason(self.function.fun());
            return Err(reason.unwrap_or_else(|| match name {
                "approx_median" | "approx_percentile_cont" | "approx_percentile_cont_with_weight" => {
                    format!("the digest of {name} depends on how the host cuts rows into batches")
                }
                _ => format!("the aggregate {name} is not supported on the device"),
            }));
        };
        if function.row().selects_by_rank != self.chosen {
            return Err(format!("the aggregate {name} is not supported on the device here"));
        }
        let mut data_type = self.function.field().data_type().clone();
        let (function, distinct) = match (function, self.arguments.as_slice()) {
            (AggregateFunction::ApproxDistinct, [argument]) => {
                match argument.data_type(schema).map_err(|error| error.to_string())? {
                    // DataFusion counts these, and knows no sketch of codes.
                    DataType::Boolean
                    | DataType::Int8
                    | DataType::Int16
                    | DataType::UInt8
                    | DataType::UInt16
                    | DataType::Null => (AggregateFunction::Count, true),
                    other @ DataType::Dictionary(_, _) => {
                        return Err(format!("{name} of {other} is not supported on the device"));
                    }
                    _ => (function, false),
                }
            }
            _ => {
                let distinct = match function.row().distinct {
                    DistinctRule::Applies | DistinctRule::NoEffect => self.function.is_distinct(),
                    DistinctRule::Ignored => false,
                };
                (function, distinct && !self.chosen)
            }
        };
        let arguments = match self.arguments.as_slice() {
            // COUNT(*) arrives as COUNT(1).
            [argument] if function == AggregateFunction::Count && !distinct && is_constant(argument) => Vec::new(),
            // A list is its word until the stage brings its elements back.
            [list] if function == AggregateFunction::AnyValue && data_type.is_list() => {
                data_type = DataType::UInt64;
                vec![list_word(list, schema)?]
            }
            // Its word says whether there is one.
            [list] if function == AggregateFunction::Count && list.data_type(schema).is_ok_and(|of| of.is_list()) => {
                vec![list_word(list, schema)?]
            }
            arguments => arguments.iter().map(|argument| lower(argument, schema)).collect::<Result<_, _>>()?,
        };
        if arguments.len() > 1 && matches!(function, AggregateFunction::Count) {
            return Err(format!("the aggregate {name} of several columns is not supported on the device"));
        }
        let filter = self.filter.as_ref().map(|filter| lower(filter, schema)).transpose()?;
        let lowered = Aggregate { function, arguments, filter, distinct, data_type };
        kernels::support::supports_aggregate(&lowered, schema)?;
        Ok(lowered)
    }
}

fn list_word(list: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Expr, Reason> {
    let arguments = vec![lower_output(list, schema)?];
    Ok(Expr::Call { function: Function::ListView, arguments, data_type: DataType::UInt64 })
}

/// The kernels' function for one of DataFusion's own.
fn own_function(aggregate: &AggregateFunctionExpr) -> Option<AggregateFunction> {
    let found = AggregateFunction::from_sql(aggregate.fun().name()).filter(|_| is_own_aggregate(aggregate.fun()));
    found.map(|(function, _)| function)
}

/// Whether an aggregate of the host asks for rows at some places of an order.
pub(crate) fn is_ordered(aggregate: &AggregateFunctionExpr) -> bool {
    own_function(aggregate).is_some_and(|function| function.row().selects_by_rank)
}

fn is_constant(argument: &Arc<dyn PhysicalExpr>) -> bool {
    argument.downcast_ref::<Literal>().is_some_and(|literal| !literal.value().is_null())
}
