// SPDX-License-Identifier: Apache-2.0
//! Aggregates that depend on the order of values, rewritten to plain aggregates over order facts:
//! DISTINCT, MIN and MAX of strings, and the sketches of approx_distinct.

use arrow::datatypes::DataType;

use super::aggregate::Distinct;
use super::frame::{Frame, FrameBound};
use super::order_facts::{OrderFact, sketch_rank};
use super::{PlanContext, first_occurrence, is_not_null};
use crate::codegen::CType;
use crate::expr::{Aggregate, AggregateFamily, Expr};
use crate::{Error, Result};

/// Most rows of a frame of distinct values to read again for each row, if values cannot be
/// subtracted from the state.
const MAX_DISTINCT_ROWS: u64 = 1 << 12;

/// A plain aggregate over the columns of the input and order facts.
pub(super) struct OrderDependent {
    pub aggregate: Aggregate,
    /// For DISTINCT over a frame that neither begins nor ends with the partition.
    pub distinct: Option<Distinct>,
    /// For MIN and MAX of strings, the column whose string has the aggregated rank, and the order
    /// of the ranks.
    pub string: Option<(usize, usize)>,
    /// Whether it begins with the state at a cut of the partition.
    pub carries_on: bool,
}

impl OrderDependent {
    fn of_rows(aggregate: Aggregate) -> OrderDependent {
        OrderDependent { aggregate, distinct: None, string: None, carries_on: false }
    }

    /// Whether the value follows from the state of the frame's rows alone.
    pub fn is_of_rows(&self) -> bool {
        self.distinct.is_none() && self.string.is_none()
    }

    /// `aggregate` is [plain](Aggregate::plain): a DISTINCT without effect is gone.
    ///
    /// With DISTINCT a row counts unless its value occurs before it in the frame, or in the
    /// partition for frames from its start. For frames to the partition's end, unless it occurs
    /// after it.
    pub fn plan(mut aggregate: Aggregate, frame: &Frame, context: &mut PlanContext<'_>) -> Result<OrderDependent> {
        let types = context.types;
        let is_string = |column: usize| types.get(column).is_some_and(|ty| CType::native(&ty.data_type) == Some(CType::Str));
        let family = aggregate.function.row().family;
        if family.is_extreme()
            && let [Expr::Column(column)] = aggregate.arguments.as_slice()
            && is_string(*column)
        {
            let column = *column;
            let rank = context.fact(OrderFact::Rank, column)?;
            aggregate.filter = Some(Expr::And(aggregate.filter.into_iter().chain([is_not_null(column)]).collect()));
            aggregate.arguments = vec![Expr::Column(rank)];
            aggregate.data_type = DataType::UInt32;
            let string = Some((column, context.facts.order_of(rank)));
            return Ok(OrderDependent { aggregate, distinct: None, string, carries_on: false });
        }
        if family.is_sketch() {
            let (true, None, [Expr::Column(column)]) =
                (frame.start == FrameBound::UnboundedPreceding, &aggregate.filter, aggregate.arguments.as_slice())
            else {
                return Err(Error::Unsupported(
                    "approx_distinct over frames that do not begin with the partition is not supported on the device".into(),
                ));
            };
            let before = context.fact(OrderFact::RegisterBefore, *column)?;
            aggregate.arguments = vec![sketch_rank(*column), Expr::Column(before)];
            return Ok(OrderDependent::of_rows(aggregate));
        }
        if !aggregate.distinct {
            return Ok(OrderDependent::of_rows(aggregate));
        }
        let (None, [Expr::Column(column)]) = (&aggregate.filter, aggregate.arguments.as_slice()) else {
            return Err(Error::Unsupported(
                "DISTINCT in a window with a filter, or of several columns, is not supported on the device".into(),
            ));
        };
        let (column, begins, ends) =
            (*column, frame.start == FrameBound::UnboundedPreceding, frame.end == FrameBound::UnboundedFollowing);
        let subtracts = match family {
            AggregateFamily::Count => true,
            AggregateFamily::Sum => {
                aggregate.data_type.is_integer() || matches!(aggregate.data_type, DataType::Duration(_) | DataType::Interval(_))
            }
            AggregateFamily::Average
            | AggregateFamily::Extreme { .. }
            | AggregateFamily::AnyValue
            | AggregateFamily::Boolean(_)
            | AggregateFamily::Bitwise(_)
            | AggregateFamily::Variance { .. }
            | AggregateFamily::Bivariate { .. }
            | AggregateFamily::Median
            | AggregateFamily::Percentile
            | AggregateFamily::Sketch => false,
        };
        if !begins && !ends && !subtracts && frame.rows().is_none_or(|rows| rows > MAX_DISTINCT_ROWS) {
            return Err(Error::Unsupported(format!(
                "DISTINCT over frames that may exceed {MAX_DISTINCT_ROWS} rows is supported on the device for COUNT and sums of \
                 integers, durations and intervals only"
            )));
        }
        let other = context.fact(if ends && !begins { OrderFact::After } else { OrderFact::Before }, column)?;
        aggregate.distinct = false;
        if begins || ends {
            aggregate.filter = Some(first_occurrence::has_no_other(other));
            return Ok(OrderDependent::of_rows(aggregate));
        }
        let after = if subtracts { Some(context.fact(OrderFact::After, column)?) } else { None };
        Ok(OrderDependent { distinct: Some(Distinct { before: other, after }), ..OrderDependent::of_rows(aggregate) })
    }
}
