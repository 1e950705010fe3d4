// SPDX-License-Identifier: Apache-2.0
//! Translation of DataFusion's aggregate expressions.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use datafusion::common::DataFusionError;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_plan::aggregates::AggregateExec;
use kernels::expr::{Aggregate, AggregateFunction, ArgumentRule, DistinctRule, Expr, RankRule, SqlAggregate};
use kernels::function::Function;

use super::builtin::is_builtin_aggregate;
use super::evaluation::Evaluation;
use super::library;
use super::list_key::as_key;
use super::translate::lower;
use crate::reason::Reason;

/// An aggregate function over the columns of an input.
#[derive(Debug, Clone)]
pub(crate) struct AggregateCall {
    /// The host's expression.
    pub function: Arc<AggregateFunctionExpr>,
    /// Its arguments. A selection by rank adds the number of rows and the fraction.
    pub arguments: Vec<Arc<dyn PhysicalExpr>>,
    /// `FILTER (WHERE …)`.
    pub filter: Option<Arc<dyn PhysicalExpr>>,
    /// `filter` already selects the rows by rank.
    pub selected_by_rank: bool,
}

impl AggregateCall {
    /// The call of the query.
    pub fn new(function: &Arc<AggregateFunctionExpr>, filter: Option<&Arc<dyn PhysicalExpr>>) -> AggregateCall {
        let (arguments, filter) = (function.expressions(), filter.cloned());
        AggregateCall { function: Arc::clone(function), arguments, filter, selected_by_rank: false }
    }

    /// Calls of an aggregation without keys, if all are of device-sharing libraries.
    pub fn of_libraries(raw: &AggregateExec) -> Option<Vec<AggregateCall>> {
        let functions = raw.aggr_expr().iter().zip(raw.filter_expr());
        let calls: Vec<_> = functions.map(|(function, filter)| AggregateCall::new(function, filter.as_ref())).collect();
        let all = raw.group_expr().is_true_no_grouping() && !calls.is_empty() && calls.iter().all(AggregateCall::is_of_library);
        all.then_some(calls)
    }

    /// Whether the call is an aggregate of a device-sharing library.
    pub fn is_of_library(&self) -> bool {
        library::shares_device(self.function.fun())
    }

    /// Arguments and filter.
    pub fn exprs(&self) -> impl Iterator<Item = &Arc<dyn PhysicalExpr>> {
        self.arguments.iter().chain(&self.filter)
    }

    /// Like [`exprs`](Self::exprs), each with its evaluation.
    pub fn exprs_with_evaluation(&self) -> impl Iterator<Item = (&Arc<dyn PhysicalExpr>, Evaluation)> {
        let of_arguments = if self.filter.is_some() { Evaluation::Conditional } else { Evaluation::Always };
        let arguments = self.arguments.iter().map(move |argument| (argument, of_arguments));
        arguments.chain(self.filter.iter().map(|filter| (filter, Evaluation::Always)))
    }

    /// Whether the result may overflow its type.
    pub fn may_overflow(&self) -> bool {
        let result = self.function.field();
        builtin_function(&self.function).is_some_and(|function| function.row().family.may_overflow(result.data_type()))
    }

    /// The call with other arguments and filter, in the order of [`exprs`](Self::exprs).
    pub fn with_exprs(&self, exprs: &[Arc<dyn PhysicalExpr>]) -> AggregateCall {
        let (arguments, filter) = exprs.split_at(self.arguments.len().min(exprs.len()));
        AggregateCall { arguments: arguments.to_vec(), filter: filter.first().cloned(), ..self.clone() }
    }

    /// The call with keys in place of lists, whose distinct values it counts.
    pub fn over_keys(&self, schema: &Schema) -> Result<AggregateCall, DataFusionError> {
        let counts_distinct = match builtin_function(&self.function).map(|function| function.row().argument) {
            Some(ArgumentRule::Counted) => self.function.is_distinct(),
            Some(ArgumentRule::Picked | ArgumentRule::Computed) | None => false,
        };
        if !counts_distinct {
            return Ok(self.clone());
        }
        let arguments = self.arguments.iter().map(|argument| as_key(argument, schema)).collect::<Result<_, _>>()?;
        Ok(AggregateCall { arguments, ..self.clone() })
    }

    /// The input column of lists from which a lowered call picks one list.
    pub fn list(lowered: &Aggregate) -> Option<usize> {
        match (lowered.function.row().argument, lowered.arguments.as_slice()) {
            (ArgumentRule::Picked, [Expr::Call { function: Function::ListView, arguments, .. }]) => match arguments.as_slice() {
                [Expr::Column(column)] => Some(*column),
                _ => None,
            },
            (ArgumentRule::Counted | ArgumentRule::Picked | ArgumentRule::Computed, _) => None,
        }
    }

    /// Lowers the call over the schema of its expressions. The kernels may still refuse it.
    pub fn lower(&self, schema: &Schema) -> Result<Aggregate, Reason> {
        let name = self.function.fun().name();
        let Some(function) = builtin_function(&self.function) else {
            let reason = library::aggregate_reason(self.function.fun());
            return Err(reason.unwrap_or_else(|| match name {
                "approx_median" | "approx_percentile_cont" | "approx_percentile_cont_with_weight" => {
                    format!("the digest of {name} depends on how the host cuts rows into batches")
                }
                _ => format!("the aggregate {name} is not supported on the device"),
            }));
        };
        if rank_rule(&self.function).is_some() != self.selected_by_rank {
            return Err(format!("the aggregate {name} is not supported on the device here"));
        }
        let mut data_type = self.function.field().data_type().clone();
        let (function, distinct) = match self.arguments.as_slice() {
            [argument] if function.row().family.is_sketch() => {
                match argument.data_type(schema).map_err(|error| error.to_string())? {
                    // DataFusion counts values of these types exactly, and has no sketch of
                    // dictionary codes.
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
                (function, distinct && !self.selected_by_rank)
            }
        };
        let arguments = match (function.row().argument, self.arguments.as_slice()) {
            // COUNT(*) arrives as COUNT(1).
            (ArgumentRule::Counted, [argument]) if !distinct && is_constant(argument) => Vec::new(),
            // The kernel picks the (offset, length) pair; the stage attaches the elements again.
            (ArgumentRule::Picked, [list]) if data_type.is_list() => {
                data_type = DataType::UInt64;
                vec![list_view(list, schema)?]
            }
            // The pair's validity says whether there is a list.
            (ArgumentRule::Counted, [list]) if list.data_type(schema).is_ok_and(|of| of.is_list()) => {
                vec![list_view(list, schema)?]
            }
            (ArgumentRule::Counted, [_, _, ..]) => {
                return Err(format!("the aggregate {name} of several columns is not supported on the device"));
            }
            (ArgumentRule::Counted | ArgumentRule::Picked | ArgumentRule::Computed, arguments) => {
                arguments.iter().map(|argument| lower(argument, schema)).collect::<Result<_, _>>()?
            }
        };
        let filter = self.filter.as_ref().map(|filter| lower(filter, schema)).transpose()?;
        Ok(Aggregate { function, arguments, filter, distinct, data_type })
    }
}

/// The (offset, length) pair of a list as one `u64`.
fn list_view(list: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Expr, Reason> {
    let arguments = vec![lower(list, schema)?];
    Ok(Expr::Call { function: Function::ListView, arguments, data_type: DataType::UInt64 })
}

/// The kernels' function of a built-in aggregate, and the entry of its name.
fn builtin_entry(aggregate: &AggregateFunctionExpr) -> Option<(AggregateFunction, SqlAggregate)> {
    AggregateFunction::from_sql(aggregate.fun().name()).filter(|_| is_builtin_aggregate(aggregate.fun()))
}

/// The kernels' function of a built-in aggregate.
fn builtin_function(aggregate: &AggregateFunctionExpr) -> Option<AggregateFunction> {
    builtin_entry(aggregate).map(|(function, _)| function)
}

/// The rows that a built-in aggregate selects by their rank in an order; `None` for others.
pub(crate) fn rank_rule(aggregate: &AggregateFunctionExpr) -> Option<RankRule> {
    builtin_entry(aggregate).and_then(|(_, named)| named.rank)
}

fn is_constant(argument: &Arc<dyn PhysicalExpr>) -> bool {
    argument.downcast_ref::<Literal>().is_some_and(|literal| !literal.value().is_null())
}
